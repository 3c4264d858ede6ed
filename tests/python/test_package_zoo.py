"""Models of packages train to the same bits under poet, and follow a plan: docs/package-models.md.

Each model of package_zoo.py is trained plainly twice, and then by poet.wrap at slack 0.5, or just
above the least budget that has a plan where that is more. Every night at slack 0.3, from
a page file, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from package_zoo import MODELS, in_turn, seeded
from zoo import Case, differences, slack_budget

import poet

pytestmark = pytest.mark.usefixtures("old_objects_aside", "one_thread")

_CALLS = 8
_SECONDS = (2.0, 60.0)  # for a plan; the second where a busy machine found none in the first

TURNS_OF_ITS_OWN = True  # below: a sixth of the models


def _numbers(result: Any) -> Any:
    """What a step returned, bit by bit."""
    return result.tolist() if isinstance(result, torch.Tensor) else result


def _train(case: Case, step: Any) -> dict[str, Any]:
    # As numbers of Python: tensors that are kept would outgrow plan after plan.
    results = [_numbers(step(*case.batches(i))) for i in range(_CALLS)]
    return {f"result {i}": r for i, r in enumerate(results)} | case.state()


def _plain(name: str) -> dict[str, Any]:
    """After plain training, without what it was trained in."""
    case = seeded(name)
    return _train(case, case.step)


def _budget(name: str, seconds: float, share: float, *, paging: bool) -> tuple[int, str]:
    """At that slack, or the least that has a plan; and which of the two."""
    probe = seeded(name)
    graph = poet.trace(probe.step, *probe.batches(0))
    wanted = slack_budget(graph, share) + 4096  # a little more may lie in memory by then
    found = poet.solve(graph=graph, ram_budget=wanted, paging=paging, time_limit_s=seconds)
    least = found.least_ram_budget
    if not found.has_plan and least is not None:
        return max(wanted, least + (graph.plain_peak_bytes() - least) // 10), "least"
    return wanted, f"slack {share}"


def _wrapped(
    name: str, seconds: float, share: float, *, paging: bool
) -> tuple[dict[str, Any], poet.StepStats, str]:
    """After training by poet.wrap, what it says of it, and which budget it had."""
    budget, which = _budget(name, seconds, share, paging=paging)
    case = seeded(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", poet.BudgetWarning)
        words: dict[str, Any] = {"background": False, "paging": paging, "cache_dir": None}
        step = poet.wrap(case.step, ram_budget=budget, time_limit_s=seconds, **words)
        return _train(case, step), step.stats, which


def _checked(
    name: str, wanted: dict[str, Any], share: float, *, paging: bool
) -> tuple[poet.StepStats, str]:
    """Trains to the same bits, and follows a plan where the model has one; which budget it had."""
    for seconds in _SECONDS:
        found, stats, which = _wrapped(name, seconds, share, paging=paging)
        assert differences(wanted, found) == []
        assert stats.failed_steps == 0
        if stats.followed_steps or MODELS[name].unplanned:
            break
    if MODELS[name].unplanned:
        assert stats.followed_steps == 0, "it does follow a plan: take its reason away"
    else:
        assert stats.followed_steps >= 1, (stats.message, stats.last_departure)
        moved = stats.planned_recomputes + (stats.planned_page_ins if paging else 0)
        assert moved >= 1, "the plan is that of plain training"
    return stats, which


@pytest.mark.parametrize(
    "name", [n if n in in_turn() else pytest.param(n, marks=pytest.mark.nightly) for n in MODELS]
)
def test_a_model_of_a_package_trains_to_the_same_bits(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    wanted = _plain(name)
    assert differences(wanted, _plain(name)) == [], "two plain runs differ: the model is no test"
    stats, which = _checked(name, wanted, 0.5, paging=False)
    record_property("budget", which)
    record_property("followed", stats.followed_steps)
    record_property("recomputes", stats.planned_recomputes)


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_a_package_trains_to_the_same_bits_from_a_page_file(name: str) -> None:
    _checked(name, _plain(name), 0.3, paging=True)


def test_the_page_of_models_names_every_one() -> None:
    """docs/package-models.md is written by tools/package_models.py: `make compatibility`."""
    page = (Path(__file__).parents[2] / "docs" / "package-models.md").read_text()
    for name, model in MODELS.items():
        assert f"| {name} | {model.package} " in page, f"{name}: run `make compatibility`"
    assert "| no |" not in page
