"""Steps that begin alike and part: they begin under one plan and go on under another."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from own_process import in_a_process_of_its_own
from resident import Peaks
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


def _check_random_tasks(slack: float, paging: bool) -> None:
    tasks = random.Random(0).choices([0, 1], k=24)
    plain, expected = _two_tasks()
    torch.manual_seed(1)
    losses = [plain(task) for task in tasks]
    expected = [p.detach().clone() for p in expected]

    graph = poet.trace(_two_tasks()[0], 0)
    least = poet.solve(model=graph, ram_budget=graph.base_bytes, paging=False).least_ram_budget
    assert least is not None
    got, planned = [], []
    with Peaks() as peaks:
        own, parameters = _two_tasks()
        budget = int(least + slack * (graph.plain_peak_bytes() - least))
        step = poet.wrap(
            own, ram_budget=budget, background=False, paging=paging, cache_dir=None, time_limit_s=5
        )
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error", poet.BudgetWarning)
            for task in tasks:
                planned.append(step.stats.plans == 2)
                peaks.mark()
                got.append(step(task))
    assert all(schedule.has_plan for schedule in step.schedules)
    assert got == losses
    for one, other in zip(expected, parameters, strict=True):
        assert torch.equal(one, other)
    stats = step.stats
    assert stats.steps_over_budget == 0
    in_plans = [peak for peak, known in zip(peaks.bytes, planned, strict=True) if known]
    assert len(in_plans) >= 12
    assert max(in_plans) <= budget, (budget, peaks.bytes, planned)
    if not paging:  # else a joined plan may not fit: such calls leave the plan and are policed
        assert stats.plan_switches >= 4, stats
        assert stats.departures <= 2, stats


# Measured times have a say in the plans, and so in whether a joined one fits.
@pytest.mark.parametrize(("slack", "paging"), [(0.1, False), (0.4, False), (0.4, True)])
def test_random_tasks_stay_inside_the_budget(slack: float, paging: bool) -> None:
    in_a_process_of_its_own(_check_random_tasks, slack, paging)


def _accumulating(calls_an_update: int = 3) -> tuple[Callable[[], float], list[nn.Parameter]]:
    """Gradients are made, added to twice, and used."""
    torch.manual_seed(0)
    parts = [m for _ in range(6) for m in (nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256))]
    net = nn.Sequential(*parts, nn.Linear(256, 4))
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    x, y = torch.randn(512, 256), torch.randint(0, 4, (512,))
    calls = 0

    def step() -> float:
        nonlocal calls
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        calls += 1
        if calls % calls_an_update == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    return step, list(net.parameters())


def _check_accumulation(slack: float, paging: bool) -> None:
    plain, expected = _accumulating()
    losses = [plain() for _ in range(18)]
    graph = poet.trace(_accumulating(1)[0])
    budget = int(graph.base_bytes + slack * (graph.plain_peak_bytes() - graph.base_bytes))
    got, plans = [], []
    with Peaks() as peaks:
        own, parameters = _accumulating()
        step = poet.wrap(
            own, ram_budget=budget, background=False, paging=paging, cache_dir=None, time_limit_s=5
        )
        for _ in losses:
            plans.append(step.stats.plans)
            peaks.mark()
            got.append(step())
    assert got == losses
    for one, other in zip(expected, parameters, strict=True):
        assert torch.equal(one, other)
    assert all(schedule.has_plan for schedule in step.schedules)
    planned = [peak for peak, known in zip(peaks.bytes, plans, strict=True) if known == max(plans)]
    assert len(planned) >= 6
    assert step.stats.steps_over_budget == 0
    assert max(planned) <= budget, [peak / budget for peak in peaks.bytes]


@pytest.mark.parametrize(("slack", "paging"), [(0.9, False), (0.6, True)])
def test_accumulation_stays_inside_the_budget(slack: float, paging: bool) -> None:
    in_a_process_of_its_own(_check_accumulation, slack, paging)


def _check_a_batch_that_comes_after_the_parting() -> None:
    """Calls of the second kind are recorded where they leave the plan of the first, before an
    operator has shown the batch, which is one of several that lie in memory."""
    kinds = [0] * 5 + [1, 0, 0, 1, 0, 1, 1, 0, 1, 1]
    with Peaks() as peaks:
        torch.manual_seed(0)
        net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(_WIDTH, _WIDTH), nn.Tanh())])
        optimizer = torch.optim.SGD(net.parameters(), 0.05)
        mean = torch.zeros(16)
        batches = [torch.randn(1024, _WIDTH) for _ in range(4)]

        def train(x: torch.Tensor, decays: bool) -> torch.Tensor:
            optimizer.zero_grad()
            if decays:
                mean.mul_(0.9)
            loss = net(x * 1.0).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        graph = poet.trace(train, batches[0], False)
        budget = int(graph.base_bytes + 0.45 * (graph.plain_peak_bytes() - graph.base_bytes))
        step = poet.wrap(
            train, ram_budget=budget, paging=True, background=False, cache_dir=None, time_limit_s=5
        )
        plans, departures = [], []
        for call, kind in enumerate(kinds):
            plans.append(step.stats.plans)
            peaks.mark()
            step(batches[call % 4], bool(kind))
            departures.append(step.stats.departures)
    assert departures[-1] >= 1, "the second kind was recorded from the first one's plan"
    assert departures[-1] == departures[-5]
    planned = [peak for peak, known in zip(peaks.bytes, plans, strict=True) if known == 2]
    assert len(planned) >= 4
    assert step.stats.planned_page_outs > 0
    assert max(planned) <= budget


def test_a_batch_that_comes_after_the_parting_is_found() -> None:
    in_a_process_of_its_own(_check_a_batch_that_comes_after_the_parting)
