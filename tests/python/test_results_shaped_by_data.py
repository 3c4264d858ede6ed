"""Operators that make as much as their inputs or a number say, other rows than were recorded,
under a plan."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

import pytest
import torch
from own_process import in_a_process_of_its_own
from resident import Peaks, budget_at
from small_steps import square_step
from torch import nn
from torch.nn import functional as F
from zoo import Case, differences

import poet

_WIDTH, _ROWS, _USUAL = 64, 1024, 6


def _nonzero(h: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return h[torch.nonzero(chosen).squeeze(1)]


def _by_mask(h: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return h[chosen]


def _masked_select(h: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return h.masked_select(chosen[:, None]).view(-1, _WIDTH)


def _repeated(h: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return h.repeat_interleave(chosen.long(), 0)


def _unique(h: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(len(h)) * chosen
    return h[rows.unique()]


def _drawn(h: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return torch.randn(int(chosen.sum()), _WIDTH) + h.mean(0)


def _filled(h: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return torch.full((int(chosen.sum()), _WIDTH), 0.5) * h.mean(0)


def _highest(h: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return h.topk(int(chosen.sum()), 0).values


def _padded(h: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return F.pad(h[:1], (0, 0, 0, int(chosen.sum()) - 1))


def _copied(h: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return h[:1].repeat(int(chosen.sum()), 1)


_CHOICES = {
    f.__name__[1:]: f
    for f in (
        _nonzero,
        _by_mask,
        _masked_select,
        _repeated,
        _unique,
        _drawn,
        _filled,
        _highest,
        _padded,
        _copied,
    )
}


def _build(choose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], more: bool) -> Case:
    torch.manual_seed(0)
    before, after = (
        nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(_WIDTH, _WIDTH), nn.Tanh())])
        for _ in range(2)
    )
    optimizer = torch.optim.SGD([*before.parameters(), *after.parameters()], 0.1, foreach=False)

    def net(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = after(choose(before(x), x[:, 0] > 0))
        return out

    def batches(call: int) -> tuple[torch.Tensor]:
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(_ROWS, _WIDTH, generator=generator)
        other = max(0, call - _USUAL + 1)
        if more:  # rows are chosen by what they hold
            rows = _ROWS // 4 + 3 * _ROWS // 16 * other
            x[:rows, 0], x[rows:, 0] = 1, -1
        else:
            x[: 100 * other, 0] = -1
        return (x,)

    return Case(square_step(net, optimizer), batches, [before, after], [optimizer])


def _check(choice: str, more: bool) -> None:
    calls = _USUAL + 4
    plain = _build(_CHOICES[choice], more)
    losses = [plain.step(*plain.batches(i)) for i in range(calls)]
    generator = torch.get_rng_state()
    probe = _build(_CHOICES[choice], more)
    # Of the call that takes the most.
    budget = budget_at(0.8, probe.step, *probe.batches(calls - 1 if more else 0))
    del probe
    with Peaks() as peaks, warnings.catch_warnings():
        warnings.simplefilter("error", poet.BudgetWarning)
        own = _build(_CHOICES[choice], more)
        step = poet.wrap(
            own.step,
            ram_budget=budget,
            paging=False,
            background=False,
            cache_dir=None,
            time_limit_s=5,
        )
        got = []
        for i in range(calls):
            batch = own.batches(i)
            peaks.mark()
            got.append(step(*batch))
            if i == _USUAL - 1:
                assert step.stats.followed_steps > 0
    assert got == losses
    assert differences(plain.state(), own.state()) == []
    stats = step.stats
    assert stats.departures >= 1
    if not more:
        assert stats.online_evictions > 0
    # A call that departs is recorded as a variant of its own, which has a plan if it comes again.
    assert stats.variants > 1, stats
    assert max(peaks.bytes) <= budget, (budget, peaks.bytes, stats)
    assert torch.get_rng_state().equal(generator)
    assert re.search("made other results|makes more", stats.last_departure), stats.last_departure


@pytest.mark.parametrize("more", [False, True], ids=["fewer rows", "more rows"])
@pytest.mark.parametrize("choice", sorted(_CHOICES))
def test_the_rest_of_the_call_stays_inside_the_budget(choice: str, more: bool) -> None:
    in_a_process_of_its_own(_check, choice, more)
