"""A store that is slower beside the steps than it was alone: plans are made again."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import poet
from poet import _store, _times_seen
from poet._store import StoreSpeed
from poet._store_watch import MOST_PLANS, STEPS, StoreWatch

BELIEVED = StoreSpeed("/somewhere", 1e9, 2e9, 1e-4, 1e-4, 0.0)


def after(steps: int, read_rate: float, write_rate: float, waited: float) -> dict[str, Any]:
    """Counters after so many steps of 1 s that read and write 100 MB each."""
    moved = 1e8 * steps
    return {
        "paged_in_bytes": moved,
        "paged_out_bytes": moved,
        "read_seconds": moved / read_rate,
        "write_seconds": moved / write_rate,
        "waited_seconds": waited * steps,
    }


def watched(steps: int, *rates: float) -> list[StoreSpeed]:
    watch = StoreWatch()
    seen = [watch.observe(lambda i=i: after(i, *rates), 1.0, BELIEVED) for i in range(1, steps + 1)]
    return [speed for speed in seen if speed is not None]


def test_what_was_seen_is_believed_where_steps_waited_for_a_slower_store() -> None:
    (seen,) = watched(1 + STEPS, 5e8, 1e9, 0.1)
    assert (seen.read_rate, seen.write_rate) == (pytest.approx(5e8), pytest.approx(1e9))
    assert seen.read_latency_seconds == BELIEVED.read_latency_seconds
    (seen,) = watched(1 + STEPS, 5e8, 4e9, 0.1)
    assert (seen.read_rate, seen.write_rate) == (pytest.approx(5e8), BELIEVED.write_rate)


@pytest.mark.parametrize(
    ("read_rate", "write_rate", "waited"),
    [(5e8, 1e9, 0.001), (0.95e9, 1.9e9, 0.1), (2e9, 4e9, 0.1)],
    ids=["nobody waited", "about as fast", "faster"],
)
def test_otherwise_the_plan_stays(read_rate: float, write_rate: float, waited: float) -> None:
    assert watched(1 + 4 * STEPS, read_rate, write_rate, waited) == []


def test_fewer_steps_tell_nothing_and_another_plan_begins_anew() -> None:
    assert watched(STEPS, 5e8, 1e9, 0.1) == []
    watch = StoreWatch()
    for i in range(1, STEPS + 1):
        assert watch.observe(lambda i=i: after(i, 5e8, 1e9, 0.1), 1.0, BELIEVED) is None
    watch.restart()
    assert watch.observe(lambda: after(STEPS + 1, 5e8, 1e9, 0.1), 1.0, BELIEVED) is None


def test_where_training_stands_still_for_it_the_steps_must_have_waited_as_long() -> None:
    watch = StoreWatch()
    asked = [
        i
        for i in range(1, 20 * STEPS)
        if watch.observe(lambda i=i: after(i, 5e8, 1e9, 0.1), 1.0, BELIEVED, price=2.05)
    ]
    assert asked[0] == 1 + 7 * STEPS  # 21 steps of 0.1 s
    watch.restart()
    assert watch.observe(lambda: after(100, 5e8, 1e9, 0.1), 1.0, BELIEVED, price=2.05) is None


def test_it_asks_for_a_few_plans_only() -> None:
    watch = StoreWatch()
    asked = 0
    for i in range(1, 40 * STEPS):
        if not watch.may_ask:
            break
        asked += watch.observe(lambda i=i: after(i, 1e8, 1e8, 0.5), 1.0, BELIEVED) is not None
    assert asked == MOST_PLANS


def believe_in_an_impossible_disk(monkeypatch: pytest.MonkeyPatch) -> Any:
    try:
        folder = _store.page_folder(None)
    except poet.ArgumentError as error:
        pytest.skip(f"no folder for paged values here: {error}")
    monkeypatch.setattr(_times_seen, "_FAR_LESS", 0.0)  # plans are found by their times
    impossible = StoreSpeed(folder, 1e12, 1e12, 0.0, 0.0, 0.0)
    monkeypatch.setitem(_store._measured, folder, impossible)
    return folder


def training() -> tuple[Any, nn.Module]:
    torch.manual_seed(0)
    net = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(64, 64), nn.Softplus())])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
    x = torch.randn(4096, 64)

    def train_step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train_step, net


def test_a_named_methods_plan_is_made_again_without_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = believe_in_an_impossible_disk(monkeypatch)
    plain, _ = training()
    losses = [float(plain()) for _ in range(12)]
    words: dict[str, Any] = {"page_dir": folder, "cache_dir": None, "time_limit_s": 10}
    budget = poet.trace(training()[0]).plain_peak_bytes() * 2
    with poet.wrap(training()[0], ram_budget=budget, method="page_all", **words) as step:
        for loss in losses:
            assert float(step()) == loss
            step.wait_for_plan()
        assert step.stats.planned_page_outs > 0
        assert step.stats.plans_made_again >= 1


def test_a_disk_that_was_believed_too_fast_gets_another_plan_and_the_bits_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = believe_in_an_impossible_disk(monkeypatch)
    plain, expected = training()
    losses = [float(plain()) for _ in range(12)]
    train_step, net = training()
    graph = poet.trace(training()[0])
    own = graph.plain_peak_bytes() - graph.base_bytes  # other tests' tensors are in the base
    words: dict[str, Any] = {
        "ram_budget": graph.plain_peak_bytes() - own // 3,
        "recompute": False,
        "page_dir": folder,
        "cache_dir": tmp_path,
        "time_limit_s": 10,
    }
    with poet.wrap(train_step, **words) as step:
        for loss in losses:
            assert float(step()) == loss
            step.wait_for_plan()
        assert step.stats.planned_page_outs > 0
        assert step.stats.plans_made_again >= 1
        assert step.stats.departures == 0, step.stats.last_departure
    for ours, theirs in zip(net.parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    del train_step, net, step, ours, theirs  # the next run has as much beside it
    # Another run asks with what was measured alone, and finds the plan that was made for that.
    with warnings.catch_warnings():
        warnings.simplefilter("error", poet.CacheWarning)
        with poet.wrap(training()[0], **words) as step:
            step()
            step()
            assert step.stats.plans_from_cache == 1
