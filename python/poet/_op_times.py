"""Seconds of operators by class and size: measuring them, and a cost model fitted on them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from poet import _C
from poet._trace import record

CLASSES = ("convolution", "matmul", "elementwise")

# An elementwise op reads and writes a few numbers of at most eight bytes for each flop; the same
# figure as in csrc/device/retarget.cpp.
_MOST_BYTES_A_FLOP = 8
_HELD_OUT = 3  # every third size of a class
_LEAST_POINTS = 6


@dataclasses.dataclass(frozen=True)
class OpTime:
    """One operator as it ran.

    Attributes:
        name: "aten::mm".
        op_class: out of CLASSES.
        flops: as the recorder counts them.
        bytes: of its distinct inputs and outputs, each at most 8 a flop.
        seconds: the least of several runs.
    """

    name: str
    op_class: str
    flops: float
    bytes: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class ClassFit:
    """seconds = overhead_seconds + flops * seconds_per_flop + bytes * seconds_per_byte.

    Attributes:
        op_class: out of CLASSES.
        overhead_seconds: of starting an op.
        seconds_per_flop: 0 where bytes explain it all.
        seconds_per_byte: likewise of flops.
        points: ops that it was fitted on.
        held_out_points: ops that were held out, for the errors below; the figures above are fitted
            on these as well.
        median_error: median of |predicted - measured| / measured over the ops held out.
        worst_error: the greatest of them.
    """

    op_class: str
    overhead_seconds: float
    seconds_per_flop: float
    seconds_per_byte: float
    points: int
    held_out_points: int
    median_error: float
    worst_error: float

    def seconds(self, flops: float, moved_bytes: float) -> float:
        """Seconds of an op of this class."""
        return (
            self.overhead_seconds
            + flops * self.seconds_per_flop
            + moved_bytes * self.seconds_per_byte
        )


# ---- measuring ---------------------------------------------------------------------------------


def measure_ops(
    repeats: int, on_round: Callable[[int], object] | None = None, *, largest: int = 1 << 22
) -> tuple[OpTime, ...]:
    """Runs operators of each class at many sizes and records them as `poet.trace` does.

    Args:
        repeats: rounds, of two runs each at least; the least time of each op counts.
        on_round: called with the number of each round that is over.
        largest: numbers in the largest tensor of an elementwise op; the others follow.
    """
    state = torch.get_rng_state()
    try:
        torch.manual_seed(0)
        work = list(_workload(largest))
        best: dict[int, OpTime] = {}
        for number in range(repeats):
            graph = record(lambda: _run(work), (), {}, held=lambda: ([], []))
            for index, op in enumerate(times_of(graph)):
                known = best.get(index)
                if known is None or op.seconds < known.seconds:
                    best[index] = op
            if on_round is not None:
                on_round(number + 1)
    finally:
        torch.set_rng_state(state)
    return tuple(best.values())


def times_of(graph: _C.Graph) -> Iterator[OpTime]:
    """The times in a recorded step, of the ops that compute something."""
    sizes = [value.bytes for value in graph.values]
    for op in graph.ops:
        if op.flops > 0 and op.seconds > 0 and not op.metadata_only:
            yield OpTime(
                op.name, _C.op_class(op.name), op.flops, moved_bytes(op, sizes), op.seconds
            )


def moved_bytes(op: _C.Op, sizes: Sequence[int]) -> float:
    """Bytes that an op reads and writes, as the roofline of docs/costs.md counts them.

    Args:
        op: of a graph.
        sizes: bytes of the graph's values.
    """
    touched = set(op.outputs) | (set() if op.reads_no_data else set(op.inputs))
    return sum(min(sizes[v], _MOST_BYTES_A_FLOP * op.flops) for v in touched)


def _run(work: Sequence[Callable[[], object]]) -> None:
    for run in work:
        run()


def _workload(largest: int) -> Iterator[Callable[[], object]]:
    sizes = [1 << k for k in range(8, largest.bit_length(), 1)]
    for n in sizes:
        yield from _elementwise(n)
    side = max(8, int(math.sqrt(largest / 4)))
    for n in (s for s in (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768) if s <= side):
        yield from _products(n)
    for channels, edge in itertools.product((4, 8, 16, 32, 64), (8, 16, 32)):
        if 4 * channels * edge * edge <= largest:
            yield from _convolutions(channels, edge)


def _elementwise(n: int) -> Iterator[Callable[[], object]]:
    x, y = torch.randn(n), torch.randn(n)
    yield lambda: x + y
    yield lambda: torch.relu(x)
    yield x.sum
    yield lambda: y.clone().mul_(0.5)


def _products(n: int) -> Iterator[Callable[[], object]]:
    x, w, tall = torch.randn(n, n), torch.randn(n, n), torch.randn(4 * n, n)
    yield lambda: x @ w
    yield lambda: tall @ w
    yield lambda: torch.addmm(x, x, w)


def _convolutions(channels: int, edge: int) -> Iterator[Callable[[], object]]:
    x = torch.randn(4, channels, edge, edge)
    w = torch.randn(channels, channels, 3, 3)
    gradient = torch.randn(4, channels, edge, edge)
    yield lambda: F.conv2d(x, w, padding=1)
    yield lambda: torch.ops.aten.convolution_backward(
        gradient, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    )


# ---- fitting -----------------------------------------------------------------------------------


def fit(times: Sequence[OpTime]) -> tuple[ClassFit, ...]:
    """A cost model of each class with enough ops of different sizes."""
    fits = []
    for op_class in CLASSES:
        points = sorted(
            (each for each in times if each.op_class == op_class),
            key=lambda each: (each.flops, each.bytes, each.name),
        )
        if len(points) >= _LEAST_POINTS:
            fits.append(_fit_class(op_class, points))
    return tuple(fits)


def _fit_class(op_class: str, points: list[OpTime]) -> ClassFit:
    held_out = points[1::_HELD_OUT]  # neither the least nor, but for luck, the greatest
    rest = [each for k, each in enumerate(points) if k % _HELD_OUT != 1]
    trial = _coefficients(rest)
    errors = [
        abs(float(_terms([each])[0] @ trial) - each.seconds) / each.seconds for each in held_out
    ]
    overhead, per_flop, per_byte = _coefficients(points)
    return ClassFit(
        op_class=op_class,
        overhead_seconds=float(overhead),
        seconds_per_flop=float(per_flop),
        seconds_per_byte=float(per_byte),
        points=len(points),
        held_out_points=len(held_out),
        median_error=float(np.median(errors)),
        worst_error=max(errors),
    )


def _terms(points: Sequence[OpTime]) -> np.ndarray:
    return np.array([(1.0, each.flops, each.bytes) for each in points])


def _coefficients(points: Sequence[OpTime]) -> np.ndarray:
    """Least squares of the relative error, with no coefficient below 0.

    With three of them every choice of those that are not 0 can be tried: the best one without a
    negative coefficient is the optimum (Lawson and Hanson, Solving Least Squares Problems, 1974).
    """
    seconds = np.array([each.seconds for each in points])
    rows = _terms(points) / seconds[:, None]
    scale = np.maximum(rows.max(axis=0), np.finfo(float).tiny)
    rows /= scale
    best, least = np.zeros(3), math.inf
    for count in (1, 2, 3):
        for chosen in itertools.combinations(range(3), count):
            found, *_ = np.linalg.lstsq(rows[:, chosen], np.ones(len(points)), rcond=None)
            error = float(np.sum((rows[:, chosen] @ found - 1) ** 2))
            if (found >= 0).all() and error < least:
                best, least = np.zeros(3), error
                best[list(chosen)] = found
    found_best: np.ndarray = best / scale
    return found_best


def fill_in(graph: _C.Graph, fits: Mapping[str, ClassFit]) -> tuple[_C.Graph, int]:
    """The step with predicted seconds where an op computes something and was never run.

    Args:
        graph: its ops with flops and without seconds are those that never ran.
        fits: cost models by class.

    Returns:
        The graph, and how many ops were filled in; the graph itself where there are none.
    """
    sizes = [value.bytes for value in graph.values]
    predicted = {}
    for op in graph.ops:
        known = fits.get(_C.op_class(op.name))
        if op.seconds == 0 and op.flops > 0 and not op.metadata_only and known is not None:
            predicted[op.index] = known.seconds(op.flops, moved_bytes(op, sizes))
    if not predicted:
        return graph, 0
    step = json.loads(graph.to_json())
    for index, seconds in predicted.items():
        step["ops"][index]["seconds"] = seconds
    return _C.Graph.from_json(json.dumps(step)), len(predicted)


__all__ = ["CLASSES", "ClassFit", "OpTime", "fill_in", "fit", "measure_ops", "times_of"]
