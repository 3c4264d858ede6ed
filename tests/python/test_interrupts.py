"""Ctrl-C at every place of poet's own code: what has begun ends, and training goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from resident import budget_at
from small_steps import square_step
from torch import nn

import poet
from poet import _C

_DOORS = ("numpy", "tolist", "data_ptr", "untyped_storage", "__dlpack__")
_PACKAGE = str(Path(poet.__file__).parent)


def _interrupted(call: Callable[[], object], at: int) -> bool:
    """Runs it, with Ctrl-C at that place in poet's Python; whether it has so many places.

    CPython looks for signals where a function begins and where one of C has returned.
    """
    places = 0

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal places
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(_PACKAGE):
            return
        places += 1
        if places == at:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return places >= at


# Python has nobody to give it to where it ends a generator.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::poet.BudgetWarning")
@pytest.mark.parametrize("paging", [False, True])
def test_ctrl_c_at_every_place_of_a_planned_call(paging: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(6)])
    plain = square_step(net, torch.optim.SGD(net.parameters(), 1e-2))
    batches = torch.randn(3, 64, 32)
    state = {name: value.clone() for name, value in net.state_dict().items()}

    def two_calls(call: Callable[[torch.Tensor], float]) -> list[float]:
        net.load_state_dict(state)
        return [call(batches[1]), call(batches[2])]

    expected = two_calls(plain)
    doors = {name: vars(torch.Tensor).get(name) for name in _DOORS}
    step = poet.wrap(
        plain,
        ram_budget=budget_at(0.6, plain, batches[0]),
        paging=paging,
        background=False,
        time_limit_s=2,
        cache_dir=None,
    )
    for _ in range(4):
        step(batches[0])
    followed, at = step.stats.followed_steps, 0
    while _interrupted(lambda: step(batches[0]), at := at + 1):
        assert not _C.is_listening(), f"the step goes on after Ctrl-C at place {at}"
        assert two_calls(step) == expected, f"other losses after Ctrl-C at place {at}"
    assert at > 50
    assert step.stats.followed_steps >= followed + 2 * (at - 1)
    step.close()
    assert {name: vars(torch.Tensor).get(name) for name in _DOORS} == doors
