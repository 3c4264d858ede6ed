"""Pictures of schedules with matplotlib (an optional package)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from poet import _C
from poet._enums import NodeKind, Status
from poet._errors import ArgumentError
from poet._outputs import check_picture, load_figure
from poet._timeline import Timeline, timeline

# Colours that people with any colour vision tell apart (Okabe and Ito, 2008).
_COLOURS = {
    NodeKind.OP: ("compute", "#0072B2"),
    NodeKind.RECOMPUTE: ("recompute", "#D55E00"),
    NodeKind.PAGE_OUT: ("page-out", "#009E73"),
    NodeKind.PAGE_IN: ("page-in", "#CC79A7"),
}
_BUDGET_COLOUR = "#D62728"
_LEAST_WIDTH = 1 / 600  # of the axis: what is shorter is drawn that wide, to be seen at all
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def plot(
    schedule: _C.Schedule,
    path: str | os.PathLike[str] | None = None,
    graph: _C.Graph | None = None,
    device: _C.DeviceProfile | None = None,
) -> Any:
    """Draws ops against time, as Figure 2 of POET's paper does, and memory against time.

    Args:
        schedule: with a plan.
        path: file to write (.png, .svg, .pdf); None for none.
        graph: the step it was made for; None for the one that it knows.
        device: what it runs on; None for the one that it knows.

    Returns:
        The matplotlib.figure.Figure.

    Raises:
        ArgumentError: the schedule has no plan, its graph or device is not known, or no picture can
            be written to `path`.
        PoetRuntimeError: matplotlib is not installed.
    """
    if not schedule.has_plan:
        raise ArgumentError(
            f"schedule: expected one with a plan to draw; this one is {schedule.status}. "
            "print(schedule) says why."
        )
    figure = _figure(path, height=7.0)
    line = timeline(schedule, graph, device)
    above, below = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 2), "hspace": 0.08}
    )
    _draw_ops(above, line)
    _draw_memory(below, line, schedule)
    above.set_title(_title(schedule, line), fontsize=10, loc="left")
    return _written(figure, path)


def plot_pareto(
    schedules: Sequence[_C.Schedule], path: str | os.PathLike[str] | None = None
) -> Any:
    """Draws what less memory costs.

    Args:
        schedules: what `poet.pareto` returned; budgets without a plan are marked at the bottom.
        path: file to write; None for none.

    Returns:
        The matplotlib.figure.Figure.

    Raises:
        ArgumentError: none of them has a plan, or no picture can be written to `path`.
        PoetRuntimeError: matplotlib is not installed.
    """
    planned = [each for each in schedules if each.has_plan]
    if not planned:
        raise ArgumentError("schedules: expected one with a plan at least, to draw a curve.")
    figure = _figure(path, height=4.5)
    axes = figure.subplots()
    objective = planned[0].objective
    scale, unit = _unit(max(each.ram_budget or each.peak_bytes for each in planned))
    budgets = [(each.ram_budget or each.peak_bytes) / scale for each in planned]
    costs = [_cost(each) for each in planned]
    # In steps: up to the next budget that was solved, this plan is the best that is known.
    axes.plot(
        budgets,
        costs,
        "o-",
        drawstyle="steps-post",
        color=_COLOURS[NodeKind.OP][1],
        label="best plan found",
    )
    _mark_budgets_without_plan(axes, [each for each in schedules if not each.has_plan], scale)
    bounded = [
        (budget, each.bound_all)
        for budget, each in zip(budgets, planned, strict=True)
        if each.bound_all is not None
    ]
    if bounded:
        # Not joined: between two budgets a bound is not on the line through theirs.
        axes.plot(*zip(*bounded, strict=True), "_", color="0.5", label="no plan costs less")
    axes.set_title(_pareto_title(planned), fontsize=10, loc="left")
    axes.set_xlabel(f"memory budget ({unit})")
    axes.set_ylabel("energy of a step (J)" if objective == "energy" else "time of a step (s)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return _written(figure, path)


def _mark_budgets_without_plan(axes: Any, unplanned: Sequence[_C.Schedule], scale: float) -> None:
    for is_proven, label in ((True, "no plan exists"), (False, "no plan found in time")):
        budgets = [
            each.ram_budget / scale
            for each in unplanned
            if each.ram_budget and (each.status is Status.INFEASIBLE) is is_proven
        ]
        if budgets:
            axes.plot(
                budgets,
                [0.02] * len(budgets),
                "x" if is_proven else "1",
                color=_BUDGET_COLOUR,
                transform=axes.get_xaxis_transform(),
                label=label,
            )


def _pareto_title(planned: Sequence[_C.Schedule]) -> str:
    least, most = planned[0], planned[-1]
    what = "energy" if least.objective == "energy" else "time"
    memory = 1 - (least.ram_budget or least.peak_bytes) / (most.ram_budget or most.peak_bytes)
    more = _cost(least) / _cost(most) - 1 if _cost(most) > 0 else 0.0
    return f"What less memory costs: {memory:.0%} less of it for {more:.1%} more {what} a step"


def _cost(schedule: _C.Schedule) -> float:
    return schedule.energy_joules if schedule.objective == "energy" else schedule.makespan_seconds


def _figure(path: str | os.PathLike[str] | None, *, height: float) -> Any:
    if path is not None:
        check_picture(path)
    return load_figure()(figsize=(10, height), dpi=120)


def _written(figure: Any, path: str | os.PathLike[str] | None) -> Any:
    if path is not None:
        figure.savefig(path, bbox_inches="tight")
    return figure


def _draw_ops(axes: Any, line: Timeline) -> None:
    """One rectangle a span; together in one collection a kind, so that 10,000 ops are quick."""
    least = line.seconds * _LEAST_WIDTH
    count = max(len(line.graph), 1)
    row = max(1.0, count / 120)  # in ops: thin rows would vanish
    for kind, (label, colour) in _COLOURS.items():
        every = [span for span in line.spans if span.kind is kind]
        spans = [span for span in every if span.seconds > 0]
        if not spans:
            continue
        # Transfers are short on most devices: they are drawn taller, to be found.
        height = row if kind in (NodeKind.OP, NodeKind.RECOMPUTE) else 3 * row
        _rectangles(
            axes,
            [(span.start, span.op, max(span.seconds, least)) for span in spans],
            height,
            colour,
            f"{label} ({len(every)})",  # those without a width as well
        )
    axes.set_xlim(0, max(line.seconds, least) * 1.005 or 1)
    axes.set_ylim(-1.5 * row, count + 0.5 * row)
    axes.set_ylabel("op of the step")
    _mark_phases(axes, line)
    axes.legend(loc="upper left", frameon=False, fontsize=9)


def _rectangles(
    axes: Any, boxes: list[tuple[float, int, float]], height: float, colour: str, label: str
) -> None:
    from matplotlib.collections import PolyCollection  # noqa: PLC0415  optional

    corners = [
        ((x, y - height / 2), (x + w, y - height / 2), (x + w, y + height / 2), (x, y + height / 2))
        for x, y, w in boxes
    ]
    axes.add_collection(PolyCollection(corners, facecolors=colour, linewidths=0, label=label))


def _mark_phases(axes: Any, line: Timeline) -> None:
    """A line where the backward pass and the optimizer begin."""
    seen = set()
    for index, op in enumerate(line.graph.ops):
        if op.phase in seen:
            continue
        seen.add(op.phase)
        if index:
            axes.axhline(index, color="0.75", linewidth=0.8, zorder=0)
        axes.annotate(
            str(op.phase),
            (1.0, index),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=8,
            color="0.4",
            va="bottom",
        )


def _draw_memory(axes: Any, line: Timeline, schedule: _C.Schedule) -> None:
    top = max([span.resident_bytes for span in line.spans] + [schedule.ram_budget or 0, 1])
    plain = _plain(line)
    scale, unit = _unit(max(top, max(plain[1], default=0)))
    times = [span.at for span in line.spans] + [line.seconds]
    held = [span.resident_bytes / scale for span in line.spans]
    held.append(held[-1] if held else 0.0)
    axes.fill_between(times, held, step="post", color="#56B4E9", alpha=0.5, linewidth=0)
    axes.step(
        times, held, where="post", color=_COLOURS[NodeKind.OP][1], linewidth=0.9, label="plan"
    )
    axes.step(
        plain[0],
        [size / scale for size in plain[1]],
        where="post",
        color="0.55",
        linewidth=0.9,
        linestyle="--",
        label="plain step",
    )
    if schedule.ram_budget is not None and schedule.ram_budget < 4 * top:
        budget = schedule.ram_budget / scale
        axes.axhline(budget, color=_BUDGET_COLOUR, linewidth=1.2, label="budget")
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"memory ({unit})")
    axes.set_xlabel(f"time on {line.device.name} (s)")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, frameon=False, fontsize=9)


def _plain(line: Timeline) -> tuple[list[float], list[int]]:
    simulated = _C.simulate(line.graph, None, line.device)
    times, now = [], 0.0
    for op in line.graph.ops:
        times.append(now)
        now += op.seconds
    return [*times, now], [*simulated.resident_bytes, *simulated.resident_bytes[-1:]]


def _unit(largest: int) -> tuple[int, str]:
    for scale, unit in _UNITS:
        if largest >= 2 * scale:
            return scale, unit
    return 1, "bytes"


def _title(schedule: _C.Schedule, line: Timeline) -> str:
    text = f"{schedule.status} plan of {schedule.num_ops} ops on {line.device.name}: "
    scale, unit = _unit(schedule.peak_bytes)
    text += f"peak {schedule.peak_bytes / scale:.4g} {unit}, {schedule.makespan_seconds:.4g} s"
    return text + f", {schedule.energy_joules:.4g} J"


__all__ = ["plot", "plot_pareto"]
