"""Capuchin's swap-ins that come late in a step begin earlier in the following ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_store_watch import believe_in_an_impossible_disk, training

import poet
from poet import _swap_feedback


def test_swaps_that_a_step_waited_for_move_and_the_bits_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every swap is late where the plan believes that the store takes no time."""
    folder = believe_in_an_impossible_disk(monkeypatch)
    steps = 10
    plain, expected = training()
    losses = [float(plain()) for _ in range(steps)]
    graph = poet.trace(training()[0])
    own = graph.plain_peak_bytes() - graph.base_bytes  # other tests' tensors are in the base
    words: dict[str, Any] = {
        "ram_budget": graph.plain_peak_bytes() - own // 3,
        "method": "capuchin",
        "recompute": False,
        "page_dir": folder,
        "cache_dir": None,
        "time_limit_s": 10,
    }
    train_step, net = training()
    plans = []
    with poet.wrap(train_step, **words) as step:
        for loss in losses:
            assert float(step()) == loss
            step.wait_for_plan()
            if step.schedule is not None and step.schedule not in plans:
                plans.append(step.schedule)
        stats = step.stats
    assert stats.swap_feedbacks >= 1, stats
    assert stats.departures == 0, stats.last_departure
    assert stats.steps_over_budget == 0
    assert len(plans) >= 2
    for plan in plans:
        assert plan.method == "capuchin"
        assert plan.peak_bytes <= words["ram_budget"]
    for ours, theirs in zip(net.parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_feedback_ends_and_leaves_the_first_step_of_a_plan_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Session:
        asked = 0

        def awaited_swaps(self) -> list[tuple[int, int, float]]:
            self.asked += 1
            return [(0, 1, 1.0)]

    monkeypatch.setattr(_swap_feedback._C, "with_earlier_swaps", lambda plan, *_: plan)
    session: Any = Session()
    anything: Any = SimpleNamespace(makespan_seconds=40.0)
    feedback = _swap_feedback.SwapFeedback()
    moved = [
        feedback.earlier(session, anything, anything, anything) is not None for _ in range(100)
    ]
    assert moved == [False] + 20 * [True] + 79 * [False]
    assert session.asked == 20


def test_a_step_that_hardly_waits_goes_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_swap_feedback._C, "with_earlier_swaps", lambda plan, *_: plan)
    session: Any = SimpleNamespace(awaited_swaps=lambda: [(0, 1, 0.1), (2, 3, 0.2)])
    feedback = _swap_feedback.SwapFeedback()
    long: Any = SimpleNamespace(makespan_seconds=20.0)
    short: Any = SimpleNamespace(makespan_seconds=10.0)
    moved = [
        feedback.earlier(session, plan, long, long) is not None
        for plan in (short, long, long, short)
    ]
    assert moved == [False, False, False, True]  # the first step in a plan is never looked at
