"""Every kind of step trains to the same bits under random plans, in the self-checking mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from random_plans import random_plan
from zoo import KINDS, build, differences, plain

from poet import _C
from poet._live import run_step

pytestmark = pytest.mark.usefixtures("one_thread")

_CALLS = {"accumulation": 18}
_DEVICE = _C.DeviceProfile.by_name("host")


def _train_randomly(
    kind: str, calls: int, seed: int, eagerness: float
) -> tuple[Any, list[Any], dict[str, Any]]:
    case = build(kind)
    session = _C.Session(verify=True)
    results = []
    for i in range(calls):
        result, report = run_step(session, case.step, case.batches(i), {})
        results.append(result)
        if report["newly_stable"]:
            graph = session.graph_of(report["variant"])
            session.set_plan(report["variant"], random_plan(graph, seed, eagerness), _DEVICE)
    return case, results, session.counters()


@pytest.mark.parametrize("eagerness", [0.03, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_random_plans_keep_every_bit(kind: str, eagerness: float) -> None:
    calls = _CALLS.get(kind, 6)
    results, state = plain(kind, calls)
    case, under_plan, counters = _train_randomly(kind, calls, seed=len(kind), eagerness=eagerness)
    assert differences(state, case.state()) == []
    assert [str(r) for r in under_plan] == [str(r) for r in results]
    assert counters["followed_steps"] >= 3
    assert counters["departures"] == 0, counters["last_departure"]
    if counters["plan_switches"] == 0:  # another variant's plan may want values that this one freed
        assert counters["unplanned_recomputes"] == 0, counters["first_unplanned"]
    if eagerness > 0.1:
        assert counters["planned_recomputes"] > 0


def test_random_plans_keep_every_bit_on_two_threads() -> None:
    torch.set_num_threads(2)
    results, state = plain("residual_net", 6)
    case, under_plan, counters = _train_randomly("residual_net", 6, seed=1, eagerness=0.2)
    assert differences(state, case.state()) == []
    assert [str(r) for r in under_plan] == [str(r) for r in results]
    assert counters["planned_recomputes"] > 0


def test_a_replay_runs_on_as_many_threads_as_its_first_run() -> None:
    """A sum has other bits on two threads; it is computed again where the step runs on one."""
    torch.manual_seed(0)
    wide = torch.randn(512, 513).exp_()
    for threads, is_same in ((1, True), (2, False)):
        torch.set_num_threads(threads)
        found = wide.sum()
        torch.set_num_threads(1)
        assert torch.equal(found, wide.sum()) == is_same, "the sum is no test"

    weight = torch.randn(16, 16, requires_grad=True)

    def step() -> torch.Tensor:
        weight.grad = None
        torch.set_num_threads(2)
        total = (wide * 1.0).sum()
        torch.set_num_threads(1)
        loss = (weight * total).tanh().square().sum()
        loss.backward()  # the gradient of the product reads the sum
        assert weight.grad is not None
        return weight.grad.clone()

    wanted = step()
    session = _C.Session(verify=True)
    for _ in range(5):
        result, report = run_step(session, step, (), {})
        assert torch.equal(result, wanted)
        if report["newly_stable"]:
            graph = session.graph_of(report["variant"])
            plan = random_plan(graph, 0, 0.9)
            again = [k for action in plan.actions if action.kind == "recompute" for k in action.ops]
            assert "aten::sum" in [graph.ops[k].name for k in again]
            session.set_plan(report["variant"], plan, _DEVICE)
    assert session.counters()["followed_steps"] >= 2
    assert session.counters()["planned_recomputes"] > 0
    assert torch.get_num_threads() == 1
