"""What eager PyTorch offers a step trains to the same bits under poet: see docs/compatibility.md.

Every kind of compatibility_zoo.py is trained plainly twice, then under random plans in the
self-checking mode (harsher than any solved one: they free, recompute and page as the dice fall),
and then by poet.wrap at two budgets.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from compatibility_zoo import KINDS
from random_plans import random_plan
from zoo import Case, differences

import poet
from poet import _C
from poet._live import run_step
from poet._store import page_folder

_CALLS = {"accumulation": 12, "evaluation_between": 8, "data_dependent_branches": 8}
_DEVICE = _C.DeviceProfile.by_name("host")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
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


_plain_runs: dict[str, dict[str, Any]] = {}


def _plain(kind: str) -> dict[str, Any]:
    """After plain training; the bits are asked for where two plain runs agree."""
    if kind not in _plain_runs:
        first, second = _train(kind, lambda case: case.step), _train(kind, lambda case: case.step)
        assert differences(first, second) == [], "two plain runs differ: the kind is no test"
        _plain_runs[kind] = first
    return _plain_runs[kind]


@pytest.mark.parametrize("paging", [0.0, 0.1], ids=["recompute", "paging"])
@pytest.mark.parametrize("kind", KINDS)
def test_random_plans(kind: str, paging: float) -> None:
    session = _C.Session(verify=True)
    if paging:
        session.set_store(_page_dir())

    def stepper(case: Case) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            result, report = run_step(session, case.step, args, {})
            if report["newly_stable"]:
                graph = session.graph_of(report["variant"])
                plan = random_plan(graph, 3, 0.3, paging=paging, away_between=paging > 0)
                session.set_plan(report["variant"], plan, _DEVICE)
                session.move_out()
            return result

        return step

    assert differences(_plain(kind), _train(kind, stepper)) == []
    counters = session.counters()
    assert counters["failed_steps"] == 0


def _page_dir() -> str:
    try:
        return page_folder(None)
    except poet.ArgumentError as error:
        pytest.skip(f"no folder for paged values here: {error}")
