"""poet.solve against trying everything, on random steps of a handful of ops."""

from __future__ import annotations

import collections

import pytest
from exhaustive import extra_seconds, least_budget
from graph_strategies import JsonObject, graph_text, graphs
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import poet

TIME_LIMIT = 20


def solve(graph: poet.Graph, budget: int) -> poet.Schedule:
    return poet.solve(graph=graph, ram_budget=budget, minimize="time", time_limit_s=TIME_LIMIT)


def check_plan(graph: poet.Graph, budget: int, schedule: poet.Schedule) -> None:
    """There is a plan within `budget`: `schedule` must be one, and no better than the best."""
    assert schedule.has_plan, f"{schedule.status}: {schedule.message}"
    best = extra_seconds(graph, budget)
    assert best is not None
    simulated = poet.simulate(graph, schedule)
    assert simulated.peak_bytes <= budget
    found = simulated.recompute_seconds
    assert found >= best - 1e-9, "a plan that is better than the search finds"
    if schedule.status is poet.Status.OPTIMAL:
        assert found == pytest.approx(best, abs=1e-9), "said to be optimal"
    elif schedule.bound_scope == "all":
        assert schedule.bound is not None
        assert schedule.bound <= (graph.plain_seconds + best) * (1 + 1e-9)


def check_many(count: int) -> collections.Counter[str]:
    """Every step at a budget that just does, at one that is a byte short, and at one between."""
    seen: collections.Counter[str] = collections.Counter()

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(graphs(max_ops=7), st.integers(0, 99))
    def check(step: JsonObject, percent: int) -> None:
        assume(step["ops"])  # a step of no op has nothing to search
        graph = poet.Graph.from_json(graph_text(step))
        least = least_budget(graph)
        assume(least > 0)  # 0 is no budget
        between = least + (graph.plain_peak_bytes() - least) * percent // 100
        for budget in {least, between}:
            schedule = solve(graph, budget)
            check_plan(graph, budget, schedule)
            seen[schedule.status] += 1
            seen["recomputes"] += any(action.ops for action in schedule.actions)
        if least > 1:
            short = solve(graph, least - 1)
            assert not short.has_plan
            seen["short"] += 1
            if short.status is poet.Status.INFEASIBLE:
                assert short.least_ram_budget == least
                assert short.least_ram_op is not None
                assert short.message
                seen["infeasible"] += 1

    check()
    return seen


def test_solutions_are_what_a_search_over_everything_finds() -> None:
    seen = check_many(100)
    assert seen["short"] > 50
    assert seen["infeasible"] > 0.9 * seen["short"]
    assert seen["optimal"] > 50
    assert seen["recomputes"] > 0


@pytest.mark.nightly
def test_many_solutions_are_what_a_search_over_everything_finds() -> None:
    check_many(3000)
