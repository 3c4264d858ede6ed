"""A schedule as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from poet import _C
from poet._budgets import format_bytes, format_least_bytes, format_seconds
from poet._enums import ActionKind, Objective, Status
from poet._models import graph_on

_COLUMNS = ("", "planned", "budget", "plain")
_WORTH_TELLING = 0.01  # of the plain peak
_SLOW = 2.0  # times plain training


def summary(
    schedule: _C.Schedule,
    graph: _C.Graph | None = None,
    device: _C.DeviceProfile | None = None,
) -> str:
    """What was asked, what came out, and what plain training costs where the graph is known.

    Args:
        schedule: any schedule, with a plan or without.
        graph: the graph it was made for; None takes `schedule.traced_graph`.
        device: likewise; None takes `schedule.device`.

    Returns:
        Lines of text.

    Raises:
        ScheduleError: the schedule was made for another graph.
    """
    graph = graph if graph is not None else schedule.traced_graph
    if graph is not None:
        schedule.check_against(graph)
    lines = [_headline(schedule)]
    if schedule.message:
        lines.append(f"  {schedule.message}")
    elif schedule.status is Status.TIME_LIMIT:
        lines.append("  no plan was found: allow more time, more memory or a later deadline")
    device = device if device is not None else schedule.device
    if graph is not None and device is not None:
        graph = graph_on(graph, device, schedule)
    lines += _table(_rows(schedule, graph, device))
    if schedule.has_plan:
        lines.append(f"  peak at {_op_name(schedule.peak_op, graph)}")
        lines.append(f"  {_actions(schedule)}")
        lines += _transfers(schedule, graph, device)
    if graph is not None and graph.base_bytes > _WORTH_TELLING * graph.plain_peak_bytes():
        base = format_bytes(graph.base_bytes)
        lines.append(f"  {base} of each belong to tensors that no op of the step touches")
    if schedule.least_ram_budget is not None:
        least = format_least_bytes(schedule.least_ram_budget)
        least += f" ({schedule.least_ram_budget} bytes)"
        lines.append(f"  least budget {least}, set by {_op_name(schedule.least_ram_op, graph)}")
    lines += [f"  what would help: {each}" for each in schedule.advice]
    lines += _slowness(schedule, graph)
    lines.append(f"  solved in {format_seconds(schedule.solve_seconds)}")
    return "\n".join(lines)


def curve_table(curve: Sequence[_C.Schedule]) -> str:
    """What `poet.pareto` found, a line for each budget.

    Args:
        curve: what it returned.

    Returns:
        Lines of text, under a line of names.
    """
    unit = {Objective.ENERGY: "J", Objective.TIME: "s"}.get(curve[0].objective, "bytes")
    names = ("budget (bytes)", "status", "energy", "step time", "at least", "gap")
    lines: list[tuple[str, ...]] = [(*names, "least budget known (bytes)")]
    # That of a plan for more memory may be less than what a search without one has found.
    needed = [schedule.peak_bytes for schedule in curve if schedule.has_plan]
    for schedule in curve:
        energy = time = gap = least = "-"
        bound = "-" if schedule.bound is None else f"{schedule.bound:.6g} {unit}"
        if schedule.has_plan:
            energy, time = f"{schedule.energy_joules:.6g} J", f"{schedule.makespan_seconds:.6g} s"
        else:
            own = schedule.least_ram_budget
            known = min(needed if own is None else [*needed, own], default=None)
            least = "-" if known is None else str(known)
        if schedule.gap is not None:
            gap = format_gap(schedule.gap, schedule.bound_scope)
        budget = "-" if schedule.ram_budget is None else str(schedule.ram_budget)
        lines.append((budget, str(schedule.status), energy, time, bound, gap, least))
    if all(line[-1] == "-" for line in lines[1:]):
        lines = [line[:-1] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _slowness(schedule: _C.Schedule, graph: _C.Graph | None) -> list[str]:
    """What least energy or least memory may cost in time, which nobody limited."""
    if (
        graph is None
        or not schedule.has_plan
        or schedule.runtime_budget_seconds is not None
        or schedule.objective == Objective.TIME
        or graph.plain_seconds <= 0  # nobody has measured it
        or schedule.makespan_seconds <= _SLOW * graph.plain_seconds
    ):
        return []
    times = schedule.makespan_seconds / graph.plain_seconds
    return [
        f"  the step takes {times:.1f} times as long as plain training, and nothing limits it: "
        'runtime_budget=1.5, say, or minimize="time"'
    ]


def _headline(schedule: _C.Schedule) -> str:
    text = f"{schedule.status} schedule of {_count(schedule.num_ops, 'op')}"
    text += f" (method {schedule.method}, minimize {schedule.objective})"
    if schedule.status is Status.FEASIBLE and schedule.gap is not None:
        text += f", gap {format_gap(schedule.gap, schedule.bound_scope)}"
    return text


def format_gap(gap: float, scope: str) -> str:
    """A gap for people, and which plans its bound speaks of where that is not all of them."""
    return f"{100 * gap:.2f} %" + (" over the candidates" if scope == "candidates" else "")


def _rows(
    schedule: _C.Schedule, graph: _C.Graph | None, device: _C.DeviceProfile | None
) -> list[tuple[str, str, str, str]]:
    memory = ["peak memory", "-", "-", "-"]
    time = ["step time", "-", "-", "-"]
    energy = ["energy", "-", "-", "-"]
    plain_peak = graph.plain_peak_bytes() if graph is not None else 0
    plain_seconds = graph.plain_seconds if graph is not None else 0.0
    plain_joules = 0.0
    if graph is not None and device is not None:
        plain_joules = _C.simulate(graph, None, device).energy_joules
        energy[3] = f"{plain_joules:.4g} J"
    if schedule.has_plan:
        memory[1] = format_bytes(schedule.peak_bytes) + _share(schedule.peak_bytes, plain_peak)
        time[1] = format_seconds(schedule.makespan_seconds)
        time[1] += _share(schedule.makespan_seconds, plain_seconds)
        energy[1] = f"{schedule.energy_joules:.4g} J"
        energy[1] += _share(schedule.energy_joules, plain_joules)
    if schedule.ram_budget is not None:
        memory[2] = format_bytes(schedule.ram_budget)
    if schedule.runtime_budget_seconds is not None:
        time[2] = format_seconds(schedule.runtime_budget_seconds)
    if schedule.energy_budget_joules is not None:
        energy[2] = f"{schedule.energy_budget_joules:.4g} J"
    if graph is not None:
        memory[3] = format_bytes(plain_peak)
        time[3] = format_seconds(plain_seconds)
    rows = (memory, time, energy)
    return [(row[0], row[1], row[2], row[3]) for row in rows if set(row[1:]) != {"-"}]


def _table(rows: list[tuple[str, str, str, str]]) -> list[str]:
    """Columns that nobody filled in are left out."""
    shown = [
        column
        for column in range(len(_COLUMNS))
        if column == 0 or any(row[column] != "-" for row in rows)
    ]
    if not rows:
        return []
    cells = [_COLUMNS, *rows]
    widths = {column: max(len(row[column]) for row in cells) for column in shown}
    return [
        "  " + "  ".join(row[column].ljust(widths[column]) for column in shown).rstrip()
        for row in cells
    ]


def _share(value: float, plain: float) -> str:
    return f" ({100 * value / plain:.1f} % of plain)" if plain else ""


def _op_name(op: int | None, graph: _C.Graph | None) -> str:
    if op is None:
        return "no op"
    if graph is None:
        return f"op {op}"
    return f"op {op} ({graph.ops[op].name})" if op < len(graph) else "the end of the step"


def _actions(schedule: _C.Schedule) -> str:
    counts = dict.fromkeys(ActionKind, 0)
    replayed = 0
    for action in schedule.actions:
        counts[action.kind] += 1
        replayed += len(action.ops)
    text = f"{_count(counts[ActionKind.FREE], 'free')}, "
    text += f"{_count(counts[ActionKind.RECOMPUTE], 'recompute')} ({_count(replayed, 'op')}), "
    text += _count(counts[ActionKind.RETAIN], "retain")
    return text


def _transfers(
    schedule: _C.Schedule, graph: _C.Graph | None, device: _C.DeviceProfile | None
) -> list[str]:
    """Page-outs and page-ins, their bytes where the graph is known, their time where the device."""
    if not schedule.page_outs and not schedule.page_ins and not schedule.away_between_steps:
        return []
    outs, ins = _count(schedule.page_outs, "page-out"), _count(schedule.page_ins, "page-in")
    if graph is not None:
        moved = {
            kind: sum(
                graph.values[action.value].bytes
                for action in schedule.actions
                if action.kind is kind and action.value is not None
            )
            for kind in (ActionKind.PAGE_OUT, ActionKind.PAGE_IN)
        }
        outs += f" ({format_bytes(moved[ActionKind.PAGE_OUT])})"
        ins += f" ({format_bytes(moved[ActionKind.PAGE_IN])})"
    text = f"  {outs}, {ins}"
    if graph is not None and device is not None and device.has_store:
        simulated = _C.simulate(graph, schedule, device)
        text += f": {format_seconds(simulated.transfer_seconds)} of transfers"
        if simulated.hidden_seconds > 0:
            text += f", {format_seconds(simulated.hidden_seconds)} of them beside ops"
    lines = [text]
    if schedule.away_between_steps:
        away = _count(len(schedule.away_between_steps), "value")
        if graph is not None:
            size = sum(graph.values[v].bytes for v in schedule.away_between_steps)
            away += f" ({format_bytes(size)})"
        lines.append(f"  {away} in the store between steps")
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
