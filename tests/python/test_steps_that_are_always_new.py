"""Steps that are another stream of operators at each call: recording them tells nothing."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import poet

CALLS = 400
_MOST_RECORDED = 60


def _replay_memory_step(*, repeats: bool) -> Callable[[], float]:
    """As deep Q-learning draws its batches: some samples twice, at each call others.

    Args:
        repeats: every call draws the same samples.
    """
    torch.manual_seed(0)
    draw = random.Random(0)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    memory = [(torch.randn(1, 4), torch.randn(1)) for _ in range(20)]

    def step() -> float:
        batch = memory[:16] if repeats else draw.choices(memory, k=16)
        states: Tensor = torch.cat([state for state, _ in batch])
        rewards = torch.cat([reward for _, reward in batch])
        optimizer.zero_grad()
        loss = (net(states).amax(1) - rewards).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def test_they_are_recorded_now_and_then_only_and_the_warning_says_why() -> None:
    plain = _replay_memory_step(repeats=False)
    expected = [plain() for _ in range(CALLS)]
    step = poet.wrap(
        _replay_memory_step(repeats=False), ram_budget="90%", paging=False, cache_dir=None
    )
    with step, pytest.warns(poet.BudgetWarning, match="a plan for few calls.*replay memory"):
        assert [step() for _ in range(CALLS)] == expected
    stats = step.stats
    assert stats.steps == CALLS
    assert stats.traced_steps + stats.followed_steps + stats.unrecorded_steps == CALLS
    assert stats.traced_steps < _MOST_RECORDED


def test_steps_that_come_again_are_no_such_steps() -> None:
    words = {"ram_budget": "100%", "paging": False, "cache_dir": None, "background": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error", poet.BudgetWarning)
        with poet.wrap(_replay_memory_step(repeats=True), **words) as step:  # type: ignore[arg-type]
            for _ in range(CALLS):
                step()
    assert step.stats.followed_steps > CALLS - 10


def test_other_shapes_end_the_rest() -> None:
    # Each length is met again, though only after 39 others.
    torch.manual_seed(0)
    net = nn.Linear(8, 8)

    def train(x: Tensor) -> None:
        net.zero_grad()
        net(x).square().sum().backward()

    words = {"ram_budget": "100%", "paging": False, "cache_dir": None, "background": False}
    with poet.wrap(train, **words) as step, warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.simplefilter("ignore", poet.BudgetWarning)
        for call in range(160):
            step(torch.ones(1 + call % 40, 8))
    assert step.stats.unrecorded_steps == 0
    assert step.stats.followed_steps >= 40
