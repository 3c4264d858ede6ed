"""Steps that begin alike and part: they begin under one plan and go on under another."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from own_process import in_a_process_of_its_own
from resident import Peak
from torch import nn

import poet

_WIDTH = 128


def _two_tasks() -> tuple[Callable[[int], float], list[nn.Parameter]]:
    """A step that trains the head of the task it is given, on top of what both share."""
    torch.manual_seed(0)

    def layers(count: int) -> list[nn.Module]:
        parts = (nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.LayerNorm(_WIDTH), nn.Dropout(0.1))
        return [part for _ in range(count) for part in parts]

    trunk = nn.Sequential(*layers(5))
    classes = nn.Sequential(*layers(3), nn.Linear(_WIDTH, 10))
    number = nn.Sequential(nn.Linear(_WIDTH, 2 * _WIDTH), nn.Tanh(), nn.Linear(2 * _WIDTH, 1))
    parameters = [*trunk.parameters(), *classes.parameters(), *number.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.01)
    x, y, z = torch.randn(512, _WIDTH), torch.randint(0, 10, (512,)), torch.randn(512, 1)

    def step(task: int) -> float:
        optimizer.zero_grad()
        shared = trunk(x)
        loss = F.cross_entropy(classes(shared), y) if task == 0 else F.mse_loss(number(shared), z)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, parameters


def _check_random_tasks(slack: float) -> None:
    tasks = random.Random(0).choices([0, 1], k=24)
    plain, expected = _two_tasks()
    torch.manual_seed(1)
    losses = [plain(task) for task in tasks]
    expected = [p.detach().clone() for p in expected]

    graph = poet.trace(_two_tasks()[0], 0)
    least = poet.solve(model=graph, ram_budget=graph.base_bytes, paging=False).least_ram_budget
    assert least is not None
    got, peaks = [], []
    own, parameters = _two_tasks()
    budget = int(least + slack * (graph.plain_peak_bytes() - least))
    step = poet.wrap(
        own, ram_budget=budget, background=False, paging=False, cache_dir=None, time_limit_s=5
    )
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", poet.BudgetWarning)
        for task in tasks:
            with Peak() as peak:
                peak.begin()
                is_planned = step.stats.plans == 2
                got.append(step(task))
            if is_planned:
                peaks.append(peak.bytes)
    assert all(schedule.has_plan for schedule in step.schedules)
    assert got == losses
    for one, other in zip(expected, parameters, strict=True):
        assert torch.equal(one, other)
    stats = step.stats
    assert stats.plan_switches >= 4
    assert stats.steps_over_budget == 0
    assert stats.departures <= 2
    assert len(peaks) >= 12
    assert max(peaks) <= budget


@pytest.mark.parametrize("slack", [0.1, 0.4])
def test_random_tasks_stay_inside_the_budget(slack: float) -> None:
    in_a_process_of_its_own(_check_random_tasks, slack)
