"""DistributedDataParallel over gloo: each rank wraps its own step and has its own plan."""

from __future__ import annotations

import datetime
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import poet

CALLS = 6
FAILS_AT = 4
# gloo's own timeout; a rank that is left alone hears of it far sooner, when the connection closes.
TIMEOUT_SECONDS = 60


class RankFailedError(Exception):
    """What the failing rank raises."""


def _net() -> nn.Module:
    blocks = []
    for _ in range(6):
        blocks += [nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*blocks, nn.Linear(64, 8))


def _digest(net: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    digest = hashlib.sha256()
    tensors = [t for p in net.parameters() for t in (p.detach(), p.grad)]
    tensors += [t for state in optimizer.state.values() for t in state.values()]
    for tensor in [*tensors, torch.get_rng_state()]:
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _rank(rank: int, ranks: int, options: list[dict[str, Any]], fails: bool, out: str) -> None:
    """Trains one rank; options[rank] are those of poet.wrap, empty: plainly."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{out}/rendezvous",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=TIMEOUT_SECONDS),
    )
    torch.manual_seed(0)
    net = DistributedDataParallel(_net(), bucket_cap_mb=0.05)  # several buckets
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    torch.manual_seed(100 + rank)  # each rank has data of its own
    batches = [(torch.randn(256, 64), torch.randint(0, 8, (256,))) for _ in range(CALLS)]
    calls = 0

    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        scores = net(x)
        if fails and rank == 1 and calls == FAILS_AT + 1:
            raise RankFailedError
        loss = nn.functional.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step: Any = train_step
    if options[rank]:
        common: dict[str, Any] = {"background": False, "cache_dir": None, "time_limit_s": 2}
        step = poet.wrap(train_step, **common, **options[rank])
    began, failure = time.monotonic(), ""
    losses = []
    try:
        for batch in batches:
            losses.append(step(*batch).item())
            began = time.monotonic()
    except Exception as error:
        failure = type(error).__name__
    stats = step.stats if options[rank] else None
    result = {
        "losses": losses,
        "state": "" if failure else _digest(net, optimizer),
        "failure": failure,
        "waited_seconds": time.monotonic() - began,
        "followed": stats.followed_steps if stats else 0,
        "failed": stats.failed_steps if stats else 0,
        "over_budget": stats.steps_over_budget if stats else 0,
        "peak": step.schedule.peak_bytes if stats and step.schedule else 0,
    }
    torch.save(result, Path(out) / f"{rank}.pt")
    if failure:
        os._exit(0)  # its connections close as those of a process that died
    dist.destroy_process_group()


def _train(
    folder: Path, options: list[dict[str, Any]], *, fails: bool = False
) -> list[dict[str, Any]]:
    folder.mkdir()
    ranks = len(options)
    mp.start_processes(
        _rank, (ranks, options, fails, str(folder)), nprocs=ranks, start_method="spawn"
    )
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]


def _compare(folder: Path, options: list[dict[str, Any]]) -> list[dict[str, Any]]:
    plain = _train(folder / "plain", [{} for _ in options])
    again = _train(folder / "again", [{} for _ in options])
    under = _train(folder / "under", options)
    for rank, (first, second, mine) in enumerate(zip(plain, again, under, strict=True)):
        for name in ("losses", "state"):
            assert first[name] == second[name], "two plain runs differ: the step is no test"
            assert mine[name] == first[name], f"{name} of rank {rank}"
        assert mine["failed"] == 0
        assert mine["over_budget"] == 0
        assert mine["followed"] >= 2
    return under


def test_ranks_with_different_plans_train_the_same_bits(tmp_path: Path) -> None:
    under = _compare(tmp_path, [{"ram_budget": "75%"}, {"ram_budget": "60%", "paging": True}])
    assert under[0]["peak"] > under[1]["peak"], "each rank has a plan of its own"


def test_a_rank_that_trains_plainly_beside_one_under_poet(tmp_path: Path) -> None:
    plain = _train(tmp_path / "plain", [{}, {}])
    mixed = _train(tmp_path / "mixed", [{"ram_budget": "65%"}, {}])
    assert [r["state"] for r in mixed] == [r["state"] for r in plain]
    assert mixed[0]["followed"] >= 2


@pytest.mark.nightly
def test_four_ranks_train_the_same_bits(tmp_path: Path) -> None:
    _compare(tmp_path, [{"ram_budget": share} for share in ("80%", "70%", "65%", "60%")])


def test_a_rank_that_fails_ends_the_others_as_in_plain_training(tmp_path: Path) -> None:
    budgets = [{"ram_budget": "70%"}, {"ram_budget": "70%"}]
    plain = _train(tmp_path / "plain", [{}, {}], fails=True)
    under = _train(tmp_path / "under", budgets, fails=True)
    for rank in range(2):
        assert under[rank]["failure"] == plain[rank]["failure"]
        assert under[rank]["losses"] == plain[rank]["losses"]
        assert under[rank]["waited_seconds"] < TIMEOUT_SECONDS
    assert plain[1]["failure"] == "RankFailedError"
    assert plain[0]["failure"], "a collective of two has one rank left"
