"""DTR, its variants and Coop in live steps: they keep a budget and predict nothing."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from resident import Peaks
from zoo import build, differences, plain, run

import poet

LIVE = [name for name, method in poet.methods().items() if method.live]
KINDS = (
    "residual_net",
    "gpt2",
    pytest.param("unet_3d", marks=pytest.mark.nightly),
    # Of the small one a saved generator state is more than its whole slack.
    pytest.param("whole_lstm", marks=pytest.mark.nightly),
)
CALLS = 6
LIKE_THE_REST = 2  # before that call the optimizer's state comes


def test_they_are_those_that_decide_in_running_order() -> None:
    online = [name for name, method in poet.methods().items() if method.online]
    # Live tensors lie where PyTorch's allocator puts them: what DTR does in a space of its own is
    # a figure to measure coop against.
    assert set(online) == {*LIVE, "dtr_placed"}


def _peaks(
    kind: str, **options: Any
) -> tuple[list[int], list[str], dict[str, Any], poet.StepStats | None]:
    """What each call had in memory at most, its results, the state in the end, and statistics."""
    gc.collect()
    stats, found = None, []
    with Peaks() as peaks:
        case = build(kind)
        call = poet.wrap(case.step, **options) if options else case.step
        peaks.mark()
        for result in run(case, call, CALLS):
            found.append(str(result))
            peaks.mark()
        if options:
            stats = call.stats
            call.close()
    return peaks.bytes[:-1], found, case.state(), stats


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("method", LIVE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_live_method_keeps_the_budget_and_every_bit(kind: str, method: str) -> None:
    results, state = plain(kind, CALLS)
    plain_peaks = _peaks(kind)[0]
    case = build(kind)
    graph = poet.trace(case.step, *case.batches(0))
    least = poet.solve(graph=graph, ram_budget=1, time_limit_s=5, paging=False).least_ram_budget
    assert least is not None
    del case
    budget = max(plain_peaks[LIKE_THE_REST:]) - (graph.plain_peak_bytes() - least) // 4
    del graph

    peaks, found, found_state, stats = _peaks(kind, ram_budget=budget, method=method, strict=False)
    assert stats is not None
    assert stats.plans == stats.followed_steps == stats.online_page_outs == 0
    assert "decides while a step runs" in stats.message
    assert stats.online_steps > 0
    assert stats.online_evictions > 0
    assert stats.online_recomputes > 0
    assert 0 < stats.online_free_share < 1
    assert stats.steps_over_budget == 0
    assert max(peaks) <= budget
    assert differences(state, found_state) == []
    assert found == [str(r) for r in results]


@pytest.mark.usefixtures("one_thread")
def test_without_the_policy_a_live_method_trains_with_its_plan() -> None:
    case = build("residual_net")
    with poet.wrap(
        case.step, ram_budget="90%", method="dtr", online=False, background=False
    ) as step:
        list(run(case, step, CALLS))
        assert step.schedule is not None
        assert step.schedule.method == "dtr"
        assert step.stats.followed_steps > 0
        assert step.stats.online_steps == 0


def test_a_live_method_takes_a_hard_budget() -> None:
    weight = torch.ones(256, 256, requires_grad=True)

    def step() -> None:
        value = weight
        for _ in range(8):
            value = value.sin()
        value.sum().backward()  # type: ignore[no-untyped-call]

    with (
        poet.wrap(step, ram_budget="1KiB", method="dtr", hard=True) as wrapped,
        pytest.raises(poet.BudgetError),
    ):
        wrapped()
    with pytest.raises(poet.ArgumentError, match="hard=True"):
        poet.wrap(step, ram_budget="1GiB", method="rotor", hard=True)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("method", ["coop", "dtr", "poet"])
def test_strict_holds_for_what_comes_back_as_well(method: str) -> None:
    """A replay that needs more than the budget has: no call goes on above it, and none trains."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = [torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU()]
    for _ in range(6):
        layers += [torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers)
    batch = torch.randn(8, 3, 32, 32)

    def step() -> float:
        net.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        return float(loss.detach())

    plain = step()
    refused = 0
    for kib in range(2_304, 7_168, 256):
        with poet.wrap(
            step,
            ram_budget=kib << 10,
            method=method,
            strict=True,
            paging=False,
            cache_dir=None,
            background=False,
        ) as wrapped:
            try:
                assert wrapped() == plain
                assert wrapped.stats.steps_over_budget == 0, wrapped.stats
            except poet.BudgetError:
                refused += 1
    assert 0 < refused < 19


def test_what_only_a_plan_can_keep_is_refused() -> None:
    words: dict[str, Any]
    for words in (
        {"runtime_budget": 1.2},
        {"deadline": "1h", "steps": 10},
        {"battery_joules": 5.0, "steps": 10},
    ):
        with pytest.raises(poet.ArgumentError, match=r"method='coop': .*online=False"):
            poet.wrap(lambda: None, ram_budget="1GiB", method="coop", **words)


def test_it_recomputes_or_does_nothing(tmp_path: Path) -> None:
    words: dict[str, Any]
    for words in ({}, {"page_dir": tmp_path}):
        with pytest.raises(poet.ArgumentError, match="'dtr' makes room by recomputing"):
            poet.wrap(lambda: None, ram_budget="1GiB", method="dtr", recompute=False, **words)
