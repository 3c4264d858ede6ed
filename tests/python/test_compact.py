"""The compact form of a schedule, and what it comes to for a real step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from graph_strategies import JsonObject, graph_text, graphs, plans, schedule_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paging_plans import paging_plan

import poet
from poet import _C
from poet._solve import worker_path

RESNET = Path(__file__).parents[1] / "data" / "resnet18_adamw.json"
# What a step of it holds before and after: weights, statistics, gradients, AdamW's state.
RESNET_FIXED_BYTES = 197_710_916
MOST_BYTES = 600
HOST = poet.DeviceProfile.by_name("host")
STORE = HOST.with_store(1e9, 1e9, 1e-4, 1e-4)


def check_comes_back(schedule: poet.Schedule, graph: poet.Graph) -> bytes:
    data = schedule.to_bytes(graph)
    again = poet.Schedule.from_bytes(data, graph)
    assert again == schedule
    assert again.actions == schedule.actions
    assert again.traced_graph is graph
    assert again.to_bytes() == data
    return data


@pytest.mark.parametrize("paging", [False, True], ids=["recompute", "paging"])
@pytest.mark.parametrize("slack", [0.5, 0.35])
def test_a_plan_for_resnet18_fits_in_600_bytes(slack: float, paging: bool) -> None:
    graph = poet.Graph.load(RESNET)
    plain = graph.plain_peak_bytes()
    budget = int(RESNET_FIXED_BYTES + slack * (plain - RESNET_FIXED_BYTES))
    device = STORE if paging else HOST
    schedule = _C.solve_in_worker(
        graph,
        device,
        ram_budget_bytes=budget,
        runtime_budget_seconds=None,
        minimize="energy",
        time_limit_seconds=20,
        threads=1,
        worker_path=str(worker_path()),
        paging=paging,
    )
    assert schedule.has_plan
    assert len(schedule.actions) > 10
    data = schedule.to_bytes()
    assert len(data) <= MOST_BYTES
    again = poet.Schedule.from_bytes(data, graph)
    assert again.actions == schedule.actions
    for figure in ("peak_bytes", "peak_op", "makespan_seconds", "energy_joules"):
        assert getattr(again, figure) == getattr(schedule, figure)
    assert again == schedule
    assert _C.simulate(graph, again, device).peak_bytes == schedule.peak_bytes <= budget
    assert schedule.graph().peak_bytes == schedule.peak_bytes


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), st.data())
def test_random_schedules_come_back(step: JsonObject, data: st.DataObject) -> None:
    graph = poet.Graph.from_json(graph_text(step))
    if data.draw(st.booleans()):
        actions, away = paging_plan(json.loads(graph.to_json()), data.draw(st.integers(0, 2**32)))
    else:
        actions, away = data.draw(plans(step)), []
    fields: dict[str, object] = {"message": data.draw(st.text(max_size=20))}
    fields["energy_joules"] = data.draw(st.floats(0, 1e300))
    if data.draw(st.booleans()):
        fields["bound"] = data.draw(st.floats(allow_nan=False, allow_infinity=False))
    if away:
        fields["away_between_steps"] = away
    text = schedule_text(graph.signature, len(graph), actions, **fields)
    check_comes_back(poet.Schedule.from_json(text), graph)


@pytest.mark.parametrize("status", ["infeasible", "time_limit"])
def test_a_status_without_a_plan_comes_back(status: str) -> None:
    graph = poet.Graph.load(RESNET)
    text = schedule_text(graph.signature, len(graph), [], status=status, message="Why not.")
    schedule = poet.Schedule.from_json(text)
    assert len(check_comes_back(schedule, graph)) < 50


def small() -> tuple[poet.Graph, poet.Schedule]:
    ops = [
        {"name": "a", "inputs": [0], "outputs": [1], "seconds": 0.5},
        {"name": "b", "inputs": [1], "outputs": [2], "seconds": 0.5},
        {"name": "c", "inputs": [2, 1], "outputs": [3], "seconds": 0.5},
    ]
    values = [
        {"bytes": 8, "death": 3},
        {"bytes": 4096, "producer": 0, "death": 2},
        {"bytes": 8, "producer": 1, "death": 2},
        {"bytes": 8, "producer": 2, "death": 3},
    ]
    graph = poet.Graph.from_json(graph_text({"base_bytes": 0, "ops": ops, "values": values}))
    actions = [
        {"at": 1, "when": "before", "do": "page_out", "value": 1},
        {"at": 2, "when": "before", "do": "free", "value": 1},
        {"at": 2, "when": "before", "do": "page_in", "value": 1},
    ]
    return graph, poet.Schedule.from_json(schedule_text(graph.signature, len(graph), actions))


def test_a_loaded_schedule_needs_its_graph() -> None:
    graph, schedule = small()
    assert schedule.traced_graph is None
    with pytest.raises(poet.ArgumentError, match=r"to_bytes\(graph\)"):
        schedule.to_bytes()
    assert poet.Schedule.from_bytes(schedule.to_bytes(graph), graph) == schedule
    for kind in (bytearray, memoryview):
        assert poet.Schedule.from_bytes(kind(schedule.to_bytes(graph)), graph) == schedule
    with pytest.raises(poet.ArgumentError, match="data: expected the bytes that"):
        poet.Schedule.from_bytes("text", graph)
    with pytest.raises(poet.ArgumentError, match=r"hold no copy of it; got .*NoneType"):
        poet.Schedule.from_bytes(schedule.to_bytes(graph))
    other = poet.Graph.load(RESNET)
    with pytest.raises(poet.ScheduleError, match="made for another graph"):
        schedule.to_bytes(other)
    with pytest.raises(poet.ScheduleError, match="made for another graph"):
        poet.Schedule.from_bytes(schedule.to_bytes(graph), other)


def test_damage_is_an_error() -> None:
    graph, schedule = small()
    data = schedule.to_bytes(graph)
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(poet.FormatError, match="compact schedule"):
            poet.Schedule.from_bytes(damaged, graph)
        with pytest.raises(poet.FormatError, match="compact schedule"):
            poet.Schedule.from_bytes(data[:at], graph)


def test_transfers_are_counted_and_summed_up() -> None:
    graph, schedule = small()
    assert (schedule.page_outs, schedule.page_ins) == (1, 1)
    assert (schedule.frees, schedule.recomputes, schedule.retains) == (1, 0, 0)
    assert schedule.away_between_steps == ()
    simulated = _C.simulate(graph, schedule, STORE)
    assert (simulated.page_outs, simulated.page_ins, simulated.wake_ups) == (1, 1, 2)
    assert simulated.paged_out_bytes == simulated.paged_in_bytes == 4096
    assert simulated.transfer_seconds == pytest.approx(2 * (1e-4 + 4096e-9))
    assert simulated.hidden_seconds == 0.0
    hidden = _C.simulate(graph, schedule, HOST.with_store(1e9, 1e9, 1e-4, 1e-4, dma_channels=1))
    assert hidden.hidden_seconds > 0
    text = schedule.summary(graph)
    assert "1 page-out (4.0 KiB), 1 page-in (4.0 KiB)" in text
    assert "1 page-out, 1 page-in" in str(schedule)
    schedule.__dict__["_device"] = STORE  # as poet.solve notes it
    assert "of transfers" in schedule.summary(graph)


def test_a_device_may_have_a_store() -> None:
    assert not HOST.has_store
    assert STORE.has_store
    assert STORE.name == HOST.name
    assert (STORE.store_read_rate, STORE.store_write_rate) == (1e9, 1e9)
    fast = HOST.with_store(2.0, 1.0, 0.25, 0.5, dma_channels=2, wake_joules=3.0, source="measured")
    assert (fast.store_read_latency_seconds, fast.store_write_latency_seconds) == (0.25, 0.5)
    assert (fast.dma_channels, fast.wake_joules, fast.store_source) == (2, 3.0, "measured")
    with pytest.raises(poet.ArgumentError, match="store_read_rate: expected a number > 0"):
        HOST.with_store(0.0, 1.0, 0.0, 0.0)
    with pytest.raises(poet.ArgumentError, match="dma_channels"):
        HOST.with_store(1.0, 1.0, 0.0, 0.0, dma_channels=-1)
