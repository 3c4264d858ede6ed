"""poet.Schedule as its users see it: figures, actions, files, and plans that do not fit."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from graph_strategies import JsonObject, graph_text, graphs, plans, schedule_text
from hypothesis import given, settings
from hypothesis import strategies as st
from small_steps import KIB, chain_graph, chain_plain_peak

import poet

LENGTH = 6
# Frees the first activation once op 1 has read it; op 0 runs again before op 11 needs it.
DROP_FIRST = [
    {"at": 2, "when": "before", "do": "free", "value": 1},
    {"at": 11, "when": "before", "do": "recompute", "ops": [0]},
]


def schedule_for(graph: poet.Graph, actions: list[JsonObject], **fields: Any) -> poet.Schedule:
    return poet.Schedule.from_json(schedule_text(graph.signature, len(graph), actions, **fields))


@pytest.fixture
def graph() -> poet.Graph:
    return chain_graph(LENGTH)


@pytest.fixture
def schedule(graph: poet.Graph) -> poet.Schedule:
    return schedule_for(graph, DROP_FIRST)


def test_actions_are_a_flat_tuple_in_order(schedule: poet.Schedule) -> None:
    assert schedule.actions == (
        poet.Action(at=2, when="before", kind=poet.ActionKind.FREE, value=1),
        poet.Action(at=11, when="before", kind=poet.ActionKind.RECOMPUTE, ops=(0,)),
    )
    assert schedule.actions[0].kind == "free"
    assert schedule.actions[1].value is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        schedule.actions[0].at = 3  # type: ignore[misc]


def test_actions_before_an_op_come_ahead_of_those_after_it(graph: poet.Graph) -> None:
    listed = [
        {"at": 5, "when": "after", "do": "retain", "value": 6},
        {"at": 5, "when": "before", "do": "free", "value": 2},
        {"at": 4, "when": "after", "do": "retain", "value": 5},
        {"at": 12, "when": "before", "do": "free", "value": 3},
        {"at": 5, "when": "before", "do": "free", "value": 1},
    ]
    actions = schedule_for(graph, listed).actions
    order = [(action.at, action.when, action.value) for action in actions]
    assert order == [
        (4, "after", 5),
        (5, "before", 2),
        (5, "before", 1),
        (5, "after", 6),
        (12, "before", 3),
    ]


def test_what_a_recompute_costs(graph: poet.Graph, schedule: poet.Schedule) -> None:
    plain, planned = poet.simulate(graph), poet.simulate(graph, schedule)
    assert plain.peak_bytes == chain_plain_peak(LENGTH)
    assert planned.peak_bytes == plain.peak_bytes - 4 * KIB
    assert (plain.peak_op, planned.peak_op) == (6, 6)
    assert (plain.recomputed_ops, planned.recomputed_ops) == (0, 1)
    host = poet.DeviceProfile.by_name("host")
    extra = 0.001 * host.replay_factor + host.replay_fixed_seconds
    assert planned.recompute_seconds == pytest.approx(extra)
    assert planned.makespan_seconds == pytest.approx(plain.makespan_seconds + extra)
    watts = host.compute_watts + host.idle_watts + host.memory_watts
    assert planned.energy_joules == pytest.approx(watts * planned.makespan_seconds)
    assert len(planned.resident_bytes) == len(graph)
    assert max(planned.resident_bytes) == planned.peak_bytes
    with pytest.raises(dataclasses.FrozenInstanceError):
        planned.peak_bytes = 0  # type: ignore[misc]


def test_a_schedule_without_a_plan_is_plain_training(graph: poet.Graph) -> None:
    empty = schedule_for(graph, [], status="infeasible")
    assert not empty.has_plan
    assert empty.actions == ()
    assert poet.simulate(graph, empty) == poet.simulate(graph)


def test_every_field_is_there(graph: poet.Graph) -> None:
    schedule = schedule_for(
        graph,
        DROP_FIRST,
        objective="time",
        ram_budget_bytes=30_000,
        runtime_budget_seconds=0.5,
        peak_bytes=123,
        peak_op=4,
        makespan_seconds=0.25,
        energy_joules=2.5,
        bound=0.2,
        gap=0.2,
        bound_scope="candidates",
        believed_peak_bytes=123,
        believed_seconds=0.25,
        solve_seconds=1.5,
        least_ram_budget=100,
        least_ram_op=7,
        message="A message.",
    )
    assert schedule.status is poet.Status.FEASIBLE
    assert schedule.objective is poet.Objective.TIME
    assert schedule.graph_signature == graph.signature
    assert schedule.num_ops == 12
    assert schedule.method == "test"
    assert schedule.ram_budget == 30_000
    assert schedule.runtime_budget_seconds == 0.5
    assert (schedule.peak_bytes, schedule.peak_op, schedule.believed_peak_bytes) == (123, 4, 123)
    assert (schedule.makespan_seconds, schedule.believed_seconds) == (0.25, 0.25)
    assert schedule.energy_joules == 2.5
    assert (schedule.bound, schedule.gap, schedule.bound_scope) == (0.2, 0.2, "candidates")
    assert schedule.solve_seconds == 1.5
    assert (schedule.least_ram_budget, schedule.least_ram_op) == (100, 7)
    assert schedule.message == "A message."
    assert schedule.traced_graph is None
    assert repr(schedule) == "<poet.Schedule feasible: 12 ops, peak 123 bytes>"


def test_what_is_unknown_is_none(schedule: poet.Schedule) -> None:
    assert schedule.ram_budget is schedule.runtime_budget_seconds is None
    assert schedule.bound is schedule.gap is schedule.least_ram_budget is None
    assert schedule.peak_op is schedule.least_ram_op is None


@pytest.mark.parametrize("status", list(poet.Status))
def test_statuses_are_values(graph: poet.Graph, status: poet.Status) -> None:
    schedule = schedule_for(graph, [], status=str(status))
    assert schedule.status is status
    assert schedule.status == status.value
    assert schedule.has_plan == (status in (poet.Status.OPTIMAL, poet.Status.FEASIBLE))
    assert f"{status} schedule of 12 ops" in str(schedule)
    assert ("allow more time" in str(schedule)) == (status is poet.Status.TIME_LIMIT)


def test_a_schedule_cannot_be_changed(schedule: poet.Schedule) -> None:
    for name in ("peak_bytes", "status", "graph", "new_name"):
        with pytest.raises(AttributeError):
            setattr(schedule, name, 3)
    with pytest.raises(AttributeError):
        del schedule.status
    with pytest.raises(TypeError):
        poet.Schedule()


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_json_and_pickle_keep_everything(data: st.DataObject) -> None:
    step = data.draw(graphs())
    graph = poet.Graph.from_json(graph_text(step))
    schedule = schedule_for(graph, data.draw(plans(step)), bound=0.1, gap=1 / 3)
    text = schedule.to_json()
    twins = (
        poet.Schedule.from_json(text),
        pickle.loads(pickle.dumps(schedule)),
        copy.deepcopy(schedule),
    )
    for twin in twins:
        assert twin == schedule
        assert hash(twin) == hash(schedule)
        assert twin.to_json() == text
        assert twin.actions == schedule.actions
        assert twin.gap == 1 / 3


@pytest.mark.parametrize("as_type", [str, Path, os.fsencode])
def test_files_keep_everything(tmp_path: Path, schedule: poet.Schedule, as_type: Any) -> None:
    path = as_type(str(tmp_path / "plan.json"))
    schedule.save(path)
    assert poet.Schedule.load(path) == schedule
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_a_truncated_plan_file_is_refused_wherever_it_ends(
    tmp_path: Path, schedule: poet.Schedule
) -> None:
    path = tmp_path / "plan.json"
    schedule.save(path)
    whole = path.read_bytes()
    kept = len(whole.rstrip())
    for length in range(kept):
        path.write_bytes(whole[:length])
        with pytest.raises(poet.FormatError, match=r"plan\.json"):
            poet.Schedule.load(path)
    path.write_bytes(whole[:kept])
    assert poet.Schedule.load(path) == schedule


def test_a_plan_file_with_a_changed_byte_is_read_or_refused_but_never_crashes(
    tmp_path: Path, graph: poet.Graph, schedule: poet.Schedule
) -> None:
    path = tmp_path / "plan.json"
    schedule.save(path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 5):
        for byte in (0x00, 0x22, 0x2D, 0x39, 0xFF):
            path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
            try:
                poet.simulate(graph, poet.Schedule.load(path))
            except (poet.FormatError, poet.ScheduleError):
                continue


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(poet.PoetRuntimeError, match=r"missing\.json.*No such file"):
        poet.Schedule.load(tmp_path / "missing.json")


def test_a_graph_is_no_schedule_and_a_schedule_no_graph(
    tmp_path: Path, graph: poet.Graph, schedule: poet.Schedule
) -> None:
    path = tmp_path / "file.json"
    graph.save(path)
    with pytest.raises(poet.FormatError, match=r"poet-schedule.*poet-graph"):
        poet.Schedule.load(path)
    schedule.save(path)
    with pytest.raises(poet.FormatError, match=r"poet-graph.*poet-schedule"):
        poet.Graph.load(path)


@pytest.mark.parametrize(
    ("field", "content", "names"),
    [
        ("version", 99, "99"),
        ("graph_signature", "12", "graph_signature"),
        ("num_ops", -1, "num_ops"),
        ("num_ops", 2**40, "num_ops"),
        ("status", "perfect", "perfect"),
        ("objective", "fame", "fame"),
        ("peak_bytes", -5, "peak_bytes"),
        ("energy_joules", -0.5, "energy_joules"),
        ("energy_joules", "much", "energy_joules"),
        ("gap", "small", "gap"),
        ("actions", {}, "actions"),
        ("actions", [{"at": 0, "when": "before", "do": "free", "value": 2**31}], "value"),
        ("actions", [{"at": 0, "when": "before", "do": "free", "value": 1, "hue": 1}], "hue"),
        ("surprise", 1, "surprise"),
    ],
)
def test_damage_is_named(graph: poet.Graph, field: str, content: Any, names: str) -> None:
    whole = json.loads(schedule_for(graph, []).to_json()) | {field: content}
    with pytest.raises(poet.FormatError, match=names):
        poet.Schedule.from_json(json.dumps(whole))


def test_a_plan_with_a_missing_field_is_refused(schedule: poet.Schedule) -> None:
    whole = json.loads(schedule.to_json())
    for field in whole:
        part = {name: content for name, content in whole.items() if name != field}
        with pytest.raises(poet.FormatError, match=field):
            poet.Schedule.from_json(json.dumps(part))


def test_actions_without_a_plan_are_refused(graph: poet.Graph) -> None:
    with pytest.raises(poet.FormatError, match="infeasible"):
        schedule_for(graph, DROP_FIRST, status="infeasible")


def test_a_plan_of_another_graph_is_refused_with_both_signatures(
    graph: poet.Graph, schedule: poet.Schedule
) -> None:
    schedule.check_against(graph)
    other = chain_graph(LENGTH + 1)
    names = f"{schedule.graph_signature}.*{other.signature}"
    with pytest.raises(poet.ScheduleError, match=names):
        schedule.check_against(other)
    with pytest.raises(poet.ScheduleError, match=names):
        poet.simulate(other, schedule)
    with pytest.raises(poet.ScheduleError, match=names):
        schedule.summary(other)


def test_a_plan_of_another_length_under_the_same_signature_is_refused(graph: poet.Graph) -> None:
    longer = chain_graph(LENGTH + 1, signature=graph.signature)
    with pytest.raises(poet.ScheduleError, match=r"12 ops.*14"):
        schedule_for(graph, []).check_against(longer)


def test_a_value_that_the_graph_lacks_is_refused(graph: poet.Graph) -> None:
    actions = [{"at": 0, "when": "before", "do": "free", "value": 99}]
    with pytest.raises(poet.ScheduleError, match="99"):
        schedule_for(graph, actions).check_against(graph)


@pytest.mark.parametrize(
    ("actions", "names"),
    [
        (DROP_FIRST[:1], "op 11 .*value 1"),
        ([DROP_FIRST[0], DROP_FIRST[0], DROP_FIRST[1]], "free of value 1"),
        ([{"at": 12, "when": "before", "do": "free", "value": 12}], "value 12 .*end"),
        ([{"at": 0, "when": "before", "do": "recompute", "ops": [0]}], "op 0 .*not run"),
        ([{"at": 3, "when": "after", "do": "retain", "value": 1}], "retain of value 1"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_names_op_and_value(
    graph: poet.Graph, actions: list[JsonObject], names: str
) -> None:
    with pytest.raises(poet.ScheduleError, match=names) as caught:
        poet.simulate(graph, schedule_for(graph, actions))
    assert isinstance(caught.value, ValueError)


def test_the_table_says_what_was_asked_and_what_came_out(graph: poet.Graph) -> None:
    simulation = poet.simulate(graph, schedule_for(graph, DROP_FIRST))
    schedule = schedule_for(
        graph,
        DROP_FIRST,
        ram_budget_bytes=24 * KIB,
        runtime_budget_seconds=0.02,
        peak_bytes=simulation.peak_bytes,
        peak_op=simulation.peak_op,
        makespan_seconds=simulation.makespan_seconds,
        energy_joules=simulation.energy_joules,
        gap=0.125,
        bound_scope="candidates",
        solve_seconds=1.5,
    )
    assert str(schedule).splitlines() == [
        "feasible schedule of 12 ops (method test, minimize energy), gap 12.50 % over the "
        "candidates",
        "               planned   budget",
        "  peak memory  22.0 KiB  24.0 KiB",
        "  step time    13.1 ms   20 ms",
        "  energy       0.3007 J  -",
        "  peak at op 6",
        "  1 free, 1 recompute (1 op), 0 retains",
        "  solved in 1.5 s",
    ]
    assert schedule.summary(graph).splitlines()[1:6] == [
        "               planned                     budget    plain",
        "  peak memory  22.0 KiB (84.6 % of plain)  24.0 KiB  26.0 KiB",
        "  step time    13.1 ms (108.9 % of plain)  20 ms     12 ms",
        "  energy       0.3007 J                    -         -",
        "  peak at op 6 (aten::layer_backward)",
    ]


def test_energy_is_told_as_time_is() -> None:
    schedule = poet.solve(
        graph=chain_graph(), ram_budget="90%", battery_joules=1000, steps=10, time_limit_s=5
    )
    assert schedule.traced_graph is not None and schedule.device is not None
    plain = poet.simulate(schedule.traced_graph).energy_joules
    share = f"{100 * schedule.energy_joules / plain:.1f} % of plain"
    row = f"energy {schedule.energy_joules:.4g} J ({share}) 100 J {plain:.4g} J"
    assert row in " ".join(str(schedule).split())


def test_a_step_without_times_has_a_table(graph: poet.Graph) -> None:
    text = json.loads(graph.to_json())
    for op in text["ops"]:
        op["seconds"] = 0.0
    timeless = poet.Graph.from_json(json.dumps(text))
    schedule = poet.solve(graph=timeless, ram_budget="95%", time_limit_s=5)
    assert schedule.has_plan and "energy" in str(schedule)
    slow = schedule_for(timeless, DROP_FIRST, makespan_seconds=1.0)
    assert "times as long" not in slow.summary(timeless)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"makespan_seconds": 0.030}, True),  # plain training: 0.012 s
        ({"makespan_seconds": 0.020}, False),
        ({"makespan_seconds": 0.030, "runtime_budget_seconds": 0.05}, False),
        ({"makespan_seconds": 0.030, "objective": "time"}, False),
    ],
)
def test_a_slow_plan_whose_time_nobody_limited_says_so(
    graph: poet.Graph, fields: dict[str, Any], told: bool
) -> None:
    text = schedule_for(graph, DROP_FIRST, **fields).summary(graph)
    assert ("2.5 times as long as plain training" in text) is told


def test_the_table_of_an_infeasible_solve_says_what_would_do(graph: poet.Graph) -> None:
    schedule = schedule_for(
        graph,
        [],
        status="infeasible",
        ram_budget_bytes=KIB,
        least_ram_budget=10 * KIB,
        least_ram_op=7,
        message="Too little.",
    )
    text = schedule.summary(graph)
    assert "infeasible schedule of 12 ops" in text
    assert "Too little." in text
    least = "least budget 10.0 KiB (10240 bytes), set by op 7 (aten::layer_backward)"
    assert least in text
    assert "free" not in text


def test_tensors_that_the_step_does_not_touch_are_told_of() -> None:
    held = [torch.zeros(1 << 18)]  # 1 MiB
    weights = torch.ones(1 << 10, requires_grad=True)

    def step() -> None:
        weights.grad = None
        (weights * 2).tanh().sum().backward()

    graph = poet.trace(step)
    assert graph.base_bytes >= held[0].nbytes
    told = f"{graph.base_bytes / 2**20:.1f} MiB of each belong to tensors that no op of the step"
    schedule = poet.solve(graph=graph, ram_budget="100%", paging=False)
    assert told in schedule.summary()
    schedule = poet.solve(graph=graph, ram_budget="50%", paging=False)
    assert schedule.status is poet.Status.INFEASIBLE
    assert f"{graph.base_bytes} of them belong to tensors that no op" in schedule.message
    assert any("let go of tensors" in each for each in schedule.advice)
