"""What eager PyTorch offers a step trains to the same bits under poet: see docs/compatibility.md.

Every kind of compatibility_zoo.py is trained plainly twice, then under random plans in the
self-checking mode (harsher than any solved one: they free, recompute and page as the dice fall),
and then by poet.wrap at two budgets.
"""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compatibility_zoo import FEATURES, KINDS, LIMITS
from random_plans import STORE_DEVICE, random_plan
from zoo import Case, differences, slack_budget

import poet
from poet import _C
from poet._live import run_step
from poet._store import page_folder

# Until each of their streams of operators has come twice, and once more.
_CALLS = {
    "accumulation": 12,
    "data_dependent_branches": 8,
    "evaluation_between": 8,
    "lbfgs": 14,
    "other_shapes_every_step": 14,  # five shapes in turn
}
_QUICK: dict[str, Any] = {"cache_dir": None, "background": False}
_SECONDS = (0.3, 0.3, 20.0)  # for a plan; the last where a busy machine found none before
# Kinds that follow no plan of poet.wrap, and why: docs/compatibility.md says so too.
UNPLANNED: dict[str, str] = {}
# Memory that no operator shows (garbage in cycles, copies of storages) is in no plan: the figures
# of the self-checking mode do not hold.
_UNSEEN = {"nested_tensors", "saved_in_the_middle"}


pytestmark = pytest.mark.usefixtures("old_objects_aside", "one_thread_and_tapped")


def _build(kind: str) -> Case:
    torch.manual_seed(0)
    case = KINDS[kind]()
    torch.manual_seed(1)
    return case


def _train(kind: str, stepper: Callable[[Case], Callable[..., Any]]) -> dict[str, Any]:
    """Results of every call and the state at the end."""
    case = _build(kind)
    step = stepper(case)
    results = [step(*case.batches(i)) for i in range(_CALLS.get(kind, 6))]
    return {f"result {i}": r for i, r in enumerate(results)} | case.state()


@functools.cache
def _plain(kind: str) -> dict[str, Any]:
    """After plain training; the bits are asked for where two plain runs agree."""
    first, second = _train(kind, lambda case: case.step), _train(kind, lambda case: case.step)
    assert differences(first, second) == [], "two plain runs differ: the kind is no test"
    return first


_nightly = pytest.mark.nightly


def _check_random_plans(kind: str, wanted: dict[str, Any], paging: float) -> _C.Session:
    session = _C.Session(verify=kind not in _UNSEEN)
    if paging:
        session.set_store(_page_dir())

    def stepper(case: Case) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            result, report = run_step(session, case.step, args, {})
            if report["newly_stable"]:
                graph = session.graph_of(report["variant"])
                plan = random_plan(graph, 3, 0.3, paging=paging, away_between=paging > 0)
                session.set_plan(report["variant"], plan, STORE_DEVICE)
                session.move_out()
            return result

        return step

    assert differences(wanted, _train(kind, stepper)) == []
    assert session.counters()["failed_steps"] == 0
    return session


@pytest.mark.parametrize(
    "paging",
    [pytest.param(0.0, id="recompute", marks=_nightly), pytest.param(0.1, id="paging")],
)
@pytest.mark.parametrize("kind", KINDS)
def test_random_plans(kind: str, paging: float) -> None:
    _check_random_plans(kind, _plain(kind), paging)


_SHARED_OUT = (
    "attention_and_transformer",
    "batch_statistics",
    "complex_numbers",
    "gpt2",
    "residual_net",
    "unet_3d",
)


@pytest.mark.parametrize("kind", _SHARED_OUT)
def test_random_plans_at_two_threads(kind: str) -> None:
    torch.set_num_threads(2)
    wanted, again = (_train(kind, lambda case: case.step) for _ in range(2))
    assert differences(wanted, again) == [], "two plain runs differ: the kind is no test"
    session = _check_random_plans(kind, wanted, 0.1)
    assert session.counters()["followed_steps"] >= 1


def _wrapped(kind: str, budget: int, seconds: float, *, paging: bool) -> poet.WrappedStep:
    """After training to the same bits by poet.wrap; above the budget where it is impossible."""
    words = _QUICK | {"paging": paging, "time_limit_s": seconds}
    cases: list[Case] = []
    wrapped: list[poet.WrappedStep] = []

    def stepper(case: Case) -> Callable[..., Any]:
        cases.append(case)
        wrapped.append(poet.wrap(case.step, ram_budget=budget, **words))
        return wrapped[-1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", poet.BudgetWarning)  # not every step has a plan
        warnings.simplefilter("ignore", poet.StoreWarning)
        try:
            got = _train(kind, stepper)
        except poet.BudgetError:
            assert wrapped[0].stats.steps == 1
            _check_no_trace(kind, cases.pop())
            words["strict"] = False
            got = _train(kind, stepper)
    assert differences(_plain(kind), got) == []
    assert wrapped[-1].stats.failed_steps == 0
    return wrapped[-1]


def _check_no_trace(kind: str, case: Case) -> None:
    """Of a first call that raised BudgetError; gradients are as they were then."""
    left = case.state()
    assert [d for d in differences(_build(kind).state(), left) if not d.endswith(".grad")] == []


def _above_the_least(step: poet.WrappedStep, budget: int) -> int:
    """A budget that has a plan where that one had none: the least, and a tenth of what is left."""
    for schedule in step.schedules:
        least = schedule.least_ram_budget
        if least is not None:
            peak = max(least, step.graph.plain_peak_bytes()) if step.graph else least
            return max(budget, least + (peak - least) // 10)
    return budget


@pytest.mark.parametrize("share", [pytest.param(0.5, marks=_nightly), 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_wrapped(kind: str, share: float) -> None:
    """By poet.wrap, from the first call to the last; without a plan under the online policy.

    Where there is no plan within the budget they train once more within one that has.
    """
    _plain(kind)  # lies beside the steps to come
    probe = _build(kind)
    wrapped_once = poet.wrap(probe.step, ram_budget="100%", time_limit_s=0.3, **_QUICK)
    wrapped_once(*probe.batches(0))
    graph = wrapped_once.graph
    assert graph is not None
    budget = slack_budget(graph, share)
    del probe, wrapped_once, graph
    gc.collect()
    for seconds in _SECONDS:
        step = _wrapped(kind, budget, seconds, paging=share < 0.5)
        stats = step.stats
        if stats.followed_steps or kind in UNPLANNED:
            break
        budget = _above_the_least(step, budget)
    assert (stats.followed_steps > 0) != (kind in UNPLANNED), (stats.message, stats.last_departure)


def _page_dir() -> str:
    try:
        return page_folder(None)
    except poet.ArgumentError as error:
        pytest.skip(f"no folder for paged values here: {error}")


def test_the_page_of_what_works_names_every_feature_and_limit() -> None:
    """docs/compatibility.md is written by tools/compatibility.py: `make compatibility`."""
    page = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
    for line in [*FEATURES, *LIMITS]:
        assert line in page, f"{line!r} is missing: run `make compatibility`"
    assert "| no |" not in page
