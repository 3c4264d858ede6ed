"""What programs do around wrapped steps: several steps, threads, loaders, checkpoint files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from random_plans import STORE_DEVICE, random_plan
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo import Case, differences

from poet import _C
from poet._live import run_step

pytestmark = pytest.mark.usefixtures("one_thread")


def _case(seed: int, dropout: float = 0.1) -> Case:
    torch.manual_seed(seed)
    layers = [m for _ in range(4) for m in (nn.Linear(12, 12), nn.GELU(), nn.Dropout(dropout))]
    net = nn.Sequential(*layers, nn.Linear(12, 3))
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    x, y = torch.randn(64, 12), torch.randint(0, 3, (64,))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda _: (x, y), [net], [optimizer])


class _Planned:
    """A step under random plans."""

    def __init__(self, step: Callable[..., Any], eagerness: float = 0.4) -> None:
        self.session = _C.Session(verify=False)
        self._step, self._eagerness = step, eagerness

    def __call__(self, *args: Any) -> Any:
        result, report = run_step(self.session, self._step, args, {})
        if report["newly_stable"]:
            plan = random_plan(self.session.graph_of(report["variant"]), 2, self._eagerness)
            self.session.set_plan(report["variant"], plan, STORE_DEVICE)
        return result

    def check(self, followed: int) -> None:
        counters = self.session.counters()
        assert counters["followed_steps"] >= followed, counters["last_departure"]
        assert counters["evictions"] > 0


def _compare(run: Callable[[bool], dict[str, Any]]) -> None:
    assert differences(run(False), run(True)) == []


def test_two_wrapped_steps_in_turn() -> None:
    def run(under_poet: bool) -> dict[str, Any]:
        cases = [_case(0), _case(1)]
        steps = [_Planned(c.step) if under_poet else c.step for c in cases]
        torch.manual_seed(2)
        for i in range(7):
            for case, step in zip(cases, steps, strict=True):
                step(*case.batches(i))
        for step in steps:
            if isinstance(step, _Planned):
                step.check(3)
        return cases[0].state() | {f"second {k}": v for k, v in cases[1].state().items()}

    _compare(run)


def test_two_steps_on_two_threads() -> None:
    """Without random numbers: the default generator is the process's."""

    def run(under_poet: bool) -> dict[str, Any]:
        cases = [_case(0, dropout=0.0), _case(1, dropout=0.0)]
        steps = [_Planned(c.step) if under_poet else c.step for c in cases]
        errors: list[BaseException] = []
        barrier = threading.Barrier(2)

        def train(case: Case, step: Callable[..., Any]) -> None:
            try:
                torch.set_num_threads(1)
                for i in range(12):
                    barrier.wait(60)
                    step(*case.batches(i))
            except BaseException as error:
                errors.append(error)
                barrier.abort()

        threads = [
            threading.Thread(target=train, args=pair) for pair in zip(cases, steps, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        found = cases[0].state() | {f"second {k}": v for k, v in cases[1].state().items()}
        return {name: v for name, v in found.items() if "generator" not in name}

    _compare(run)


def test_loader_workers_are_forked_between_planned_steps() -> None:
    def run(under_poet: bool) -> dict[str, Any]:
        case = _case(0)
        step = _Planned(case.step) if under_poet else case.step
        torch.manual_seed(2)
        data = TensorDataset(torch.randn(256, 12), torch.randint(0, 3, (256,)))
        for _ in range(3):  # new workers in every epoch
            for x, y in DataLoader(data, 64, shuffle=True, num_workers=2):
                step(x, y)
        if isinstance(step, _Planned):
            step.check(6)
        return case.state()

    _compare(run)


def test_resuming_from_a_file_under_another_plan(tmp_path: Path) -> None:
    def run(under_poet: bool) -> dict[str, Any]:
        file = tmp_path / "checkpoint.pt"
        case = _case(0)
        for eagerness in (0.2, 0.6):
            step = _Planned(case.step, eagerness) if under_poet else case.step
            torch.manual_seed(3)
            for i in range(6):
                step(*case.batches(i))
            if isinstance(step, _Planned):
                step.check(2)
            parts = [case.modules[0].state_dict(), case.optimizers[0].state_dict()]
            torch.save(parts, file)
            case = _case(7)
            loaded = torch.load(file)
            case.modules[0].load_state_dict(loaded[0])
            case.optimizers[0].load_state_dict(loaded[1])
        return case.state()

    _compare(run)
