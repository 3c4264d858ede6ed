"""poet.pareto: what less memory costs."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from poet import _C
from poet._budgets import (
    ByteBudget,
    check_budgets,
    format_bytes,
    format_seconds,
    parse_bytes,
    positive_number,
    whole_number,
)
from poet._cache import open_cache
from poet._enums import Objective, Status
from poet._errors import ArgumentError
from poet._models import ModelRequest, is_paper
from poet._progress import RoundsBar
from poet._solve import (
    choose_device,
    finely_sliced,
    flag,
    on_device,
    sliced,
    solve,
    update_is_too_large,
)

_LEAST_SHARE = 0.2  # of the time, for the least budget where none is given
_FIRST_PASS_SHARE = 0.6  # of the rest
_MOST_POINTS = 1000
_OF_THE_MODEL = ("inputs", "loss", "optimizer", "trainable", "batch_size")
_OF_EACH_POINT = {"ram_budget", "starts", "slices", "on_progress", "accounting"}


def pareto(
    *,
    model: object = None,
    graph: _C.Graph | str | os.PathLike[str] | None = None,
    budgets: Sequence[ByteBudget] | None = None,
    points: int = 8,
    platform: str | os.PathLike[str] = "host",
    minimize: str = "energy",
    time_limit_s: float = 60,
    verbose: bool = False,
    **options: Any,
) -> tuple[_C.Schedule, ...]:
    """The trade-off curve: the best schedule for each of several memory budgets.

    The budgets are solved twice, downwards and upwards, each from the schedules of its neighbours;
    so no schedule costs more than one for less memory.

    Args:
        model: as for `poet.solve`; recorded once.
        graph: likewise.
        budgets: the budgets, each as `ram_budget` of `poet.solve`; None for `points` of them, in
            even steps from the least that a search finds to the peak of the plain step.
        points: number of budgets where none are given, from 2 on.
        platform: as for `poet.solve`.
        minimize: "energy" or "time".
        time_limit_s: seconds that the whole curve may take.
        verbose: shows the calls that are recorded, and a progress bar with the budget that it is
            at and what was found at the last one.
        **options: further arguments of `poet.solve`, which hold for every point (batch_size,
            inputs, runtime_budget, paging, solver ...).

    Returns:
        A schedule for each distinct budget, in ascending order of budgets. Those that cannot be met
        have no plan (`Schedule.has_plan`, `Schedule.least_ram_budget`).

    Raises:
        ArgumentError: an argument makes no sense.
        FormatError: the file named by `graph` holds no graph.
        PoetRuntimeError: the file cannot be read, or the solver program is missing.
    """
    begin = time.monotonic()
    limit = positive_number(time_limit_s, "time_limit_s", "seconds above 0")
    _check_options(options)
    flag(verbose, "verbose")
    if budgets is not None:  # nothing is recorded for budgets that make no sense
        check_budgets(budgets)
    request = ModelRequest(
        model,
        **{name: options.pop(name) for name in _OF_THE_MODEL if name in options},
        paper=is_paper(graph),
        verbose=verbose,
    )
    if request.paper:
        implied = {"count": "activations", "cost_model": "paper"}
        options |= {name: options.get(name) or word for name, word in implied.items()}
    device = choose_device(platform, options.get("cost_model"), request.paper)
    step = request.graph_or(graph, open_cache(options.get("cache_dir", True)))
    count = options.get("count")
    recorded = on_device(step, device, count, request.paper)
    may_slice = device.direct_kernels and count in (None, "all") and not request.paper
    if minimize == "memory":
        raise ArgumentError(
            'minimize: expected "energy" or "time": a curve of budgets shows what less memory '
            'costs; got "memory".'
        )

    def best(budget: ByteBudget, seconds: float, starts: Sequence[_C.Schedule]) -> _C.Schedule:
        return solve(
            graph=recorded,
            platform=platform,
            ram_budget=budget,
            minimize=minimize,
            time_limit_s=max(seconds, 0.1),
            slices=False,  # the curve's own, the same for every point
            starts=[start for start in starts if start.has_plan],
            **options,
        )

    if budgets is None:
        number = whole_number(points, "points", "a number of budgets", least=2, most=_MOST_POINTS)
        peak = recorded.plain_peak_bytes()
        # A budget of one byte is never met: what is reported instead is the least that was found.
        with RoundsBar(1, "poet: looking for the least budget", shown=verbose):
            closest = best(1, _LEAST_SHARE * limit, [])
            if may_slice and update_is_too_large(closest):
                cut = finely_sliced(step, closest.least_ram_budget or peak)
                recorded = on_device(cut, device, count)
                closest = best(1, _LEAST_SHARE * limit, [])
        least = closest.least_ram_budget or peak
        sizes = [least + (peak - least) * k // (number - 1) for k in range(number)]
    else:
        # Shares are of the whole step.
        sizes = [_bytes(budget, recorded) for budget in budgets]
        if may_slice:
            cut = sliced(step, min(sizes) - step.base_bytes, min(sizes))
            if cut is not step:
                recorded = on_device(cut, device, count)
    return _both_ways(sorted(set(sizes)), best, begin + limit, verbose)


def _both_ways(
    budgets: Sequence[int],
    best: Callable[[ByteBudget, float, Sequence[_C.Schedule]], _C.Schedule],
    end: float,
    verbose: bool,
) -> tuple[_C.Schedule, ...]:
    """The schedules of ascending budgets, from a pass downwards and one upwards."""
    curve: dict[int, _C.Schedule] = {}
    # What comes without a search has the time that the others need.
    first = _FIRST_PASS_SHARE * (end - time.monotonic()) / len(budgets)
    with RoundsBar(2 * len(budgets), "poet: solving", shown=verbose) as bar:
        above: list[_C.Schedule] = []
        for budget in reversed(budgets):
            bar.tell(_told(budget, above))
            curve[budget] = best(budget, first, above)
            above = [curve[budget]]
            bar.advance()
        # Upwards: a plan for less memory is one for more.
        for k, budget in enumerate(budgets):
            bar.tell(_told(budget, [curve[budgets[k - 1 if k else 0]]]))
            near = [curve[budgets[i]] for i in (k, k - 1, k + 1) if 0 <= i < len(budgets)]
            seconds = (end - time.monotonic()) / (len(budgets) - k)
            curve[budget] = best(budget, seconds, near)
            bar.advance()
    return tuple(curve[budget] for budget in budgets)


def _told(budget_bytes: int, found: Sequence[_C.Schedule]) -> str:
    """The budget that is solved, and what came of the last one."""
    text = f"at {format_bytes(budget_bytes)}"
    for schedule in found:
        text += f"; {format_bytes(schedule.ram_budget or 0)}: {schedule.status}"
        if schedule.has_plan:
            is_time = schedule.objective == Objective.TIME
            joules = f"{schedule.energy_joules:.4g} J"
            text += f", {format_seconds(schedule.makespan_seconds) if is_time else joules}"
        if schedule.status is Status.FEASIBLE and schedule.gap is not None:
            text += f", gap {100 * schedule.gap:.2f} %"
    return text


def _check_options(options: dict[str, Any]) -> None:
    known = set(inspect.signature(solve).parameters) - _OF_EACH_POINT - {"of_the_original"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise ArgumentError(
            f"{unknown[0]}: expected an argument of poet.solve that holds for every point of the "
            f"curve; known are {', '.join(sorted(known))}."
        )


def _bytes(budget: ByteBudget, graph: _C.Graph) -> int:
    return parse_bytes(budget, plain_peak_bytes=graph.plain_peak_bytes, name="budgets")
