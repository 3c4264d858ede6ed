"""The plan of a step, lent to the same step with other sizes (csrc/schedule/other_sizes.h)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from own_process import in_a_process_of_its_own
from resident import Peaks, budget_at
from torch import nn

import poet

_WIDTH, _LAYERS = 64, 4
_LENT = "the plan of a step of other sizes"


def _encoder() -> tuple[Callable[[torch.Tensor], float], list[nn.Parameter]]:
    """A step over sequences of any length."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, _LAYERS)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step(x: torch.Tensor) -> float:
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, list(model.parameters())


def _sequences(lengths: list[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, n, _WIDTH, generator=generator) for n in lengths]


def _budget(length: int) -> int:
    step, _ = _encoder()
    (x,) = _sequences([length])
    step(x)
    return budget_at(0.7, step, x)


def _check_lengths(paging: bool) -> None:
    lengths = [64] * 5 + [48, 48, 40, 40, 64, 56, 56]
    batches = _sequences(lengths)
    plain, expected = _encoder()
    torch.manual_seed(2)
    losses = [plain(x) for x in batches]

    budget = _budget(64)
    del batches
    got, followed = [], []
    with Peaks() as peaks:
        batches = _sequences(lengths)  # a batch may be paged, too
        own, parameters = _encoder()
        step = poet.wrap(
            own, ram_budget=budget, paging=paging, background=False, cache_dir=None, time_limit_s=6
        )
        torch.manual_seed(2)
        for x in batches:
            before = step.stats.followed_steps
            peaks.mark()
            got.append(step(x))
            followed.append(step.stats.followed_steps > before)
    assert got == losses
    for mine, theirs in zip(parameters, expected, strict=True):
        assert torch.equal(mine, theirs)
    second_calls = [6, 8, 11]
    stats = step.stats
    assert all(followed[call] for call in second_calls), (followed, stats)
    assert stats.plans_of_other_sizes == 3
    assert _LENT not in [s.message for s in step.schedules], "each was planned for by then"
    in_plans = [peak for peak, known in zip(peaks.bytes, followed, strict=True) if known]
    assert max(in_plans) <= budget, (budget, peaks.bytes, followed)


@pytest.mark.parametrize("paging", [False, True])
def test_another_length_follows_the_plan_of_the_longest_from_its_second_call(paging: bool) -> None:
    in_a_process_of_its_own(_check_lengths, paging)


def _check_longer(paging: bool) -> None:
    """No plan is an upper bound for them: their first calls have the online policy alone."""
    lengths = [48] * 5 + [56, 64, 72, 64, 72]
    plain, expected = _encoder()
    torch.manual_seed(2)
    losses = [plain(x) for x in _sequences(lengths)]

    budget = _budget(56)
    got, followed, evicted = [], [], []
    with Peaks() as peaks:
        batches = _sequences(lengths)
        own, parameters = _encoder()
        step = poet.wrap(
            own, ram_budget=budget, paging=paging, background=False, cache_dir=None, time_limit_s=2
        )
        torch.manual_seed(2)
        for x in batches:
            before = step.stats
            peaks.mark()
            got.append(step(x))
            followed.append(step.stats.followed_steps > before.followed_steps)
            evicted.append(step.stats.online_evictions > before.online_evictions)
    assert got == losses
    for mine, theirs in zip(parameters, expected, strict=True):
        assert torch.equal(mine, theirs)
    assert followed[3:5] == [True] * 2, step.stats.message
    for call in range(5, 8):
        assert evicted[call] and not followed[call]
    for call in range(8, 10):
        assert evicted[call] or followed[call]
    assert step.stats.steps_over_budget == 0
    assert max(peaks.bytes) <= budget, (budget, peaks.bytes, followed)


@pytest.mark.parametrize("paging", [False, True])
def test_a_length_above_all_that_are_planned_stays_inside_the_budget(paging: bool) -> None:
    in_a_process_of_its_own(_check_longer, paging)


def test_a_length_that_came_once_is_not_searched_for() -> None:
    step, _ = _encoder()
    wrapped = poet.wrap(
        step,
        ram_budget=_budget(64),
        paging=False,
        background=False,
        cache_dir=None,
        time_limit_s=2,
    )
    for x in _sequences([64, 64, 64, 48, 40]):
        wrapped(x)
    lent = [s for s in wrapped.schedules if s.message == _LENT]
    assert len(lent) == 2
    for schedule in lent:
        assert schedule.status is poet.Status.FEASIBLE
        assert schedule.ram_budget is not None and schedule.peak_bytes <= schedule.ram_budget
        assert any(action.kind == "recompute" for action in schedule.actions)


def test_what_differs_in_more_than_sizes_borrows_nothing() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(6))
    optimizer = torch.optim.SGD(layers.parameters(), 0.1)

    def step(x: torch.Tensor) -> float:
        optimizer.zero_grad()
        for layer in layers[: x.shape[0] // 8]:
            x = layer(x).tanh()
        loss = x.sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    wrapped = poet.wrap(
        step, ram_budget="95%", paging=False, background=False, cache_dir=None, time_limit_s=6
    )
    for rows in (48, 48, 48, 40, 40):
        wrapped(torch.randn(rows, _WIDTH))
    assert wrapped.stats.plans_of_other_sizes == 0


def test_the_first_call_under_a_share_is_said_to_have_no_cap() -> None:
    step, _ = _encoder()
    (x,) = _sequences([16])
    messages = []

    def watched(x: torch.Tensor) -> float:
        messages.append(wrapped.stats.message)
        return step(x)

    wrapped = poet.wrap(watched, ram_budget="90%", paging=False, cache_dir=None, background=False)
    wrapped(x)
    wrapped(x)
    assert "first call runs without a cap" in messages[0]
    assert messages[1] == ""
