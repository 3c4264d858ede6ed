"""Frozen records that the native module builds."""

from dataclasses import dataclass

from poet._enums import ActionKind


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
        resident_bytes: for each op, the bytes resident while it runs, its workspace included.
    """

    __module__ = "poet"

    peak_bytes: int
    peak_op: int | None
    makespan_seconds: float
    energy_joules: float
    recompute_seconds: float
    recomputed_ops: int
    resident_bytes: tuple[int, ...]
