"""poet.pareto: what less memory costs."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Sequence
from typing import Any

from poet import _C
from poet._budgets import (
    ByteBudget,
    check_budgets,
    parse_bytes,
    positive_number,
    whole_number,
)
from poet._cache import open_cache
from poet._errors import ArgumentError
from poet._models import ModelRequest, is_paper
from poet._progress import RoundsBar
from poet._solve import (
    choose_device,
    finely_sliced,
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
        verbose: shows a progress bar.
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
    request = ModelRequest(
        model,
        **{name: options.pop(name) for name in _OF_THE_MODEL if name in options},
        paper=is_paper(graph),
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
        closest = best(1, _LEAST_SHARE * limit, [])
        if may_slice and update_is_too_large(closest):
            cut = finely_sliced(step, closest.least_ram_budget or peak)
            recorded = on_device(cut, device, count)
            closest = best(1, _LEAST_SHARE * limit, [])
        least = closest.least_ram_budget or peak
        budgets = [least + (peak - least) * k // (number - 1) for k in range(number)]
    else:
        check_budgets(budgets)
        sizes = [_bytes(budget, recorded) for budget in budgets]  # shares are of the whole step
        budgets = sizes
        if may_slice:
            cut = sliced(step, min(sizes) - step.base_bytes, min(sizes))
            if cut is not step:
                recorded = on_device(cut, device, count)
    curve: dict[int, _C.Schedule] = {}

    def left() -> float:
        return limit - (time.monotonic() - begin)

    # Downwards; what comes without a search has the time that the others need.
    asked = list(dict.fromkeys(budgets))
    asked.sort(key=lambda budget: _bytes(budget, recorded), reverse=True)
    first = _FIRST_PASS_SHARE * left() / len(asked)
    with RoundsBar(2 * len(asked), "poet: solving", shown=verbose) as bar:
        for budget in asked:
            above = list(curve.values())[-1:]
            curve[_bytes(budget, recorded)] = best(budget, first, above)
            bar.advance()
        # Upwards: a plan for less memory is one for more.
        ascending = sorted(curve)
        for k, budget_bytes in enumerate(ascending):
            near = [curve[ascending[i]] for i in (k, k - 1, k + 1) if 0 <= i < len(ascending)]
            seconds = left() / (len(ascending) - k)
            curve[budget_bytes] = best(budget_bytes, seconds, near)
            bar.advance()
    return tuple(curve[budget_bytes] for budget_bytes in ascending)


def _check_options(options: dict[str, Any]) -> None:
    known = set(inspect.signature(solve).parameters) - _OF_EACH_POINT - {"of_the_original"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise ArgumentError(
            f"{unknown[0]}: expected an argument of poet.solve that holds for every point of the "
            f"curve; known are {', '.join(sorted(known))}."
        )


def _bytes(budget: ByteBudget, graph: _C.Graph) -> int:
    return parse_bytes(budget, plain_peak_bytes=graph.plain_peak_bytes)
