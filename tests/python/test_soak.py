"""Thousands of steps in one process, whatever comes: the bits of plain training, and nothing left.

Budgets, shapes, threads of planning, the online policy, pauses, faults of the store, exceptions out
of the model and Ctrl-C, as the dice fall; beside it a twin trains plainly and meets the same
exceptions.
"""

from __future__ import annotations

import gc
import os
import random
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from own_process import in_a_process_of_its_own
from store_faults import HARMLESS, injected
from torch import nn
from zoo import Case, differences, slack_budget

import poet

MIB = 1 << 20
_STEPS, _FEW = 2000, 120
_PERIOD = 50  # steps between two wraps
# What malloc's own lists and Python's may still gain after warm-up, in 1,500 steps.
_TOLERANCE = 8 * MIB
_ROWS = (384, 256, 160)
_WIDTH, _DEPTH = 128, 5


class _ExpectedError(Exception):
    pass


class _Fragile(nn.Module):
    """Raises in its forward or its backward pass when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.forward_raises: type[BaseException] | None = None
        self.backward_raises: type[BaseException] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.forward_raises is not None:
            raise self.forward_raises("in the model's forward pass")
        error = self.backward_raises

        def raising(_: torch.Tensor) -> None:
            if error is not None:
                raise error("in its backward pass")

        if x.requires_grad:
            x.register_hook(raising)
        return x


class _Twin:
    """A network with dropout, batch norm and AdamW, from a seed."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.fragile = [_Fragile() for _ in range(_DEPTH)]
        layers: list[nn.Module] = []
        for fragile in self.fragile:
            layers += [nn.Linear(_WIDTH, _WIDTH), nn.BatchNorm1d(_WIDTH), nn.ReLU(inplace=True)]
            layers += [nn.Dropout(0.1), fragile]
        net = nn.Sequential(*layers, nn.Linear(_WIDTH, 4))
        optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
        x, y = torch.randn(max(_ROWS), _WIDTH), torch.randint(0, 4, (max(_ROWS),))

        def step(x: torch.Tensor, y: torch.Tensor) -> float:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            return loss.item()

        self.case = Case(step, lambda rows: (x[:rows], y[:rows]), [net], [optimizer])
        self.call: Callable[..., float] = step

    def train(self, i: int, rows: int, event: _Event) -> float | str:
        """The loss, or which exception came out."""
        torch.manual_seed(i)
        place = self.fragile[event.layer]
        if event.error is not None:
            where = "forward_raises" if event.kind == "forward" else "backward_raises"
            setattr(place, where, event.error)
        try:
            return self.call(*self.case.batches(rows))
        except (_ExpectedError, KeyboardInterrupt) as raised:
            return repr(raised)
        finally:
            place.forward_raises = place.backward_raises = None


class _Event:
    """What happens at a step."""

    def __init__(self, dice: random.Random, *, paging: bool) -> None:
        kinds = ["nothing"] * 16 + ["forward", "backward", "pause"] + ["fault"] * paging
        self.kind = dice.choice(kinds)
        self.layer = dice.randrange(_DEPTH)
        raises = self.kind in ("forward", "backward")
        self.error = dice.choice([_ExpectedError, KeyboardInterrupt]) if raises else None
        self.fault, self.nth = dice.choice(HARMLESS), dice.randint(1, 20)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


def _descriptors() -> list[str]:
    names = []
    for name in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # that of the listing itself
            continue
    return sorted(names)


def _children() -> list[str]:
    tasks = Path("/proc/self/task")
    return [child for t in tasks.iterdir() for child in (t / "children").read_text().split()]


class _Soak:
    def __init__(self, steps: int, *, paging: bool) -> None:
        self.steps, self.paging = steps, paging
        self.dice = random.Random(steps)
        self.seen: Counter[str] = Counter()
        self.resident: list[int] = []
        self.plain = _Twin()
        self.plain.call(*self.plain.case.batches(max(_ROWS)))  # from now on it has all that it has
        probe = _Twin().case
        self.graph = poet.trace(probe.step, *probe.batches(max(_ROWS)))
        del probe
        self.wrapped = _Twin()
        self.wrapped.call(*self.wrapped.case.batches(max(_ROWS)))

    def _wrap(self) -> poet.WrappedStep:
        os.environ["POET_ONLINE"] = self.dice.choice("01")
        budget = slack_budget(self.graph, self.dice.uniform(0.3, 1.0))
        step = poet.wrap(
            self.wrapped.case.step,
            ram_budget=budget,
            paging=self.paging,
            recompute=not self.paging or self.dice.random() < 0.5,
            background=self.dice.random() < 0.5,
            time_limit_s=1,
            cache_dir=None,
            strict=False,
        )
        self.wrapped.call = step
        return step

    def _step(self, i: int, step: poet.WrappedStep) -> None:
        event = _Event(self.dice, paging=self.paging)
        rows = self.dice.choice(_ROWS[:1] * 6 + _ROWS)
        wanted = self.plain.train(i, rows, event)
        if event.kind == "fault":
            with injected(event.fault, event.nth):
                got = self.wrapped.train(i, rows, event)
        else:
            got = self.wrapped.train(i, rows, event)
        assert got == wanted, (i, event.kind)
        self.seen[event.kind] += 1
        if event.kind == "pause":
            self.seen["released"] += step.pause() > 0

    def _period(self, first: int) -> None:
        with self._wrap() as step:
            for i in range(first, first + _PERIOD):
                self._step(i, step)
            stats = step.stats
            self.seen["followed"] += stats.followed_steps
            self.seen["online"] += stats.online_steps
            self.seen["paged out"] += stats.planned_page_outs
        assert differences(self.plain.case.state(), self.wrapped.case.state()) == [], first
        self.wrapped.call = self.wrapped.case.step
        del step  # its page file goes with it
        gc.collect()
        self.resident.append(_status("VmRSS"))

    def run(self) -> None:
        for first in range(0, self.steps, _PERIOD):
            self._period(first)


def _soak(steps: int, paging: bool) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", poet.BudgetWarning)
    warnings.simplefilter("ignore", poet.StoreWarning)
    soak = _Soak(steps, paging=paging)
    soak._period(0)  # what is loaded and opened once
    descriptors = _descriptors()
    soak.run()
    assert _descriptors() == descriptors, (_descriptors(), descriptors)
    assert _children() == [], _children()
    print(dict(soak.seen), [r // MIB for r in soak.resident], flush=True)
    assert soak.seen["followed"] > steps // 10 and soak.seen["forward"] and soak.seen["backward"]
    if paging:
        assert soak.seen["fault"] and soak.seen["released"]
    if steps == _STEPS:
        assert (soak.seen["paged out"] > 0) == paging
        quarter = len(soak.resident) // 4
        assert max(soak.resident[2 * quarter :]) <= max(soak.resident[:quarter]) + _TOLERANCE


@pytest.mark.parametrize("paging", [False, True], ids=["recompute", "paging"])
@pytest.mark.parametrize("steps", [_FEW, pytest.param(_STEPS, marks=pytest.mark.nightly)])
def test_after_all_that_may_happen_nothing_is_lost_and_nothing_left(
    steps: int, paging: bool
) -> None:
    in_a_process_of_its_own(_soak, steps, paging, seconds=3600)
