"""What torch.load makes: PyTorch's own memory, until NumPy shares it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from resident import budget_at
from torch import nn

import poet
from poet import _C


def _saved(things: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(things, file)
    file.seek(0)
    return file


class _Holder:
    def __init__(self, inside: torch.Tensor) -> None:
        self.inside, self.me = inside, self


def _stays(t: torch.Tensor) -> bool:
    return not t.untyped_storage().resizable()


def test_every_tensor_of_a_file_may_leave_memory() -> None:
    t = torch.randn(100)
    things = {"state": {0: {"exp": t}}, "list": [t[:10], (nn.Linear(3, 4),)], "own": _Holder(t)}
    loaded = torch.load(_saved(things), weights_only=False)
    tensors = [loaded["state"][0]["exp"], loaded["list"][0], loaded["own"].inside]
    tensors += loaded["list"][1][0].parameters()
    assert not any(map(_stays, tensors))
    assert torch.equal(loaded["own"].inside, t) and loaded["own"].me is loaded["own"]


def test_what_numpy_shares_stays() -> None:
    loaded = torch.load(_saved(torch.randn(100)))
    shared = loaded.numpy()
    assert _stays(loaded)
    _C.note_loaded(loaded)  # as the loading of an object that has it already does
    assert _stays(loaded)
    shared[0] = 7
    assert loaded[0] == 7


def test_what_is_mapped_from_a_file_stays(tmp_path: Path) -> None:
    torch.save(torch.randn(100), tmp_path / "it")
    assert _stays(torch.load(tmp_path / "it", mmap=True))


@pytest.mark.parametrize("assign", [False, True])
def test_a_run_that_goes_on_from_a_file_keeps_its_budget(assign: bool, tmp_path: Path) -> None:
    """Parameters and optimizer state that were loaded are paged as the plan says."""

    def build(file: io.BytesIO | None) -> tuple[Any, Any, Any]:
        torch.manual_seed(0)
        net = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(256, 256), nn.Tanh())])
        if file is not None:
            file.seek(0)
            states = torch.load(file)
            net.load_state_dict(states["net"], assign=assign)
        optimizer = torch.optim.AdamW(net.parameters(), 0.01, foreach=False)
        if file is not None:
            optimizer.load_state_dict(states["optimizer"])
        x = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, net, optimizer

    step, net, optimizer = build(None)
    for _ in range(2):
        step()
    file = _saved({"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    del step, net, optimizer  # else they lie beside the step
    budget = budget_at(0.5, build(file)[0])
    step, net, _ = build(file)
    options: dict[str, Any] = {"background": False, "cache_dir": None, "time_limit_s": 5}
    with poet.wrap(step, ram_budget=budget, page_dir=tmp_path, **options) as wrapped:
        losses = [wrapped() for _ in range(3)]
        before_the_plan = wrapped.stats.steps_over_budget  # unshown state lies beside a first call
        losses += [wrapped() for _ in range(3)]
        stats = wrapped.stats
        assert stats.followed_steps >= 3 and stats.planned_page_outs > 0
        assert stats.shared_page_outs == 0 and stats.steps_over_budget == before_the_plan
    plain, expected, _ = build(file)
    assert [plain() for _ in range(6)] == losses
    for ours, theirs in zip(net.parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs)
