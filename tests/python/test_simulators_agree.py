"""The simulator in C++ and a naive one in Python say the same, to the byte."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import pytest
from graph_strategies import JsonObject, graph_text, graphs, plans, schedule_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive_simulator import NaiveSimulator, RefusedError

import poet

HOST = poet.DeviceProfile.by_name("host")
DEVICE = {
    name: getattr(HOST, name)
    for name in ("replay_factor", "replay_fixed_seconds", "generator_state_bytes")
}
DATA = sorted((Path(__file__).parents[1] / "data").glob("*.json"))


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def compare(graph: poet.Graph, schedule: poet.Schedule | None) -> poet.Simulation | None:
    """Runs both simulators; None where both refuse the schedule."""
    actions = json.loads(schedule.to_json())["actions"] if schedule is not None else []
    fast: poet.Simulation | poet.ScheduleError
    slow: NaiveSimulator | RefusedError
    try:
        fast = poet.simulate(graph, schedule)
    except poet.ScheduleError as refusal:
        fast = refusal
    try:
        slow = NaiveSimulator(json.loads(graph.to_json()), actions, DEVICE).run()
    except RefusedError as refusal:
        slow = refusal
    if isinstance(fast, poet.ScheduleError) or isinstance(slow, RefusedError):
        assert isinstance(fast, poet.ScheduleError), f"only the naive one refuses: {slow}"
        assert isinstance(slow, RefusedError), f"only the one in C++ refuses: {fast}"
        return None
    assert fast.peak_bytes == slow.peak
    assert fast.peak_op == slow.peak_op
    assert list(fast.resident_bytes) == slow.resident
    assert fast.recomputed_ops == slow.recomputed_ops
    assert fast.recompute_seconds == pytest.approx(slow.recompute_seconds, rel=1e-9)
    makespan = slow.seconds + slow.recompute_seconds
    assert fast.makespan_seconds == pytest.approx(makespan, rel=1e-9)
    watts = HOST.compute_watts + HOST.idle_watts + HOST.memory_watts
    assert fast.energy_joules == pytest.approx(watts * makespan, rel=1e-9)
    return fast


def with_actions(graph: poet.Graph, actions: list[JsonObject]) -> poet.Schedule:
    return poet.Schedule.from_json(schedule_text(graph.signature, len(graph), actions))


def check_random_schedules(count: int) -> None:
    """Random schedules for random graphs; most can be carried out, and many recompute."""
    seen: collections.Counter[str] = collections.Counter()

    @examples(count)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        step = data.draw(graphs())
        graph = poet.Graph.from_json(graph_text(step))
        result = compare(graph, with_actions(graph, data.draw(plans(step))))
        seen["drawn"] += 1
        seen["carried out"] += result is not None
        seen["with recompute"] += result is not None and result.recomputed_ops > 0

    check()
    assert seen["carried out"] > seen["drawn"] / 2
    assert seen["with recompute"] > seen["drawn"] / 8


def break_plan(draw: st.DrawFn, actions: list[JsonObject], step: JsonObject) -> list[JsonObject]:
    """One change that may or may not spoil the plan."""
    ops, values = len(step["ops"]), len(step["values"])
    at = draw(st.integers(0, len(actions) - 1))
    action = dict(actions[at])
    rest = actions[:at] + actions[at + 1 :]
    change = draw(st.sampled_from(["drop", "double", "move", "other", "chain", "when"]))
    if change == "drop":
        return rest
    if change == "double":
        return [*actions[: at + 1], action, *actions[at + 1 :]]
    if change == "move":
        action["at"] = draw(st.integers(0, ops - (action["when"] == "after")))
    elif change == "when":
        action["when"] = "after" if action["when"] == "before" and action["at"] < ops else "before"
    elif "value" in action:
        action["value"] = draw(st.integers(0, values - 1))
    else:
        chain = draw(st.sets(st.integers(0, ops - 1), min_size=1, max_size=4))
        action["ops"] = sorted(chain if change == "other" else chain ^ set(action["ops"]) or chain)
    return [*actions[:at], action, *actions[at + 1 :]]


@st.composite
def broken_plans(draw: st.DrawFn, step: JsonObject) -> list[JsonObject]:
    actions = draw(plans(step))
    for _ in range(draw(st.integers(1, 2))):
        if actions:
            actions = break_plan(draw, actions, step)
    return actions


def check_broken_schedules(count: int) -> None:
    seen: collections.Counter[str] = collections.Counter()

    @examples(count)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        step = data.draw(graphs())
        graph = poet.Graph.from_json(graph_text(step))
        refused = compare(graph, with_actions(graph, data.draw(broken_plans(step)))) is None
        seen["refused" if refused else "carried out"] += 1

    check()
    assert min(seen["refused"], seen["carried out"]) > sum(seen.values()) / 10


def test_random_schedules_cost_the_same() -> None:
    check_random_schedules(300)


def test_broken_schedules_are_refused_by_both() -> None:
    check_broken_schedules(300)


@pytest.mark.nightly
def test_many_random_schedules_cost_the_same() -> None:
    check_random_schedules(20_000)
    check_broken_schedules(20_000)


@examples(100)
@given(graphs(max_ops=30))
def test_plain_training_costs_the_same(step: JsonObject) -> None:
    graph = poet.Graph.from_json(graph_text(step))
    plain = compare(graph, None)
    assert plain is not None
    assert plain.recomputed_ops == 0
    assert plain.makespan_seconds == pytest.approx(graph.plain_seconds)
    assert plain.peak_bytes == graph.plain_peak_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 100))
def test_schedules_of_the_solver_cost_the_same_and_what_the_solver_believes(
    step: JsonObject, percent: int
) -> None:
    graph = poet.Graph.from_json(graph_text(step))
    peak = graph.plain_peak_bytes()
    budget = max(1, peak * percent // 100)
    schedule = poet.solve(graph=graph, ram_budget=budget, time_limit_s=10)
    check_solved(graph, schedule, budget)


def check_solved(graph: poet.Graph, schedule: poet.Schedule, budget: int) -> None:
    if schedule.status is poet.Status.INFEASIBLE:
        assert schedule.least_ram_budget is None or schedule.least_ram_budget > budget
        return
    if not schedule.has_plan:  # neither plan nor proof in time: a status, nothing to compare
        assert schedule.status is poet.Status.TIME_LIMIT, schedule.message
        return
    result = compare(graph, schedule)
    assert result is not None
    assert result.peak_bytes == schedule.peak_bytes == schedule.believed_peak_bytes <= budget
    assert result.peak_op == schedule.peak_op
    assert result.makespan_seconds == schedule.makespan_seconds
    assert result.energy_joules == schedule.energy_joules


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.stem)
@pytest.mark.parametrize("share", ["100%", "80%", "70%"])
def test_schedules_of_real_steps_cost_the_same(path: Path, share: str) -> None:
    graph = poet.Graph.load(path)
    plain = compare(graph, None)
    assert plain is not None
    schedule = poet.solve(graph=graph, ram_budget=share, time_limit_s=10)
    check_solved(graph, schedule, plain.peak_bytes * int(share[:-1]) // 100)


def test_there_are_real_steps_to_compare() -> None:
    assert DATA, "tests/data holds no graph"


@pytest.mark.parametrize(
    "change",
    [
        {"at": 99, "when": "before", "do": "free", "value": 0},
        {"at": 0, "when": "before", "do": "free", "value": 99},
        {"at": 1, "when": "before", "do": "recompute", "ops": [99]},
        {"at": 1, "when": "before", "do": "recompute", "ops": []},
        {"at": 1, "when": "before", "do": "recompute", "ops": [1, 0]},
        {"at": 1, "when": "before", "do": "page_out", "value": 0},
        {"at": 1, "when": "before", "do": "explode", "value": 0},
        {"at": 1, "when": "during", "do": "free", "value": 0},
        {"at": -1, "when": "before", "do": "free", "value": 0},
        {"at": 1, "when": "before", "do": "free"},
    ],
)
def test_actions_that_name_nothing_are_refused(change: dict[str, Any]) -> None:
    ops = [{"name": "a", "inputs": [0], "outputs": [1]}, {"name": "b", "inputs": [1]}]
    values = [{"bytes": 8, "death": 2}, {"bytes": 8, "producer": 0, "death": 1}]
    graph = poet.Graph.from_json(graph_text({"base_bytes": 0, "ops": ops, "values": values}))
    assert compare(graph, None) is not None
    with pytest.raises((poet.FormatError, poet.ScheduleError), match=r"expected|cannot|missing"):
        poet.simulate(graph, with_actions(graph, [change]))
