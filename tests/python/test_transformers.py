"""Hugging Face's GPT-2 and BERT, small, with every optimizer form: the same bits in a budget."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from zoo import Case, build, differences, run

import poet
from _optimizers import make
from poet._store import page_folder

pytestmark = pytest.mark.usefixtures("one_thread")

_TRACED = 3
_PLANNED = 4
_ROWS = 16
_TIME_LIMIT_S = 3


def _case(model: str, optimizer: str) -> Case:
    """The model's step as it stands in the zoo, with that optimizer in place of its own."""
    case = build(model)
    own = case.optimizers[0]
    chosen = make(optimizer, case.modules[0].parameters(), 1e-2)
    # The zoo's step calls its own optimizer: that one hands on to the chosen one.
    own.zero_grad = chosen.zero_grad  # type: ignore[method-assign]
    own.step = chosen.step  # type: ignore[method-assign]
    case.optimizers[0] = chosen
    # Many rows: most of the memory is then activations, whatever the optimizer.
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 64, (_ROWS, 32), generator=generator)
    labels = torch.randint(0, 2, (_ROWS,), generator=generator)
    case.batches = lambda _: (tokens,) if model == "gpt2" else (tokens, labels)
    return case


def _plain(model: str, optimizer: str) -> tuple[list[Any], dict[str, Any]]:
    case = _case(model, optimizer)
    losses = list(run(case, case.step, _TRACED + _PLANNED))
    return losses, case.state()


def _budget(model: str, optimizer: str, share: float) -> str:
    """That share of what plain training holds beyond what was there before, as "p%" of its peak."""
    case = _case(model, optimizer)
    graph = poet.trace(case.step, *case.batches(0))
    base, peak = graph.base_bytes, graph.plain_peak_bytes()
    del case
    gc.collect()
    return f"{100 * (base + share * (peak - base)) / peak:.4f}%"


def _check(model: str, optimizer: str, share: float, **options: Any) -> poet.StepStats:
    budget = _budget(model, optimizer, share)
    losses, state = _plain(model, optimizer)
    case = _case(model, optimizer)
    step = poet.wrap(
        case.step,
        ram_budget=budget,
        background=False,
        time_limit_s=_TIME_LIMIT_S,
        cache_dir=None,
        **options,
    )
    ours = list(run(case, step, _TRACED + _PLANNED))
    assert step.schedule is not None and step.schedule.has_plan, step.stats.message
    stats = step.stats
    assert (stats.followed_steps, stats.departures) == (_PLANNED, 0), stats.last_departure
    assert stats.unplanned_recomputes == 0, stats.first_unplanned
    assert stats.evictions > 0
    assert differences(state, case.state()) == []
    assert [loss.hex() for loss in ours] == [loss.hex() for loss in losses]
    return stats


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        ("gpt2", "adamw"),
        ("bert", "adamw-foreach"),
        ("gpt2", "adamw-fused"),
        ("bert", "sgd"),
        ("gpt2", "sgd-foreach"),
        ("bert", "sgd-fused"),
        ("bert", "adafactor"),
        ("gpt2", "adafactor-foreach"),
    ],
)
def test_recomputing_keeps_every_bit(model: str, optimizer: str) -> None:
    stats = _check(model, optimizer, 0.7, paging=False)
    assert stats.planned_recomputes > 0


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [("gpt2", "adamw"), ("bert", "adamw-foreach"), ("gpt2", "adafactor"), ("bert", "sgd-fused")],
)
def test_paging_keeps_every_bit(model: str, optimizer: str) -> None:
    stats = _check(model, optimizer, 0.7, paging=True, recompute=False, page_dir=_page_dir())
    assert stats.planned_page_outs > 0 and stats.planned_page_ins > 0
    assert stats.unplanned_page_ins == 0
    assert stats.planned_recomputes == 0


def test_paging_and_recomputing_keep_every_bit() -> None:
    stats = _check("gpt2", "adamw", 0.5, paging=True, page_dir=_page_dir())
    assert stats.planned_recomputes + stats.planned_page_ins > 0


def _page_dir() -> str:
    """The system's folder for paged values."""
    try:
        return page_folder(None)
    except poet.ArgumentError as error:
        pytest.skip(f"no folder for paged values here: {error}")
