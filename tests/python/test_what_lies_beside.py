"""What lies beside a step without being touched by it counts in its budget."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from own_process import in_a_process_of_its_own
from resident import Peaks
from small_steps import square_step
from torch import nn

import poet

_WIDTH, _BATCH, _LAYERS, _FROZEN = 128, 512, 8, 3
# Of the tensors that a step makes from Python's numbers.
_FEW_BYTES = 4096


def _training() -> tuple[nn.Sequential, torch.optim.Optimizer, Callable[[torch.Tensor], float]]:
    torch.manual_seed(0)
    net = nn.Sequential(
        *[nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU()) for _ in range(_LAYERS)]
    )
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    step = square_step(net, optimizer)
    return net, optimizer, step


def _budget(slack: float) -> int:
    _, _, step = _training()
    x = torch.randn(_BATCH, _WIDTH)
    step(x)
    graph = poet.trace(step, x)
    peak = graph.plain_peak_bytes()
    least = poet.solve(graph=graph, ram_budget=1, paging=False, time_limit_s=3).least_ram_budget
    assert least is not None
    return int(least + slack * (peak - least))


def _wrap(
    step: Callable[[torch.Tensor], float], budget: int, paging: bool, online: bool = True
) -> poet.WrappedStep:
    return poet.wrap(
        step,
        ram_budget=budget,
        paging=paging,
        online=online,
        background=False,
        time_limit_s=2,
        cache_dir=None,
    )


def _freeze_layers(paging: bool) -> None:
    budget = _budget(0.4)
    calls, freeze_at = 12, 6
    followed: list[bool] = []
    predicted: list[int] = []
    losses: list[list[float]] = []
    with Peaks() as peaks:
        for wrapped in (True, False):
            net, _, plain = _training()
            step = _wrap(plain, budget, paging) if wrapped else plain
            generator = torch.Generator().manual_seed(1)
            losses.append([])
            for call in range(calls):
                x = torch.randn(_BATCH, _WIDTH, generator=generator)
                if call == freeze_at:
                    net[:_FROZEN].requires_grad_(False)
                if isinstance(step, poet.WrappedStep):
                    before = step.stats.followed_steps
                    peaks.mark()
                    losses[-1].append(step(x))
                    followed.append(step.stats.followed_steps > before)
                    schedule = step.schedule
                    predicted.append(0 if schedule is None else schedule.peak_bytes)
                else:
                    losses[-1].append(step(x))
            if isinstance(step, poet.WrappedStep):
                peaks.mark()  # what follows is no call
                stats = step.stats
                step.close()
    assert losses[0] == losses[1]
    assert sum(followed[freeze_at:]) >= 3, followed
    assert stats.steps_over_budget == 0
    for call in range(calls):
        if followed[call]:
            assert peaks.bytes[call] <= budget
            assert abs(peaks.bytes[call] - predicted[call]) <= 0.005 * budget + _FEW_BYTES


@pytest.mark.parametrize("paging", [False, True])
def test_the_state_of_layers_that_are_frozen_midway_counts(paging: bool) -> None:
    """The step is recorded from its departure on, and shows that state no more."""
    in_a_process_of_its_own(_freeze_layers, paging)


def _call_thrice(step: poet.WrappedStep, x: torch.Tensor) -> None:
    for _ in range(3):
        step(x)


def _keep_a_copy(online: bool) -> None:
    budget = _budget(0.2)
    net, optimizer, plain = _training()
    step = _wrap(plain, budget, paging=False, online=online)
    x = torch.randn(_BATCH, _WIDTH)
    while step.stats.followed_steps < 2:
        step(x)
        assert step.stats.steps < 10, step.stats
    assert step.stats.steps_over_budget == 0
    best = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    size = sum(t.nbytes for t in best[0].values())
    followed = step.stats.followed_steps
    with pytest.warns(poet.BudgetWarning) as told:
        _call_thrice(step, x)
    above = step.stats.steps_over_budget
    assert above > 0
    if online:  # the first leaves its plan, and nothing else can make room
        assert step.stats.departures == 1
    else:
        assert above == step.stats.followed_steps - followed
        assert any("more lie beside the step" in str(one.message) for one in told)
        assert 0 < step.stats.most_over_bytes <= 3 * size + _FEW_BYTES
    del best
    # Counted again after 1, 2, 4, ... calls: what is gone goes above nothing.
    for _ in range(40):
        step(x)
    now = step.stats.steps_over_budget
    for _ in range(10):
        step(x)
    assert step.stats.steps_over_budget == now
    step.close()


@pytest.mark.parametrize("online", [True, False])
def test_calls_beside_more_than_their_plan_knew_of_are_counted_and_told_of(online: bool) -> None:
    in_a_process_of_its_own(_keep_a_copy, online)


__all__: list[str] = []
