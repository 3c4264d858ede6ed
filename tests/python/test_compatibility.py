"""What eager PyTorch offers a step trains to the same bits under poet: see docs/compatibility.md.

Every kind of compatibility_zoo.py is trained plainly twice, then under random plans in the
self-checking mode (harsher than any solved one: they free, recompute and page as the dice fall),
and then by poet.wrap at two budgets.
"""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Callable, Iterator
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

_CALLS = {"accumulation": 12, "evaluation_between": 8, "data_dependent_branches": 8}
_QUICK: dict[str, Any] = {"time_limit_s": 0.3, "cache_dir": None}
# Memory that no operator shows (garbage in cycles, copies of storages) is in no plan: the figures
# of the self-checking mode do not hold.
_UNSEEN = {"nested_tensors", "saved_in_the_middle"}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    _C.tap_for_good()  # the self-checking mode must see every block that may be released
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


@pytest.mark.parametrize(
    "paging",
    [pytest.param(0.0, id="recompute", marks=_nightly), pytest.param(0.1, id="paging")],
)
@pytest.mark.parametrize("kind", KINDS)
def test_random_plans(kind: str, paging: float) -> None:
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

    assert differences(_plain(kind), _train(kind, stepper)) == []
    counters = session.counters()
    assert counters["failed_steps"] == 0


@pytest.mark.parametrize("share", [pytest.param(0.5, marks=_nightly), 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_wrapped(kind: str, share: float) -> None:
    """By poet.wrap, from the first call to the last; steps without a plan train plainly."""
    probe = _build(kind)
    wrapped_once = poet.wrap(probe.step, ram_budget="100%", background=False, **_QUICK)
    wrapped_once(*probe.batches(0))
    graph = wrapped_once.graph
    assert graph is not None
    budget = slack_budget(graph, share)
    del probe, wrapped_once, graph
    gc.collect()
    wrapped: list[poet.WrappedStep] = []

    def stepper(case: Case) -> Callable[..., Any]:
        options = _QUICK | {"paging": share < 0.5}
        wrapped.append(poet.wrap(case.step, ram_budget=budget, background=False, **options))
        return wrapped[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", poet.BudgetWarning)  # not every step has a plan
        warnings.simplefilter("ignore", poet.StoreWarning)
        assert differences(_plain(kind), _train(kind, stepper)) == []
    assert wrapped[0].stats.failed_steps == 0


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
