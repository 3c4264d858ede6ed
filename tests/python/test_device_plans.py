"""Plans for other devices, beside a deadline: what is away between steps costs transfers there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import poet

_DEVICE = "raspberrypi5"


@pytest.fixture(scope="module")
def graph() -> poet.Graph:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for width, more in ((3, 16), (16, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(width, more, 3, padding=1), nn.BatchNorm2d(more), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(net.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    x, y = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
    step(x, y)
    return poet.trace(step, x, y)


def _solved(graph: poet.Graph, **words: Any) -> poet.Schedule:
    return poet.solve(graph=graph, cache_dir=None, **words)


def _check_that_it_has_a_plan(
    graph: poet.Graph, told: poet.Schedule, words: dict[str, Any]
) -> None:
    """The least budget that was told: whatever time the second search has."""
    assert told.least_plan is not None and told.least_ram_budget is not None
    assert told.least_plan.peak_bytes <= told.least_ram_budget
    found = _solved(
        graph,
        ram_budget=told.least_ram_budget,
        starts=[told.least_plan],
        **{**words, "time_limit_s": 0.5},
    )
    assert found.has_plan
    assert found.peak_bytes <= told.least_ram_budget
    assert found.runtime_budget_seconds is not None
    assert found.makespan_seconds <= found.runtime_budget_seconds * (1 + 1e-9)


def test_the_least_peak_within_a_deadline_is_at_most_plain_training_s(graph: poet.Graph) -> None:
    """Moving all of the optimizer's state in each step takes longer than that."""
    words = {"platform": _DEVICE, "minimize": "memory", "runtime_budget": 1.2, "time_limit_s": 4}
    found = _solved(graph, ram_budget="100%", **words)
    assert found.has_plan, found.message
    assert found.peak_bytes < graph.plain_peak_bytes()
    assert found.bound is not None and found.bound <= found.peak_bytes
    assert found.runtime_budget_seconds is not None
    assert found.makespan_seconds <= found.runtime_budget_seconds * (1 + 1e-9)


def test_the_least_budget_within_a_deadline_has_a_plan(graph: poet.Graph) -> None:
    words = {"platform": _DEVICE, "runtime_budget": 1.2, "time_limit_s": 4}
    none = _solved(graph, ram_budget="40%", **words)
    assert not none.has_plan
    assert none.least_ram_budget is not None
    assert none.least_ram_budget < graph.plain_peak_bytes()
    _check_that_it_has_a_plan(graph, none, words)


def test_a_curve_within_a_deadline_goes_below_the_plain_peak(graph: poet.Graph) -> None:
    curve = poet.pareto(
        graph=graph, platform=_DEVICE, runtime_budget=1.3, points=3, time_limit_s=3, cache_dir=None
    )
    assert len(curve) == 3
    assert curve[0].peak_bytes < 0.95 * graph.plain_peak_bytes()


@pytest.mark.parametrize("platform", ["m4", _DEVICE])
def test_a_recorded_step_is_simulated_with_the_device_s_times(
    graph: poet.Graph, platform: str
) -> None:
    schedule = _solved(graph, platform=platform, ram_budget="85%", time_limit_s=2)
    assert schedule.has_plan
    for step in (graph, schedule.traced_graph):
        assert step is not None
        found = poet.simulate(step, schedule, platform=platform)
        assert found.peak_bytes == schedule.peak_bytes
        assert found.makespan_seconds == pytest.approx(schedule.makespan_seconds)
        assert found.energy_joules == pytest.approx(schedule.energy_joules)
    plain = poet.simulate(graph, platform=platform)
    assert schedule.traced_graph is not None
    assert plain.makespan_seconds == pytest.approx(schedule.traced_graph.plain_seconds)
    assert schedule.summary(graph) == schedule.summary()


def test_the_history_ends_at_the_plan_whatever_else_was_tried(graph: poet.Graph) -> None:
    told: list[poet.SearchPoint] = []
    schedule = _solved(
        graph, platform="m4", ram_budget="60%", time_limit_s=3, on_progress=told.append
    )
    assert schedule.has_plan
    values = [point.value for point in schedule.history if point.value is not None]
    assert values == sorted(values, reverse=True)
    assert schedule.history[-1].value == pytest.approx(schedule.energy_joules)
    assert len(told) == len(schedule.history)


def test_what_no_choice_can_meet_is_infeasible_and_the_rest_is_not_claimed(
    graph: poet.Graph,
) -> None:
    words = {"platform": _DEVICE, "minimize": "memory", "runtime_budget": 1.2, "time_limit_s": 4}
    assert _solved(graph, ram_budget=graph.base_bytes + 1, **words).status == "infeasible"
    some = _solved(graph, ram_budget="40%", **words)
    assert not some.has_plan
    assert some.least_ram_budget is not None
    assert some.least_ram_budget < graph.plain_peak_bytes()
    _check_that_it_has_a_plan(graph, some, words)
