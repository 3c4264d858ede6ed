"""What poet itself takes beside the budget (StepStats.own_bytes)."""

from __future__ import annotations

import gc
from pathlib import Path

import torch
from own_process import in_a_process_of_its_own
from small_steps import square_step
from torch import nn

import poet
from own_memory import malloc_bytes

_LAYERS = 150
_WORDS = {"background": False, "cache_dir": None, "time_limit_s": 1}


def _tiny_layers() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Sequential(*[m for _ in range(_LAYERS) for m in (nn.Linear(8, 8), nn.Tanh())])
    return net, torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, foreach=False)


def _check_beside_malloc() -> None:
    torch.set_num_threads(1)
    net, optimizer = _tiny_layers()
    step, x = square_step(net, optimizer), torch.randn(64, 8)

    def in_use() -> int:
        optimizer.zero_grad(set_to_none=True)
        gc.collect()
        return malloc_bytes()

    for _ in range(3):
        step(x)
    before = in_use()
    wrapped = poet.wrap(step, ram_budget="90%", **_WORDS)
    for _ in range(5):
        wrapped(x)
    stats = wrapped.stats
    assert stats.followed_steps > 0
    taken = in_use() - before
    # Beside these: PyTorch's caches of operators that are heard for the first time, Python's own.
    assert 0.5 * taken < stats.own_bytes < 1.1 * taken, (stats.own_bytes, taken)


def test_it_is_what_malloc_has_given_beside_the_plain_step() -> None:
    in_a_process_of_its_own(_check_beside_malloc)


def test_it_does_not_grow_with_the_calls() -> None:
    net, optimizer = _tiny_layers()
    wrapped = poet.wrap(square_step(net, optimizer), ram_budget="90%", **_WORDS)
    assert wrapped.stats.own_bytes < 64 << 10
    x = torch.randn(64, 8)
    for _ in range(6):
        wrapped(x)
    with_a_plan = wrapped.stats.own_bytes
    assert with_a_plan > 500 * _LAYERS
    for _ in range(10):
        wrapped(x)
    # Less: the call in which the optimizer made its state will not come again.
    before = wrapped.stats.own_bytes
    assert before < 0.8 * with_a_plan
    for _ in range(30):
        wrapped(x)
    assert wrapped.stats.own_bytes <= 1.01 * before
    assert wrapped.stats.variants == 2
    assert "own_bytes" in str(wrapped.stats)


def test_the_buffers_of_the_store_are_among_it(tmp_path: Path) -> None:
    own_bytes = {}
    for paging in (False, True):
        net, optimizer = _tiny_layers()
        words = {
            "paging": paging,
            "recompute": not paging,
            "page_dir": tmp_path if paging else None,
        }
        wrapped = poet.wrap(square_step(net, optimizer), ram_budget="60%", **_WORDS | words)
        x = torch.randn(8192, 8)  # values of 256 KiB
        for _ in range(6):
            wrapped(x)
        assert (wrapped.stats.paged_out_bytes > 0) == paging
        own_bytes[paging] = wrapped.stats.own_bytes
    more = own_bytes[True] - own_bytes[False]
    assert 256 << 10 < more < 1 << 20, own_bytes  # four parts of half a value or more
