"""When each node of a schedule runs: for pictures and traces. The simulator rules on costs."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from poet import _C
from poet._enums import NodeKind, Phase
from poet._errors import ArgumentError
from poet._results import Node

_TRANSFERS = (NodeKind.PAGE_IN, NodeKind.PAGE_OUT)


@dataclass(frozen=True, slots=True)
class Span:
    """One node on the clock of the step.

    Attributes:
        kind: what runs.
        name: of the op; of a transfer, the value and its size stand in `detail`.
        op: index of the op of the traced step, or of the one next to which a transfer stands.
        phase: part of the step.
        start: seconds from the step's start.
        seconds: how long it takes; 0 for views and frees.
        at: the step's own clock when it comes to it; a transfer beside the step may start later.
        resident_bytes: bytes in memory from then on.
        waited: seconds that the step waited for transfers before it.
    """

    kind: NodeKind
    name: str
    op: int
    phase: Phase
    start: float
    seconds: float
    at: float
    resident_bytes: int
    waited: float


@dataclass(frozen=True)
class Timeline:
    """A schedule on the clock.

    Attributes:
        spans: in the order in which they begin to be carried out.
        seconds: of the whole step; the simulator's makespan.
        graph: the traced step.
        device: what the seconds are of.
    """

    spans: tuple[Span, ...]
    seconds: float
    graph: _C.Graph
    device: _C.DeviceProfile


def timeline(
    schedule: _C.Schedule,
    graph: _C.Graph | None = None,
    device: _C.DeviceProfile | None = None,
) -> Timeline:
    """Puts the nodes of a schedule on the clock, by the rules of Note [Time of transfers].

    Args:
        schedule: with a plan, or without one for the plain step.
        graph: the step it was made for; None for the one that it knows.
        device: what it runs on; None for the one that it knows.

    Raises:
        ArgumentError: the schedule pages, and nobody knows how fast the store is.
        ScheduleError: the schedule was made for another graph.
    """
    known = graph if graph is not None else schedule.traced_graph
    if known is None:
        raise ArgumentError(
            "graph: this schedule was loaded and does not know its step. Pass the graph that it "
            "was made for."
        )
    device = device or schedule.device or _C.DeviceProfile.by_name("host")
    if (schedule.page_ins or schedule.page_outs) and not device.has_store:
        raise ArgumentError(
            "platform: this schedule pages, and was loaded without its device. Name the device "
            "that it was made for."
        )
    return _Clock(schedule, known, device).run()


class _Clock:
    """Transfers run on channels beside the step, or block it where the device has none."""

    def __init__(self, schedule: _C.Schedule, graph: _C.Graph, device: _C.DeviceProfile) -> None:
        self._graph = graph
        self._device = device
        self._rewritten = schedule.graph(graph)
        self._bytes = _bytes_of_copies(self._rewritten, graph)
        self._channels = [0.0] * device.dma_channels
        self._now = 0.0
        self._ready: dict[int, float] = {}  # by copy: a transfer into it is done
        self._busy: dict[int, float] = {}  # likewise, out of it

    def run(self) -> Timeline:
        spans = [self._span(node) for node in self._rewritten.nodes]
        end = max([self._now, *self._channels])
        return Timeline(tuple(spans), end, self._graph, self._device)

    def _span(self, node: Node) -> Span:
        before = self._now
        self._now = max([self._now, *self._waits(node)])
        waited = self._now - before
        at = self._now
        if node.kind in _TRANSFERS:
            start, seconds = self._transfer(node)
        else:
            start, seconds = self._now, self._seconds(node)
            self._now += seconds
        return Span(
            kind=node.kind,
            name=node.name,
            op=node.op if node.op is not None else min(node.at, max(len(self._graph) - 1, 0)),
            phase=node.phase,
            start=start,
            seconds=seconds,
            at=at,
            resident_bytes=node.resident_bytes,
            waited=waited,
        )

    def _waits(self, node: Node) -> list[float]:
        times = [self._ready.get(copy, 0.0) for copy, _, _ in node.reads]
        if node.kind in (NodeKind.OP, NodeKind.RECOMPUTE):
            times += [
                max(self._busy.get(copy, 0.0), self._ready.get(copy, 0.0))
                for copy, _ in node.writes
            ]
        if node.frees is not None:
            times += [self._ready.get(node.frees, 0.0), self._busy.get(node.frees, 0.0)]
        return times

    def _seconds(self, node: Node) -> float:
        if node.op is None:
            return 0.0
        seconds = self._graph.ops[node.op].seconds
        if node.kind is NodeKind.OP:
            return seconds
        return self._device.replay_factor * seconds + self._device.replay_fixed_seconds

    def _transfer(self, node: Node) -> tuple[float, float]:
        device = self._device
        size = self._bytes[node.reads[0][0]]
        if node.kind is NodeKind.PAGE_IN:
            seconds = device.store_read_latency_seconds + size / device.store_read_rate
        else:
            seconds = device.store_write_latency_seconds + size / device.store_write_rate
        start = self._now
        if self._channels:
            start = max(start, heapq.heappop(self._channels))
            heapq.heappush(self._channels, start + seconds)
        else:
            self._now += seconds
        for copy, _, _ in node.reads:
            self._busy[copy] = max(self._busy.get(copy, 0.0), start + seconds)
        for copy, _ in node.writes:
            self._ready[copy] = start + seconds
        return start, seconds


def _bytes_of_copies(rewritten: _C.RewrittenGraph, graph: _C.Graph) -> list[int]:
    import json  # noqa: PLC0415

    copies = json.loads(rewritten.to_json())["copies"]
    return [graph.values[copy["value"]].bytes for copy in copies]


__all__ = ["Span", "Timeline", "timeline"]
