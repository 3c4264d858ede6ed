"""What would help where a step does not fit."""

from __future__ import annotations

from poet import _C
from poet._budgets import format_bytes, format_least_bytes, format_seconds
from poet._devices import HOST
from poet._enums import Phase, ValueKind
from poet._methods import methods

_MUCH = 0.1  # of the budget
_MOST_PERCENT = 100


def advice(schedule: _C.Schedule) -> tuple[str, ...]:
    """What would help, best first; empty where there is a plan or the graph is not known.

    Args:
        schedule: any schedule.
    """
    graph = schedule.traced_graph
    if schedule.has_plan or graph is None:
        return ()
    seconds = schedule.runtime_budget_seconds
    if seconds is not None and seconds < graph.plain_seconds:  # nothing is quicker than plain
        plain = format_seconds(graph.plain_seconds)
        return (f"give it more time, or no deadline: plain training takes {plain} a step",)
    if schedule.least_energy_joules is not None:
        found = [
            f"give it a battery of {schedule.least_energy_joules:.6g} J a step or more, or train "
            "for fewer steps"
        ]
        if (schedule.ram_budget or 0) < graph.plain_peak_bytes():
            found.append("give it more memory: what is not recomputed or moved takes no energy")
        return tuple(found)
    found = []
    budget = schedule.ram_budget
    if budget is not None and budget <= _MOST_PERCENT:
        found.append(f'for a share of the plain peak write "{budget}%": this was {budget} bytes')
    least = schedule.least_ram_budget
    if least is not None:
        found.append(f"give it {format_least_bytes(least)} ({least} bytes) or more")
    found += _about_other_plans(schedule, graph)
    if graph.base_bytes > _MUCH * (schedule.ram_budget or 0):
        base = format_bytes(graph.base_bytes)
        found.append(f"let go of tensors that the step does not touch: {base} of them are held")
    found += _about_the_op(schedule, graph)
    return tuple(found)


def _about_other_plans(schedule: _C.Schedule, graph: _C.Graph) -> list[str]:
    """What would allow plans that were not allowed, where the op in the way fits at all."""
    own = _bytes_at(schedule.least_ram_op, graph)
    if own is not None and graph.base_bytes + own > (schedule.ram_budget or 0):
        return []
    asked = vars(schedule).get("_asked", {})  # not known of a schedule that was loaded
    found = []
    if schedule.runtime_budget_seconds is not None:
        found.append("give it more time, or no deadline")
    device = schedule.device
    if schedule.status == "time_limit":
        found.append("give the search longer: time_limit_s")
    can = methods().get(schedule.method)
    if can is not None and not can.pages:
        return found
    if not asked.get("paging", True):
        found.append("let it page: paging=False was asked for")
    elif device is not None and not device.has_store:
        found.append(
            "let it page to a disk: paging=True"
            if device.name == HOST
            else "let it page: the device has no store"
        )
    elif device is not None and asked.get("away_between_steps") is False:
        state = sum(v.bytes for v in graph.values if _is_kept_state(v))
        if state > _MUCH * (schedule.ram_budget or 0):
            found.append(
                f"let optimizer state ({format_bytes(state)}) lie in the store between steps: "
                "away_between_steps=True, as poet.wrap has it"
            )
    return found


def _is_kept_state(value: _C.Value) -> bool:
    # What an update makes and drops again is of that kind as well.
    return value.kind == ValueKind.OPTIMIZER_STATE and value.death is None


def _bytes_at(op: int | None, graph: _C.Graph) -> int | None:
    """What the op reads, makes and works in; None where it is none of the step's."""
    if op is None or op >= len(graph):
        return None
    at = graph.ops[op]
    return sum(graph.values[v].bytes for v in {*at.inputs, *at.outputs}) + at.workspace_bytes


def _about_the_op(schedule: _C.Schedule, graph: _C.Graph) -> list[str]:
    state_bytes = sum(value.bytes for value in graph.values if _is_kept_state(value))
    found = []
    away = vars(schedule).get("_asked", {}).get("away_between_steps", False)
    if state_bytes > _MUCH * (schedule.ram_budget or 0) and not away:
        found.append(f'optimizer="sgd" keeps no state ({format_bytes(state_bytes)} here)')
    at = schedule.least_ram_op
    if at is None:
        return found
    while at < len(graph) and graph.ops[at].metadata_only:
        at += 1  # a view takes no room: it is for the op that it is made for
    weights = _of_weights(graph)
    if at >= len(graph):  # the end of the step
        stay = sum(graph.values[v].bytes for v in weights if graph.values[v].death is None)
        if stay > _MUCH * (schedule.ram_budget or 0):
            found.append(
                f"freeze layers with trainable=: {format_bytes(stay)} of weights, gradients and "
                "state outlive the step"
            )
        return found
    op = graph.ops[at]
    own = _bytes_at(at, graph) or 0
    if own < _MUCH * (schedule.ram_budget or 0):  # it is not what takes the room
        stay = sum(v.bytes for v in graph.values if v.producer is None and v.death is None)
        if stay > (schedule.ram_budget or 0) / 2 and not away:
            found.append(
                f"a smaller model, or more memory: {format_bytes(stay)} of weights, buffers, state "
                "and inputs are there all the time"
            )
        return found
    held = [graph.values[v] for v in {*op.inputs, *op.outputs}]
    of_weights = sum(v.bytes for v in held if v.index in weights)
    if op.phase is Phase.OPTIMIZER:
        found.append(
            f"freeze layers with trainable=: the update by {op.name} holds {format_bytes(own)} of "
            "weights, gradients and state at once"
        )
    elif of_weights <= own / 2:
        found.append(f"a smaller batch: {op.name} holds {format_bytes(own)} at once")
    else:
        found.append(
            f"freeze layers with trainable=, or a narrower layer: {op.name} holds "
            f"{format_bytes(own)} at once, most of it weights and their gradients"
        )
    return found


def _of_weights(graph: _C.Graph) -> set[int]:
    """Weights, their state and their gradients; an activation's gradient is none of them."""
    kept = {ValueKind.PARAMETER, ValueKind.OPTIMIZER_STATE, ValueKind.BUFFER}
    found = {v.index for v in graph.values if v.kind in kept}
    updated = {v for op in graph.ops if op.phase is Phase.OPTIMIZER for v in op.inputs}
    gradients = (v for v in graph.values if v.kind is ValueKind.GRADIENT)
    # What outlives the step is a parameter's, and so is what an update reads.
    found |= {v.index for v in gradients if v.death is None or v.index in updated}
    return found


__all__ = ["advice"]
