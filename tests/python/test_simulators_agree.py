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
from paging_plans import paging_plan

import poet
from poet import _C

HOST = poet.DeviceProfile.by_name("host")
# Slow enough that transfers take as long as ops; with 0 to 3 channels.
PAGING = [
    HOST.with_store(4000.0, 2500.0, 0.125, 0.0625, dma_channels=channels, wake_joules=0.5)
    for channels in range(4)
]
FIGURES = [
    "replay_factor",
    "replay_fixed_seconds",
    "generator_state_bytes",
    "compute_watts",
    "idle_watts",
    "memory_watts",
    "store_watts",
    "store_read_rate",
    "store_write_rate",
    "store_read_latency_seconds",
    "store_write_latency_seconds",
    "wake_joules",
    "dma_channels",
]
DATA = sorted((Path(__file__).parents[1] / "data").glob("*.json"))


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def compare(
    graph: poet.Graph, schedule: poet.Schedule | None, device: poet.DeviceProfile = HOST
) -> poet.Simulation | None:
    """Runs both simulators; None where both refuse the schedule."""
    document = json.loads(schedule.to_json()) if schedule is not None else {"actions": []}
    figures = {name: getattr(device, name) for name in FIGURES}
    fast: poet.Simulation | poet.ScheduleError
    slow: NaiveSimulator | RefusedError
    try:
        fast = _C.simulate(graph, schedule, device)
    except poet.ScheduleError as refusal:
        fast = refusal
    try:
        slow = NaiveSimulator(
            json.loads(graph.to_json()),
            document["actions"],
            figures,
            document.get("away_between_steps", []),
        ).run()
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
    assert fast.makespan_seconds == pytest.approx(slow.clock, rel=1e-9)
    assert fast.energy_joules == pytest.approx(slow.joules(), rel=1e-9)
    assert fast.transfer_seconds == pytest.approx(slow.transfer_seconds, rel=1e-9)
    assert [fast.page_outs, fast.paged_out_bytes] == slow.moved["page_out"]
    assert [fast.page_ins, fast.paged_in_bytes] == slow.moved["page_in"]
    assert fast.wake_ups == len(slow.awake)
    one_after_another = slow.seconds + slow.recompute_seconds + slow.transfer_seconds
    assert fast.makespan_seconds <= one_after_another * (1 + 1e-9)
    assert fast.hidden_seconds == pytest.approx(one_after_another - slow.clock, abs=1e-9)
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


def check_paging(count: int) -> None:
    """Every device gives the same bytes, and more channels than one are never slower than none."""
    seen: collections.Counter[str] = collections.Counter()

    @examples(count)
    @given(graphs(), st.integers(0, 2**32), st.data())
    def check(step: JsonObject, seed: int, data: st.DataObject) -> None:
        graph = poet.Graph.from_json(graph_text(step))
        actions, away = paging_plan(json.loads(graph.to_json()), seed)
        if actions and data.draw(st.integers(0, 3)) == 0:
            actions = break_plan(data.draw, actions, step)
        text = schedule_text(graph.signature, len(graph), actions)
        if away:
            text = json.dumps(json.loads(text) | {"away_between_steps": away})
        schedule = poet.Schedule.from_json(text)
        assert schedule.away_between_steps == tuple(away)
        results = [compare(graph, schedule, device) for device in PAGING]
        seen["drawn"] += 1
        if results[0] is None:
            assert results == [None] * len(PAGING)
            return
        for result in results:
            assert result is not None
            assert result.peak_bytes == results[0].peak_bytes
            assert result.makespan_seconds <= results[0].makespan_seconds * (1 + 1e-9)
            seen["hidden"] += result.hidden_seconds > 0
        seen["carried out"] += 1
        seen["paged"] += results[0].page_ins > 0
        seen["recomputed"] += results[0].recomputed_ops > 0
        seen["away"] += bool(away)

    check()
    assert seen["carried out"] > seen["drawn"] / 2, seen
    assert seen["drawn"] > seen["carried out"], seen
    assert min(seen["paged"], seen["hidden"]) > seen["drawn"] / 4, seen
    assert min(seen["recomputed"], seen["away"]) > seen["drawn"] / 20, seen


def test_random_schedules_cost_the_same() -> None:
    check_random_schedules(300)


def test_random_transfers_cost_the_same() -> None:
    check_paging(150)


def test_a_device_without_a_store_pages_nothing() -> None:
    ops = [{"name": "a", "inputs": [0], "outputs": []}]
    graph = poet.Graph.from_json(
        graph_text({"base_bytes": 0, "ops": ops, "values": [{"bytes": 8, "death": 1}]})
    )
    page_out = {"at": 0, "when": "before", "do": "page_out", "value": 0}
    assert compare(graph, with_actions(graph, [page_out])) is None
    assert compare(graph, with_actions(graph, [page_out]), PAGING[0]) is not None


def test_broken_schedules_are_refused_by_both() -> None:
    check_broken_schedules(300)


@pytest.mark.nightly
def test_many_random_schedules_cost_the_same() -> None:
    check_random_schedules(20_000)
    check_paging(20_000)
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
    with pytest.raises(
        (poet.FormatError, poet.ScheduleError), match=r"expected|cannot|missing|no store"
    ):
        poet.simulate(graph, with_actions(graph, [change]))
