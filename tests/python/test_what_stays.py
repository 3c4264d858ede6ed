"""Memory that stays although the plan releases it: counted, told of, and made room for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from own_process import in_a_process_of_its_own
from random_plans import STORE_DEVICE, random_plan
from resident import Peaks
from torch import nn

import poet
from poet import _C
from poet._live import run_step
from poet._store import page_folder

Hook = Callable[[torch.Tensor, list[torch.Tensor]], Any]


class _Training:
    """A step, whose `hook` gets the batch and the activations."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)])
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.05)
        self.hook: Hook | None = None
        self.generator = torch.Generator().manual_seed(1)

    def batch(self) -> torch.Tensor:
        return torch.randn(256, 64, generator=self.generator)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        made = [x.sin()]
        for layer in self.net:
            made.append(layer(made[-1]))
        seen = self.hook(x, made) if self.hook is not None else None
        loss = made[-1].square().mean()
        made.clear()
        loss.backward()
        self.optimizer.step()
        del seen
        return loss.detach()


class _Planned(_Training):
    """Under a plan whose budget is its own peak: one that pages, or one that recomputes."""

    def __init__(self, *, paging: bool = False, policed: bool = False) -> None:
        super().__init__()
        self.session = _C.Session(verify=False)
        self.paging, self.policed = paging, policed
        if paging:
            self.session.set_store(page_folder(None))
        self.reports: list[dict[str, Any]] = []
        self.budget = 0

    def call(self, x: torch.Tensor) -> torch.Tensor:
        result, report = run_step(self.session, self.step, (x,), {})
        self.reports.append(report)
        if report["newly_stable"]:
            graph = self.session.graph_of(report["variant"])
            if self.paging:
                plan = random_plan(graph, 3, 0.6, paging=0.3)
            else:
                plan = poet.solve(model=graph, ram_budget="1GiB", method="chen_sqrt")
            self.budget = _C.simulate(graph, plan, STORE_DEVICE).peak_bytes
            document = json.loads(plan.to_json()) | {"ram_budget_bytes": self.budget}
            plan = poet.Schedule.from_json(json.dumps(document))
            self.session.set_plan(report["variant"], plan, STORE_DEVICE)
            if self.policed:
                self.session.set_budget(self.budget, True, self.paging, STORE_DEVICE, "never")
        return result


def _keep_all(x: torch.Tensor, made: list[torch.Tensor]) -> None:
    for t in made:
        poet.keep(t)


def test_what_cannot_be_released_is_counted_and_told_of() -> None:
    plain, own = _Training(), _Planned()
    for call in range(9):
        own.hook = _keep_all if call in (5, 6) else None
        assert torch.equal(own.call(own.batch()), plain.step(plain.batch()))
        if call == 4:
            assert own.session.counters()["skipped_frees"] == 0
    over = [report["over_bytes"] for report in own.reports]
    assert [bytes > 0 for bytes in over] == [False] * 5 + [True] * 2 + [False] * 2
    assert own.reports[5]["over_text"].startswith(f"by {over[5]} bytes, at op ")
    assert "that the plan releases stayed" in own.reports[5]["over_text"]
    counters = own.session.counters()
    assert counters["skipped_frees"] > 0
    assert counters["steps_over_budget"] == 2
    assert counters["most_over_bytes"] == max(over)


def _write_batch(x: torch.Tensor, made: list[torch.Tensor]) -> None:
    x.numpy()[:] = 7


def _check_a_new_raw_read(paging: bool, policed: bool) -> None:
    """What was made from the batch cannot be made again once NumPy has it."""
    plain, got, wanted = _Training(), [], []
    for call in range(8):
        plain.hook = _write_batch if call == 5 else None
        wanted.append(plain.step(plain.batch()).item())
    del plain
    with Peaks() as peaks:
        own = _Planned(paging=paging, policed=policed)
        for call in range(8):
            own.hook = _write_batch if call == 5 else None
            x = own.batch()
            peaks.mark()
            got.append(own.call(x).item())
    assert got == wanted
    assert [report["mode"] for report in own.reports[4:]] == [
        "followed",
        "departed",
        "followed",
        "followed",
    ]
    for call in range(4, 8):
        if call != 5 or policed:
            assert own.reports[call]["over_bytes"] == 0, own.reports[call]["over_text"]
            assert peaks.bytes[call] <= own.budget, [p - own.budget for p in peaks.bytes]


@pytest.mark.parametrize("policed", [False, True], ids=["uncapped", "policed"])
@pytest.mark.parametrize("paging", [False, True], ids=["recompute", "paging"])
def test_a_new_raw_read_leaves_the_plan_and_keeps_the_budget(paging: bool, policed: bool) -> None:
    in_a_process_of_its_own(_check_a_new_raw_read, paging, policed)
