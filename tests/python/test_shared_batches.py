"""Batches whose memory NumPy, or another process, shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from resident import budget_at
from torch import nn
from torch.utils.data import DataLoader

import poet

_ROWS = 64


def _build() -> Callable[[torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    layers = [m for _ in range(6) for m in (nn.Linear(32, 32), nn.Tanh())]
    net = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(net.parameters(), 0.05)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train_step


_ARRAYS = np.random.RandomState(1).randn(10 * _ROWS, 32).astype(np.float32)


def _stacked(rows: list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.stack(rows))


def _of_numpy() -> Iterator[torch.Tensor]:
    for i in range(10):
        yield torch.from_numpy(_ARRAYS[i * _ROWS : (i + 1) * _ROWS].copy())


def _loader(workers: int, collate: Callable[..., torch.Tensor] | None) -> Iterator[torch.Tensor]:
    return iter(DataLoader(_ARRAYS, _ROWS, num_workers=workers, collate_fn=collate))  # type: ignore[arg-type]


_BATCHES: dict[str, Callable[[], Iterator[torch.Tensor]]] = {
    "from_numpy": _of_numpy,
    "loader": lambda: _loader(0, None),
    "loader, from_numpy": lambda: _loader(0, _stacked),
    "loader's worker": lambda: _loader(1, None),
    "loader's worker, from_numpy": lambda: _loader(1, _stacked),
}


@pytest.mark.parametrize("how", _BATCHES)
def test_a_loop_keeps_its_plan_and_its_savings(how: str) -> None:
    plain = _build()
    expected = [plain(x) for x in _BATCHES[how]()]
    budget = budget_at(0.8, _build(), torch.from_numpy(_ARRAYS[:_ROWS]).clone())
    step = poet.wrap(
        _build(), ram_budget=budget, background=False, cache_dir=None, paging=False, time_limit_s=5
    )
    for x, loss in zip(_BATCHES[how](), expected, strict=True):
        assert torch.equal(step(x), loss)
    assert step.stats.followed_steps >= 7
    assert step.stats.departures == 0
    assert step.stats.evictions > 0


def test_own_and_shared_batches_have_a_plan_each() -> None:
    plain = _build()
    batches = [x if i % 2 else x.clone() for i, x in enumerate(_of_numpy())] * 2
    expected = [plain(x) for x in batches]
    budget = budget_at(0.8, _build(), batches[0])
    step = poet.wrap(
        _build(), ram_budget=budget, background=False, cache_dir=None, paging=False, time_limit_s=5
    )
    for x, loss in zip(batches, expected, strict=True):
        assert torch.equal(step(x), loss)
    assert step.stats.followed_steps >= 12
    assert step.stats.evictions > 0
