"""What eager PyTorch offers a step trains to the same bits under poet: see docs/compatibility.md.

Every kind of compatibility_zoo.py is trained plainly twice, then under random plans in the
self-checking mode (harsher than any solved one: they free, recompute and page as the dice fall),
and then by poet.wrap at two budgets, where memory is measured.
"""

from __future__ import annotations

import functools
import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compatibility_zoo import (
    ABOVE_IN_A_PLAN,
    FEATURES,
    KINDS,
    LATER_START,
    LIMITS,
    PLAIN_RUNS_DIFFER,
    PROGRAMS,
    UNMEASURED,
    UNPLANNED,
    UNSEEN,
)
from inside_budget import Watched
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
# For a plan: the first try is enough nearly always. Whether the budget has one is known after the
# second; then it is raised.
_SECONDS = (0.3, 5.0, 20.0, 20.0)


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
    session = _C.Session(verify=kind not in UNSEEN)
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
    counters = _check_random_plans(kind, _plain(kind), paging).counters()
    assert counters["followed_steps"] > 0, counters["last_departure"]
    assert counters["evictions"] > 0


_OFTEN = {"batch_statistics", "complex_numbers", "gpt2", "residual_net", "unet_3d"}


@pytest.mark.parametrize(
    "kind", [k if k in _OFTEN else pytest.param(k, marks=_nightly) for k in KINDS]
)
def test_random_plans_on_two_threads(kind: str) -> None:
    if kind in PLAIN_RUNS_DIFFER:
        pytest.skip(PLAIN_RUNS_DIFFER[kind])
    torch.set_num_threads(2)
    wanted, again = (_train(kind, lambda case: case.step) for _ in range(2))
    assert differences(wanted, again) == [], "two plain runs differ: the kind is no test"
    session = _check_random_plans(kind, wanted, 0.1)
    assert session.counters()["followed_steps"] >= 1


class _Tried:
    """What poet.wrap made of a kind within a budget."""

    def __init__(self, step: poet.WrappedStep, budget: int) -> None:
        self.stats = stats = step.stats
        self.away = stats.evictions + stats.online_evictions
        found = [s for s in step.schedules if s.least_ram_budget is not None]
        self.has_no_plan = any(s.status == "infeasible" for s in found)
        # One that has a plan: the least, and a tenth of what is left.
        self.more = budget
        if found:
            least = found[0].least_ram_budget or 0
            peak = max(least, step.graph.plain_peak_bytes()) if step.graph else least
            self.more = max(budget, least + (peak - least) // 10)


def _wrapped(
    kind: str, budget: int, seconds: float, *, paging: bool, strict: bool | None = None
) -> _Tried:
    """After training to the same bits by poet.wrap; above the budget where it is impossible."""
    words = _QUICK | {"paging": paging, "time_limit_s": seconds, "strict": strict}
    results: list[Any] = []
    try:
        with Watched(measured=kind not in UNMEASURED | LATER_START) as watched:
            case = _build(kind)
            step = poet.wrap(case.step, ram_budget=budget, **words)
            for i in range(_CALLS.get(kind, 6)):
                results.append(watched.call(step, case.batches(i)))
    except poet.BudgetError:
        assert strict is None and step.stats.steps == 1
        _check_no_trace(kind, case)
        del case, step
        return _wrapped(kind, budget, seconds, paging=paging, strict=False)
    got = {f"result {i}": r for i, r in enumerate(results)} | case.state()
    assert differences(_plain(kind), got) == []
    assert step.stats.failed_steps == 0
    watched.check(budget, planned=kind not in ABOVE_IN_A_PLAN)
    return _Tried(step, budget)


def _check_no_trace(kind: str, case: Case) -> None:
    """Of a first call that raised BudgetError; gradients are as they were then."""
    left = case.state()
    assert [d for d in differences(_build(kind).state(), left) if not d.endswith(".grad")] == []


@pytest.mark.parametrize("share", [pytest.param(0.5, marks=_nightly), 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_wrapped(kind: str, share: float, record_property: Callable[[str, object], None]) -> None:
    """By poet.wrap, from the first call to the last; without a plan under the online policy.

    Where there is no plan within the budget they train once more within one that has.
    """
    _plain(kind)  # lies beside the steps to come
    probe = _build(kind)
    wrapped_once = poet.wrap(probe.step, ram_budget="100%", time_limit_s=0.3, **_QUICK)
    wrapped_once(*probe.batches(0))
    graph = wrapped_once.graph
    assert graph is not None
    slack = budget = slack_budget(graph, share)
    del probe, wrapped_once, graph
    away = 0
    for seconds in _SECONDS:
        gc.collect()
        tried = _wrapped(kind, budget, seconds, paging=share < 0.5)
        away += tried.away
        if tried.stats.followed_steps or kind in UNPLANNED:
            break
        if tried.has_no_plan or seconds > _SECONDS[0]:
            budget = tried.more
    record_property("slack", "met" if budget == slack else "has no plan")
    stats = tried.stats
    assert (stats.followed_steps > 0) != (kind in UNPLANNED), (stats.message, stats.last_departure)
    assert away > 0, "nothing left memory: the kind is no test"


def _page_dir() -> str:
    try:
        return page_folder(None)
    except poet.ArgumentError as error:
        pytest.skip(f"no folder for paged values here: {error}")


_PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def test_the_page_of_what_works_names_every_feature_and_limit() -> None:
    """docs/compatibility.md is written by tools/compatibility.py: `make compatibility`."""
    page = _PAGE.read_text()
    for line in [*FEATURES, *PROGRAMS]:
        assert f"| {line} |" in page, f"{line!r} is missing: run `make compatibility`"
    limits = page.split("## Known limits\n")[1].split("\n## ")[0]
    assert re.findall("^- (.*)$", limits, re.MULTILINE) == list(LIMITS)


def test_every_cell_of_the_page_has_been_run_and_is_a_yes() -> None:
    tables = _PAGE.read_text().split("## Skipped, and why")[0]
    rows = [line for line in tables.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(FEATURES) + len(PROGRAMS)
    for row in rows:
        name, *cells = row.strip("| ").split(" | ")
        if name == "what":
            continue
        for cell in cells[:1] if name in PROGRAMS else cells:  # then come the tests' names
            for part in cell.split("; "):
                assert re.fullmatch(r"(\w+: )?yes(, above the slack)?", part), row
