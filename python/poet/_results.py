"""Frozen records that the native module builds."""

from dataclasses import dataclass, field

from poet._enums import ActionKind, NodeKind, Phase


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a schedule does between two ops of the traced step.

    Attributes:
        at: index of the op next to which the action stands. The number of ops stands for the end
            of the step.
        when: "before" (ahead of op `at`) or "after" (right after its kernel, before anything dies).
        kind: what is done.
        value: index of the value that is freed, retained or moved; None for a recompute.
        ops: indices of the ops that a recompute runs again, in order; empty otherwise.
    """

    __module__ = "poet"

    at: int
    when: str
    kind: ActionKind
    value: int | None = None
    ops: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One thing that runs in a rewritten step (`Schedule.graph`).

    A copy is one piece of memory, or of the store, that holds one value from the node that makes
    it to the node that frees it; writes in place begin a new version within the same copy.

    Attributes:
        kind: what is done.
        op: index of the op of the traced step that runs; None for transfers and frees.
        at: number of ops that have run first by now; op k itself has k.
        phase: part of the step that it belongs to.
        name: name of the op; the kind for transfers and frees.
        planned: False for a free that the schedule does not ask for: a natural death, or a second
            copy that a recompute made.
        reads: (copy, version, index of the node that made it or None) of the data it reads.
        writes: (copy, version) of what it makes or writes into.
        frees: the copy that a free gives back; None otherwise.
        resident_bytes: bytes in memory while it runs; of a free, what remains after it.
    """

    __module__ = "poet"

    kind: NodeKind
    op: int | None
    at: int
    phase: Phase
    name: str
    planned: bool
    reads: tuple[tuple[int, int, int | None], ...]
    writes: tuple[tuple[int, int], ...]
    frees: int | None
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class SearchPoint:
    """A moment of the search for a schedule (`Schedule.history`, `poet.solve(on_progress=...)`).

    Attributes:
        seconds: since the solve began.
        value: of the best plan by then, in the objective's unit (joules, seconds or bytes); None
            before there is one.
        bound: the greatest lower bound by then, in the same unit; None before there is one.
    """

    __module__ = "poet"

    seconds: float
    value: float | None
    bound: float | None

    @property
    def gap(self) -> float | None:
        """(value - bound) / value; None while one of them is unknown."""
        if self.value is None or self.bound is None:
            return None
        return max(0.0, (self.value - self.bound) / self.value) if self.value > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a training step costs, by the simulator.

    Attributes:
        peak_bytes: most bytes resident at once, the running op's workspace included.
        peak_op: index of the op that runs (or before which a recompute runs) at the first moment
            of the peak; None for a graph without ops.
        makespan_seconds: wall time of the step.
        energy_joules: energy of the step under the device's power model.
        recompute_seconds: part of the makespan spent on running ops again.
        recomputed_ops: number of ops that run again.
        transfer_seconds: sum over page-outs and page-ins, whether they overlap with ops or not.
        hidden_seconds: part of the transfers that ran beside ops and beside each other.
        page_outs: number of page-outs.
        page_ins: number of page-ins.
        paged_out_bytes: bytes copied to the store.
        paged_in_bytes: bytes that came back from the store.
        wake_ups: number of gaps between two ops in which transfers start: each wakes the store up.
        resident_bytes: for each op, the bytes resident while it runs, its workspace included.
    """

    __module__ = "poet"

    peak_bytes: int
    peak_op: int | None
    makespan_seconds: float
    energy_joules: float
    recompute_seconds: float
    recomputed_ops: int
    transfer_seconds: float
    hidden_seconds: float
    page_outs: int
    page_ins: int
    paged_out_bytes: int
    paged_in_bytes: int
    wake_ups: int
    resident_bytes: tuple[int, ...] = field(repr=False)
