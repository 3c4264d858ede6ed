"""poet.trace: what is recorded of a live step."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compatibility_zoo import SEVERAL_STREAMS
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from zoo import KINDS, build

import poet
from poet._census import existing_tensors


def _linear_step() -> tuple[nn.Module, Any, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return net, step, (torch.randn(32, 64),)


def test_it_is_the_step_after_the_optimizer_made_its_state() -> None:
    _, step, args = _linear_step()
    graph = poet.trace(step, *args)
    made_late = [v for v in graph.values if v.producer is not None and v.death is None]
    assert all(v.kind != poet.ValueKind.OPTIMIZER_STATE for v in made_late)
    assert {op.phase for op in graph.ops} >= {
        poet.Phase.FORWARD,
        poet.Phase.BACKWARD,
        poet.Phase.OPTIMIZER,
    }


def test_kinds_and_bytes_of_values_are_those_of_the_model() -> None:
    net, step, args = _linear_step()
    graph = poet.trace(step, *args)
    parameters = sum(p.numel() * 4 for p in net.parameters())
    seen = sum(v.bytes for v in graph.values if v.kind == poet.ValueKind.PARAMETER)
    assert seen == parameters
    gradients = [v for v in graph.values if v.kind == poet.ValueKind.GRADIENT and v.death is None]
    assert sum(v.bytes for v in gradients) == parameters
    inputs = [v for v in graph.values if v.kind == poet.ValueKind.INPUT]
    assert args[0].numel() * 4 in [v.bytes for v in inputs]


def test_an_array_that_comes_in_the_middle_counts_from_then_on() -> None:
    net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(64, 64), nn.Tanh())])

    def step(x: torch.Tensor) -> torch.Tensor:
        h = net(x)
        target = torch.from_numpy(np.full((48, 64), 0.5, np.float32))
        loss = (h[:48] - target).square().mean()
        loss.backward()
        return loss.detach()

    graph = poet.trace(step, torch.randn(64, 64))
    (target,) = [v for v in graph.values if v.bytes == 48 * 64 * 4 and v.kind == "input"]
    shown = next(i for i, op in enumerate(graph.ops) if target.index in op.inputs)
    assert target.producer is not None and 0 < target.producer < shown
    assert not target.evictable
    assert target.death is not None
    assert graph.ops[target.producer].outputs[-1] == target.index


def test_an_op_with_several_outputs_has_several_values() -> None:
    norm = nn.LayerNorm(16)
    x = torch.randn(8, 16)
    graph = poet.trace(lambda: norm(x).sum().backward())
    (op,) = [op for op in graph.ops if op.name == "aten::native_layer_norm"]
    assert len(set(op.outputs)) == 3
    assert len({graph.values[v].bytes for v in op.outputs}) == 2


def test_it_trains_what_the_step_trains() -> None:
    net, step, args = _linear_step()
    before = [p.clone() for p in net.parameters()]
    poet.trace(step, *args)
    assert all(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_workspace_is_measured() -> None:
    conv = nn.Conv2d(8, 8, 3)
    x = torch.randn(4, 8, 64, 64)

    def step() -> None:
        with torch.no_grad():
            F.unfold(x, 3).matmul(torch.ones(4096 - 252, 1))
        conv(x).sum().backward()

    graph = poet.trace(step)
    assert any(op.workspace_bytes > 0 for op in graph.ops)
    assert all(op.seconds >= 0 for op in graph.ops)


def test_views_share_their_value() -> None:
    x = torch.randn(4, 6)
    graph = poet.trace(lambda: (x.t() + x.view(6, 4)).sum())
    views = [op for op in graph.ops if op.metadata_only]
    assert {op.name for op in views} >= {"aten::t", "aten::view"} or {op.name for op in views} >= {
        "aten::transpose.int",
        "aten::view",
    }
    assert all(op.outputs == op.inputs for op in views)


def test_ops_without_tensors_are_no_part_of_it() -> None:
    x = torch.randn(4)

    def step() -> None:
        with torch.autograd.profiler.record_function("named"):
            x.mul(2)

    graph = poet.trace(step)
    assert [op.name for op in graph.ops] == ["aten::mul.Tensor"]


def test_composite_ops_may_arrive_whole() -> None:
    net, x = nn.Linear(4, 4), torch.randn(2, 4)

    def step() -> None:
        with torch.inference_mode():
            net(x)

    assert "aten::linear" in [op.name for op in poet.trace(step).ops]


def test_fake_tensors_pass_through_untouched() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.randn(4)

    def step() -> None:
        with FakeTensorMode():
            assert torch.empty(1 << 40).add(1).shape == (1 << 40,)
        x.mul(2)

    graph = poet.trace(step)
    assert sum(v.bytes for v in graph.values) < 1 << 20


def test_plain_peak_is_what_the_allocator_saw() -> None:
    x = torch.randn(1 << 16)
    graph = poet.trace(lambda: (x * 2 + 1).sum())
    # x, x * 2, x * 2 + 1 at the least, and what else the process holds.
    assert graph.plain_peak_bytes() >= graph.base_bytes + 3 * x.numel() * 4
    assert graph.plain_peak_bytes() <= graph.base_bytes + 4 * x.numel() * 4


def test_old_gradients_that_die_within_the_step_are_counted() -> None:
    weight = nn.Parameter(torch.randn(1 << 16))

    def step() -> None:
        loss = (weight * 2).sum()
        weight.grad = None
        loss.backward()

    graph = poet.trace(step)
    old = [
        v
        for v in graph.values
        if v.producer is None and v.death is not None and v.bytes == weight.numel() * 4
    ]
    assert len(old) == 1
    assert old[0].kind == poet.ValueKind.GRADIENT


# poet.trace wants a step that repeats itself.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SEVERAL_STREAMS])
def test_two_traces_of_a_step_have_one_signature(kind: str) -> None:
    first, second = build(kind), build(kind)
    a = poet.trace(first.step, *first.batches(0))
    b = poet.trace(second.step, *second.batches(0))
    assert a.signature == b.signature
    assert [op.name for op in a.ops] == [op.name for op in b.ops]


def test_a_step_that_cannot_be_called_is_named() -> None:
    with pytest.raises(poet.ArgumentError, match=r"callable.*got int") as caught:
        poet.trace(3)  # type: ignore[arg-type]
    assert isinstance(caught.value, TypeError)


def test_a_module_is_no_step() -> None:
    with pytest.raises(poet.StepTypeError, match="the module Linear, whose call runs the forward"):
        poet.trace(nn.Linear(2, 2), torch.ones(1, 2))


def test_a_step_without_ops_is_an_error() -> None:
    with pytest.raises(poet.ArgumentError, match="ran none"):
        poet.trace(lambda: None)


def test_a_step_that_never_repeats_is_an_error() -> None:
    size = 0

    def step() -> None:
        nonlocal size
        size += 1
        torch.zeros(size)

    with pytest.raises(poet.PoetRuntimeError, match="two calls in a row"):
        poet.trace(step)


def test_the_steps_own_error_comes_out_and_nothing_stays_behind() -> None:
    x = torch.randn(4)

    def step() -> None:
        x.mul(2)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        poet.trace(step)
    assert not poet._C.is_listening()
    assert len(poet.trace(lambda: x.mul(2)).ops) == 1


def test_tensors_without_memory_are_not_resident() -> None:
    """As torch.compile's caches hold them: fake ones and functional ones."""
    _, step, args = _linear_step()
    before = poet.trace(step, *args).base_bytes
    with FakeTensorMode():
        fake = torch.zeros(1 << 20)
    inner = torch.zeros(1 << 18)
    functional = torch._to_functional_tensor(inner)
    assert fake.untyped_storage().nbytes() == 1 << 22
    assert functional.untyped_storage().nbytes() == inner.nbytes == 1 << 20
    assert poet.trace(step, *args).base_bytes - before == inner.nbytes


def test_only_the_first_recorded_call_collects_all_garbage() -> None:
    collected: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            collected.append(info["generation"])

    weight = torch.ones(4, requires_grad=True)
    gc.disable()
    gc.callbacks.append(note)
    try:
        poet.trace(lambda: (weight * 2).sum().backward())
    finally:
        gc.callbacks.remove(note)
        gc.enable()
    assert collected[0] == 2
    assert set(collected[1:]) == {1}


def test_every_kind_of_tensor_is_found() -> None:
    class Own(torch.Tensor):
        pass

    made = [torch.ones(3), nn.Parameter(torch.ones(3)), torch.ones(3).as_subclass(Own)]
    found, _ = existing_tensors()
    assert {id(t) for t in made} <= {id(t) for t in found}
