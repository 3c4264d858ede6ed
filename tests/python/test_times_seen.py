"""Times that were recorded on a busy machine: what steps in a plan take puts them right."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from resident import budget_at
from small_steps import chain_graph

import poet
from poet import _planning
from poet._times_seen import with_times_seen

_BUSY_SECONDS = 1.0  # many times what the whole step takes, on a loaded machine too


@pytest.fixture(scope="module")
def delay() -> Iterator[list[float]]:
    """For how long the operator torch.ops.poet_times_seen.copy sleeps."""
    delay = [_BUSY_SECONDS]
    library = torch.library.Library("poet_times_seen", "FRAGMENT")
    library.define("copy(Tensor x) -> Tensor")

    def copy(x: torch.Tensor) -> torch.Tensor:
        time.sleep(delay[0])
        return x.clone()

    library.impl("copy", copy, "CPU")
    yield delay
    library._destroy()


@pytest.fixture(autouse=True)
def patient_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is made again gets no more time than the first took: too little under load."""
    monkeypatch.setattr(_planning, "_SHORTEST_SEARCH_S", 30.0)


@pytest.fixture
def train_step(delay: list[float]) -> Callable[[], torch.Tensor]:
    """A step with that operator."""
    torch.manual_seed(0)
    weights = [torch.randn(64, 64, requires_grad=True) for _ in range(6)]
    x = torch.randn(512, 64)

    def train_step() -> torch.Tensor:
        y = torch.ops.poet_times_seen.copy(x)
        for w in weights:
            w.grad = None
            y = torch.tanh(y @ w)
        loss = y.square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for w in weights:
                assert w.grad is not None
                w.sub_(w.grad, alpha=0.01)
        return loss.detach()

    return train_step


def _wrapped(step: Callable[[], torch.Tensor], **options: Any) -> poet.WrappedStep:
    # Of what the step itself takes: beside it lie other tests' tensors.
    usual = {
        "ram_budget": budget_at(0.9, step),
        "background": False,
        "paging": False,
        "time_limit_s": 30,
    }
    return poet.wrap(step, **(usual | options))


def _train(step: poet.WrappedStep, delay: list[float], calls: int) -> None:
    """Until there is a plan the machine is busy; afterwards it is not."""
    for _ in range(calls):
        delay[0] = 0.0 if step.stats.plans else _BUSY_SECONDS
        step()


def test_times_that_are_far_too_long_are_put_right_and_kept(
    train_step: Callable[[], torch.Tensor], delay: list[float], tmp_path: Path
) -> None:
    with _wrapped(train_step, runtime_budget="60s", cache_dir=tmp_path) as step:
        _train(step, delay, 4)
        early = step.schedule
        assert early is not None
        assert early.makespan_seconds > _BUSY_SECONDS
        assert step.stats.plans_made_again == 0
        _train(step, delay, 10)
        late = step.schedule
        assert late is not None
        assert step.stats.plans_made_again == 1
        assert late.makespan_seconds < _BUSY_SECONDS
        assert step.stats.departures == 0
    with _wrapped(train_step, runtime_budget="60s", cache_dir=tmp_path) as step:
        step()
        step()
        assert step.stats.plans_from_cache == 1
        assert step.schedule is not None
        assert step.schedule.makespan_seconds == late.makespan_seconds


def test_training_does_not_stand_still_for_the_same_plan(
    train_step: Callable[[], torch.Tensor], delay: list[float]
) -> None:
    step = _wrapped(train_step, runtime_budget=2.0, cache_dir=None)
    _train(step, delay, 14)
    assert step.stats.followed_steps > 8
    assert step.stats.plans_made_again == 0


def test_a_deadline_that_seemed_too_short_is_kept_after_all(
    train_step: Callable[[], torch.Tensor], delay: list[float]
) -> None:
    step = _wrapped(train_step, runtime_budget=f"{_BUSY_SECONDS / 2}s", cache_dir=None)
    with pytest.warns(poet.BudgetWarning, match="keeps the memory budget alone"):
        _train(step, delay, 4)
    _train(step, delay, 10)
    assert step.schedule is not None
    assert step.schedule.makespan_seconds <= _BUSY_SECONDS / 2
    assert "within the memory budget alone" not in step.schedule.message


def test_only_times_far_below_the_recorded_ones_take_their_place() -> None:
    graph = chain_graph()
    none = [0.0] * 12
    assert with_times_seen(graph, (), ()) is None
    assert with_times_seen(graph, [0.00071] * 12, none) is None  # every op was recorded with 1 ms
    assert with_times_seen(graph, [0.0001] * 12, [0.00061] * 12) is None
    seen = with_times_seen(graph, [0.002, *[0.0001] * 11], [0.0001] * 12)
    assert seen is not None
    assert [op.seconds for op in seen.ops] == [0.001, *[0.0001] * 11]
    assert [op.host_seconds for op in seen.ops] == none  # none was recorded
    assert seen.signature == graph.signature
