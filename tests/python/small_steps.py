"""Small training steps by hand, for tests that need to know every figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from graph_strategies import graph_text

import poet

KIB = 1024


def chain_graph(length: int = 6, *, signature: str = "0" * 16) -> poet.Graph:
    """A chain of `length` layers, forward and backward; its figures are easy to work out.

    Value 0 is the input (1 KiB, outlives the step). Op i < length makes activation 1 + i (4 KiB).
    Backward op length + j needs activation length - j and the gradient before it; it makes a
    gradient (1 KiB). Only the last gradient outlives the step. Every op takes 1 ms.
    """
    ops: list[dict[str, Any]] = []
    values: list[dict[str, Any]] = [{"bytes": KIB, "kind": "input"}]
    for i in range(length):
        values.append({"bytes": 4 * KIB, "producer": i, "dtype": "float32", "shape": [32, 32]})
        ops.append({"name": "aten::layer", "inputs": [i], "outputs": [i + 1], "phase": "forward"})
    for j in range(length):
        activation, gradient = length - j, length + 1 + j
        values.append({"bytes": KIB, "producer": length + j, "kind": "gradient"})
        inputs = [activation] if j == 0 else [gradient - 1, activation]
        ops.append({"name": "aten::layer_backward", "inputs": inputs, "outputs": [gradient]})
        ops[-1]["phase"] = "backward"
    for op in ops:
        op["seconds"] = 0.001
    for v, value in enumerate(values):
        uses = [k for k, op in enumerate(ops) if v in op["inputs"] or v in op["outputs"]]
        value["death"] = len(ops) if v in (0, len(values) - 1) else max(uses)
    step = {"base_bytes": 0, "ops": ops, "values": values}
    return poet.Graph.from_json(graph_text(step, signature=signature))


def chain_plain_peak(length: int = 6) -> int:
    """Input, every activation and the first gradient."""
    return KIB + length * 4 * KIB + KIB


def square_step(
    net: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[torch.Tensor], float]:
    """A whole training step: the mean of the squares of what the net makes of a batch."""

    def step(x: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def tanh_step() -> Callable[[torch.Tensor], None]:
    """A real step that is small: six layers of 64 x 64, of inputs of 64 columns, and their SGD."""
    weights = [torch.randn(64, 64, requires_grad=True) for _ in range(6)]

    def step(x: torch.Tensor) -> None:
        for w in weights:
            w.grad = None
            x = torch.tanh(x @ w)
        x.sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for w in weights:
                assert w.grad is not None
                w.sub_(w.grad, alpha=0.01)

    return step
