"""What would help where a step does not fit."""

from __future__ import annotations

from poet import _C
from poet._budgets import format_bytes, format_least_bytes
from poet._enums import Phase, ValueKind

_MUCH = 0.1  # of the budget


def advice(schedule: _C.Schedule) -> tuple[str, ...]:
    """What would help, best first; empty where there is a plan or the graph is not known.

    Args:
        schedule: any schedule.
    """
    graph = schedule.traced_graph
    if schedule.has_plan or graph is None:
        return ()
    found = []
    least = schedule.least_ram_budget
    if least is not None:
        found.append(f"give it {format_least_bytes(least)} ({least} bytes) or more")
    if schedule.least_energy_joules is not None:
        found.append(
            f"give it a battery of {schedule.least_energy_joules:.6g} J a step or more, or train "
            "for fewer steps"
        )
    if schedule.runtime_budget_seconds is not None:
        found.append("give it more time, or no deadline")
    device = schedule.device
    if device is not None and not device.has_store:
        found.append("let it page: the device has no store, or paging=False was asked for")
    if graph.base_bytes > _MUCH * (schedule.ram_budget or 0):
        base = format_bytes(graph.base_bytes)
        found.append(f"let go of tensors that the step does not touch: {base} of them are held")
    found += _about_the_op(schedule, graph)
    return tuple(found)


def _about_the_op(schedule: _C.Schedule, graph: _C.Graph) -> list[str]:
    # What an update makes and drops again is of that kind as well.
    state_bytes = sum(
        value.bytes
        for value in graph.values
        if value.kind == ValueKind.OPTIMIZER_STATE and value.death is None
    )
    found = []
    if state_bytes > _MUCH * (schedule.ram_budget or 0):
        found.append(f'optimizer="sgd" keeps no state ({format_bytes(state_bytes)} here)')
    at = schedule.least_ram_op
    if at is None or at >= len(graph):
        return found
    op = graph.ops[at]
    held = {v: graph.values[v] for v in (*op.inputs, *op.outputs)}
    own = sum(value.bytes for value in held.values()) + op.workspace_bytes
    activations = sum(v.bytes for v in held.values() if v.kind is ValueKind.ACTIVATION)
    if op.phase is Phase.OPTIMIZER:
        found.append(
            f"freeze layers with trainable=: the update by {op.name} holds {format_bytes(own)} of "
            "weights, gradients and state at once"
        )
    elif activations > own / 2:
        found.append(f"a smaller batch: {op.name} holds {format_bytes(own)} at once")
    else:
        found.append(
            f"freeze layers with trainable=, or a narrower layer: {op.name} holds "
            f"{format_bytes(own)} at once, most of it weights and their gradients"
        )
    return found


__all__ = ["advice"]
