"""What programs do around wrapped steps: several steps, threads, loaders, checkpoint files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from own_process import in_a_process_of_its_own
from random_plans import STORE_DEVICE, random_plan
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo import Case, differences

import poet
from poet import _C
from poet._live import run_step

pytestmark = pytest.mark.usefixtures("one_thread")


def _case(seed: int, dropout: float = 0.1, rows: int = 64) -> Case:
    torch.manual_seed(seed)
    layers = [m for _ in range(4) for m in (nn.Linear(12, 12), nn.GELU(), nn.Dropout(dropout))]
    net = nn.Sequential(*layers, nn.Linear(12, 3))
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    x, y = torch.randn(rows, 12), torch.randint(0, 3, (rows,))

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
        for step in steps:
            if isinstance(step, _Planned):
                step.check(8)
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


_PART = 6  # calls


def _resumed_part(folder: Path, part: int, budget: str) -> None:
    """One part of a training under a budget; it begins with the file that the one before left."""
    case = _case(part, rows=1024)  # other weights, until the file is loaded
    if part:
        before = torch.load(folder / f"{part - 1}.pt")
        case.modules[0].load_state_dict(before["net"])
        case.optimizers[0].load_state_dict(before["optimizer"])
        torch.set_rng_state(before["generator"])
    else:
        torch.manual_seed(3)
    step = poet.wrap(
        case.step, ram_budget=budget, paging=False, background=False, cache_dir=None, time_limit_s=5
    )
    losses = [step(*_batch(part * _PART + i)) for i in range(_PART)]
    stats = step.stats
    assert stats.followed_steps >= 2, (stats.message, stats.last_departure)
    assert stats.planned_recomputes > 0
    written = {
        "net": case.modules[0].state_dict(),
        "optimizer": case.optimizers[0].state_dict(),
        "generator": torch.get_rng_state(),
        "losses": losses,
        "state": case.state(),
        "planned budget": step.schedule.ram_budget,
    }
    torch.save(written, folder / f"{part}.pt")


def _batch(call: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(call)
    return (
        torch.randn(1024, 12, generator=generator),
        torch.randint(0, 3, (1024,), generator=generator),
    )


def test_resuming_from_a_file_in_another_process_under_another_budget(tmp_path: Path) -> None:
    for part, budget in enumerate(["90%", "70%"]):
        in_a_process_of_its_own(_resumed_part, tmp_path, part, budget)
    parts = [torch.load(tmp_path / f"{part}.pt") for part in range(2)]
    assert parts[1]["planned budget"] < parts[0]["planned budget"]

    case = _case(0, rows=1024)
    torch.manual_seed(3)
    losses = [case.step(*_batch(i)) for i in range(2 * _PART)]
    assert [str(x) for part in parts for x in part["losses"]] == [str(x) for x in losses]
    assert differences(case.state(), parts[1]["state"]) == []


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


# ---------------------------------------------------------------- values that others own


class _Owners:
    """Who holds what of a step: a list, a closure and a dictionary that outlive it, and the batch.

    Some of it is held from the fifth call on: what no recorded call has shown.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.calls = 0
        self.listed: list[torch.Tensor] = []
        self.late: list[Callable[[], torch.Tensor]] = []
        self.named: dict[str, torch.Tensor] = {}
        self.batch: tuple[torch.Tensor, torch.Tensor] | None = None

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.listed.clear()
        self.late.clear()
        self.case.optimizers[0].zero_grad()
        net = self.case.modules[0]
        doubled = x * 2
        hidden = net[:4](doubled)
        self.listed.append(hidden.detach())
        whole = net[4:8](hidden)
        self.late.append(lambda: whole.detach().sum())
        if self.calls > 5:
            self.listed += [doubled[:8], whole.detach()]  # a view, and what nobody held before
            self.named["whole"] = whole
        loss = F.cross_entropy(net[8:](whole), y)
        loss.backward()
        self.case.optimizers[0].step()
        return loss.detach()

    def seen(self) -> dict[str, Any]:
        """Through every owner, and the batch from outside."""
        assert self.batch is not None
        found: dict[str, Any] = {f"listed {i}": t.clone() for i, t in enumerate(self.listed)}
        found |= {f"late {i}": f() for i, f in enumerate(self.late)}
        found |= {name: t.detach().clone() for name, t in self.named.items()}
        return found | {"x": self.batch[0].clone(), "y": self.batch[1].clone()}


def _check_owners(page_dir: Path, planned: bool) -> None:
    def train(under_poet: bool) -> list[dict[str, Any]]:
        owners = _Owners(_case(0, rows=512))
        torch.manual_seed(3)
        session = _C.Session(verify=False)
        session.set_store(str(page_dir))
        if under_poet and not planned:
            session.set_budget(1, True, True, STORE_DEVICE, "never")
        found = []
        for call in range(8):
            owners.batch = _batch(call)
            if not under_poet:
                owners.step(*owners.batch)
            else:
                _, report = run_step(session, owners.step, owners.batch, {})
                if planned and report["newly_stable"]:
                    graph = session.graph_of(report["variant"])
                    plan = random_plan(graph, 2, 0.4, paging=0.2, away_between=True)
                    session.set_plan(report["variant"], plan, STORE_DEVICE)
            found.append(owners.seen())
        if under_poet:
            counters = session.counters()
            if planned:
                assert counters["followed_steps"] >= 2, counters["last_departure"]
                assert counters["planned_page_outs"] > 0 and counters["planned_recomputes"] > 0
            else:
                assert counters["online_page_outs"] + counters["online_recomputes"] > 0
        return [*found, owners.case.state()]

    for wanted, got in zip(train(False), train(True), strict=True):
        assert differences(wanted, got) == []


@pytest.mark.parametrize("planned", [False, True], ids=["online", "planned, paging"])
def test_what_outlives_the_step_elsewhere_is_whole(planned: bool, tmp_path: Path) -> None:
    in_a_process_of_its_own(_check_owners, tmp_path, planned)
