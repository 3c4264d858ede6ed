"""The rewritten graph: what runs in which order, as objects, JSON and Graphviz."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from graph_strategies import JsonObject, graph_text, graphs, schedule_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paging_plans import paging_plan
from test_compact import small

import poet
from poet import _C

RESNET = Path(__file__).parents[1] / "data" / "resnet18_adamw.json"
STORE = poet.DeviceProfile.by_name("host").with_store(1e9, 1e9, 0.0, 0.0)


def test_nodes_stand_in_the_order_in_which_they_run() -> None:
    graph, schedule = small()
    rewritten = schedule.graph(graph)
    nodes = rewritten.nodes
    assert [str(node.kind) for node in nodes] == [
        *("op", "page_out", "op", "free", "page_in", "op", "free", "free")
    ]
    assert [node.op for node in nodes] == [0, None, 1, None, None, 2, None, None]
    assert [node.planned for node in nodes if node.kind is poet.NodeKind.FREE] == [
        *(True, False, False)
    ]
    assert nodes[0].name == "a"
    assert nodes[0].phase is poet.Phase.OTHER
    read = {copy: (version, made_by) for copy, version, made_by in nodes[5].reads}
    ((copy, version),) = nodes[4].writes
    assert read[copy] == (version, 4)
    assert len(rewritten) == len(nodes)
    assert rewritten.peak_bytes == _C.simulate(graph, schedule, STORE).peak_bytes
    assert repr(rewritten).startswith("<poet.RewrittenGraph: 8 nodes, ")


def test_a_solved_schedule_remembers_its_graph() -> None:
    graph = poet.Graph.load(RESNET)
    schedule = poet.solve(graph=graph, ram_budget="80%", time_limit_s=10, paging=False)
    rewritten = schedule.graph()
    kinds = [node.kind for node in rewritten.nodes]
    assert kinds.count(poet.NodeKind.OP) == len(graph)
    again = sum(len(action.ops) for action in schedule.actions)
    assert kinds.count(poet.NodeKind.RECOMPUTE) == again > 0
    assert rewritten.peak_bytes == schedule.peak_bytes
    assert max(node.resident_bytes for node in rewritten.nodes) == schedule.peak_bytes


def test_a_loaded_schedule_needs_its_graph() -> None:
    graph, schedule = small()
    with pytest.raises(poet.ArgumentError, match=r"graph\(graph\)"):
        schedule.graph()
    with pytest.raises(poet.ScheduleError, match="made for another graph"):
        schedule.graph(poet.Graph.load(RESNET))
    text = schedule_text(
        graph.signature, 3, [{"at": 1, "when": "before", "do": "free", "value": 1}]
    )
    with pytest.raises(poet.ScheduleError, match="needs value 1"):
        poet.Schedule.from_json(text).graph(graph)


def test_the_end_of_the_name_says_what_is_saved(tmp_path: Path) -> None:
    graph, schedule = small()
    rewritten = schedule.graph(graph)
    for name, text in {
        "step.json": rewritten.to_json(),
        "step.dot": rewritten.to_dot(),
        "step.gv": rewritten.to_dot(),
    }.items():
        rewritten.save(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8") == text
    for name in ("step.svg", "step", "json"):
        with pytest.raises(poet.ArgumentError, match=r"\.json, \.dot or \.gv"):
            rewritten.save(tmp_path / name)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), st.integers(0, 2**32))
def test_json_says_what_the_nodes_say(step: JsonObject, seed: int) -> None:
    graph = poet.Graph.from_json(graph_text(step))
    actions, away = paging_plan(json.loads(graph.to_json()), seed)
    fields = {"away_between_steps": away} if away else {}
    text = schedule_text(graph.signature, len(graph), actions, **fields)
    schedule = poet.Schedule.from_json(text)
    try:
        rewritten = schedule.graph(graph)
    except poet.ScheduleError:
        with pytest.raises(poet.ScheduleError):
            _C.simulate(graph, schedule, STORE)
        return
    document = json.loads(rewritten.to_json())
    assert (document["format"], document["version"]) == ("poet-rewritten-graph", 1)
    assert document["graph_signature"] == graph.signature
    assert len(document["nodes"]) == len(rewritten)
    for node, listed in zip(rewritten.nodes, document["nodes"], strict=True):
        assert listed["kind"] == node.kind
        assert listed.get("op") == node.op
        assert listed["resident_bytes"] == node.resident_bytes
        assert listed.get("frees") == node.frees
        reads = [(use["copy"], use["version"], use["from"]) for use in listed.get("reads", [])]
        assert tuple(reads) == node.reads
    check_runs(document)


def check_runs(document: JsonObject) -> None:
    """Every read finds its version, and every edge points forward."""
    held = {copy: (0, None) for copy, made in enumerate(document["copies"]) if made["from"] is None}
    for index, node in enumerate(document["nodes"]):
        for use in node.get("reads", []):
            assert held[use["copy"]] == (use["version"], use["from"])
        for use in node.get("writes", []):
            held[use["copy"]] = (use["version"], index)
        if node["kind"] == "free":
            del held[node["frees"]]
    for use in document["results"]:
        assert held[use["copy"]] == (use["version"], use["from"])
    for edge in document["edges"]:
        assert edge["from"] < edge["to"]


@pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")
def test_graphviz_takes_it() -> None:
    graph, schedule = small()
    dot = schedule.graph(graph).to_dot()
    subprocess.run(["dot", "-Tplain"], input=dot.encode(), check=True, capture_output=True)
