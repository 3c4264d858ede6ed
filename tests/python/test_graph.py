"""poet.Graph as its users see it: sequences, files, and what damaged files say."""

from __future__ import annotations

import collections.abc
import copy
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from graph_strategies import graph_text, graphs
from hypothesis import given, settings
from small_steps import KIB, chain_graph, chain_plain_peak

import poet


def test_ops_are_a_sequence() -> None:
    graph = chain_graph(6)
    ops = graph.ops
    assert isinstance(ops, collections.abc.Sequence)
    assert len(ops) == len(graph) == 12
    assert ops[0].index == 0
    assert ops[-1].index == 11
    assert [op.index for op in ops[2:8:2]] == [2, 4, 6]
    assert [op.index for op in ops[::-1]] == list(range(11, -1, -1))
    assert [op.index for op in ops] == list(range(12))
    assert [op.index for op in reversed(ops)] == list(range(11, -1, -1))
    assert ops[3] in ops
    assert "op" not in ops
    assert ops.index(ops[5]) == 5
    assert ops.count(ops[5]) == 1
    for index in (12, -13, 2**40):
        with pytest.raises(IndexError, match=f"index {index} is out of range: .* 12 ops"):
            ops[index]
    with pytest.raises(TypeError):
        ops["first"]  # type: ignore[call-overload]


def test_an_op_says_what_it_does() -> None:
    op = chain_graph(6).ops[7]
    assert op.name == "aten::layer_backward"
    assert op.phase is poet.Phase.BACKWARD
    assert op.phase == "backward"
    assert op.seconds == 0.001
    assert (op.flops, op.workspace_bytes) == (0.0, 0)
    assert op.inputs == (7, 5)
    assert op.outputs == (8,)
    assert op.mutates == op.statistics == ()
    assert (op.metadata_only, op.reads_no_data, op.random, op.replayable) == (False,) * 3 + (True,)
    assert repr(op) == "<poet op 7: aten::layer_backward, backward, (7, 5) -> (8,)>"


def test_a_value_says_what_it_is() -> None:
    values = chain_graph(6).values
    assert len(values) == 13
    assert values[0].kind is poet.ValueKind.INPUT
    assert values[0].producer is None
    assert values[0].death is None
    activation = values[1]
    assert activation.kind is poet.ValueKind.ACTIVATION
    assert activation.bytes == 4 * KIB
    assert (activation.producer, activation.death) == (0, 11)
    assert activation.evictable
    assert (activation.dtype, activation.shape) == ("float32", (32, 32))
    assert repr(activation) == "<poet value 1: activation, 4096 bytes, float32(32, 32)>"
    assert values[-1].kind == "gradient"
    assert values[-1].death is None
    assert repr(values[-1]) == "<poet value 12: gradient, 1024 bytes>"


def test_a_value_that_is_gone_before_the_first_op_takes_no_memory() -> None:
    ops, values = [{"name": "a", "inputs": [1]}], [{"bytes": 64}, {"bytes": 8, "death": 0}]
    graph = poet.Graph.from_json(graph_text({"base_bytes": 0, "ops": ops, "values": values}))
    assert [value.death for value in graph.values] == [-1, 0]
    assert graph.plain_peak_bytes() == 8


def test_nothing_can_be_changed() -> None:
    graph = chain_graph()
    for target, name in ((graph, "base_bytes"), (graph.ops[0], "name"), (graph.values[0], "bytes")):
        with pytest.raises(AttributeError):
            setattr(target, name, 3)
    with pytest.raises(TypeError):
        graph.ops[0] = graph.ops[1]  # type: ignore[index]
    with pytest.raises(TypeError):
        poet.Graph()


def test_items_outlive_the_graph_they_came_from() -> None:
    ops = chain_graph().ops
    op = chain_graph().ops[3]
    assert (ops[3].name, op.name) == ("aten::layer", "aten::layer")
    assert ops[3] == op
    assert hash(ops[3]) == hash(op)
    assert ops[3] != ops[4]


def test_figures_of_the_whole_step() -> None:
    graph = chain_graph(6)
    assert graph.plain_peak_bytes() == chain_plain_peak(6)
    assert graph.plain_seconds == pytest.approx(0.012)
    assert graph.base_bytes == 0
    assert int(graph.signature, 16) > 0
    assert repr(graph) == f"<poet.Graph {graph.signature}: 12 ops, 13 values, 0.012 s>"


def test_signature_tells_steps_apart() -> None:
    assert chain_graph(6).signature == chain_graph(6).signature != chain_graph(7).signature
    assert chain_graph(6, signature="00000000000000ff").signature == "00000000000000ff"


def test_equality_is_by_content() -> None:
    assert chain_graph(6) == chain_graph(6)
    assert hash(chain_graph(6)) == hash(chain_graph(6))
    assert chain_graph(6) != chain_graph(7)
    assert chain_graph(6) != chain_graph(6, signature="00000000000000ff")
    assert chain_graph(6) != "a graph"


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_json_and_pickle_keep_everything(step: dict[str, Any]) -> None:
    graph = poet.Graph.from_json(graph_text(step))
    text = graph.to_json()
    for twin in (
        poet.Graph.from_json(text),
        pickle.loads(pickle.dumps(graph)),
        copy.deepcopy(graph),
    ):
        assert twin == graph
        assert twin.to_json() == text
        assert twin.signature == graph.signature
    written = json.loads(text)
    assert len(written["ops"]) == len(step["ops"])
    for op, asked in zip(graph.ops, step["ops"], strict=True):
        assert op.inputs == tuple(asked["inputs"])
        assert op.outputs == tuple(asked["outputs"])
        assert op.seconds == asked["seconds"]
        assert op.mutates == tuple(asked.get("mutates", []))
    for value, given_value in zip(graph.values, step["values"], strict=True):
        assert value.bytes == given_value["bytes"]
        ends = given_value["death"] == len(step["ops"])
        assert value.death == (None if ends else given_value["death"])


@pytest.mark.parametrize("as_type", [str, Path, os.fsencode])
def test_files_keep_everything(tmp_path: Path, as_type: Any) -> None:
    graph = chain_graph()
    path = as_type(str(tmp_path / "grüße.json"))
    graph.save(path)
    assert poet.Graph.load(path) == graph
    chain_graph(7).save(path)
    assert poet.Graph.load(path) == chain_graph(7)
    assert [entry.name for entry in tmp_path.iterdir()] == ["grüße.json"]


def test_a_path_must_be_a_path() -> None:
    for path in (3, None, ["graph.json"]):
        with pytest.raises(TypeError):
            poet.Graph.load(path)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            chain_graph().save(path)  # type: ignore[arg-type]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    with pytest.raises(poet.PoetRuntimeError, match=r"missing\.json.*No such file"):
        poet.Graph.load(missing)
    with pytest.raises(poet.PoetRuntimeError, match=str(tmp_path)):
        poet.Graph.load(tmp_path)
    with pytest.raises(poet.PoetRuntimeError, match="no_folder"):
        chain_graph().save(tmp_path / "no_folder" / "graph.json")


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    chain_graph(3).save(path)
    whole = path.read_bytes()
    kept = len(whole.rstrip())
    for length in range(kept):
        path.write_bytes(whole[:length])
        with pytest.raises(poet.FormatError, match=r"graph\.json"):
            poet.Graph.load(path)
    path.write_bytes(whole[:kept])
    assert poet.Graph.load(path) == chain_graph(3)


def test_a_file_with_a_changed_byte_is_read_or_refused_but_never_crashes(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    chain_graph(3).save(path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        for byte in (0x00, 0x22, 0x2D, 0x39, 0x7D, 0xFF):
            path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
            try:
                poet.Graph.load(path)
            except poet.FormatError:
                continue


DAMAGE: list[tuple[str, Any, str]] = [
    ("format", "recipe", "poet-graph"),
    ("version", 99, "99"),
    ("version", None, "version"),
    ("signature", "xyz", "signature"),
    ("base_bytes", -1, "base_bytes"),
    ("base_bytes", 2**63, "base_bytes"),
    ("base_bytes", 2**63 - 1, "2\\^63"),
    ("base_bytes", 1.5, "base_bytes"),
    ("base_bytes", "1", "base_bytes"),
    ("ops", {}, "ops"),
    ("ops", [{"inputs": [0]}], "name"),
    ("ops", [{"name": "a", "inputs": [7]}], "inputs"),
    ("ops", [{"name": "a", "inputs": [-1]}], "inputs"),
    ("ops", [{"name": "a", "seconds": -1.0}], "op 0 .*seconds"),
    ("ops", [{"name": "a", "seconds": "1"}], "seconds"),
    ("ops", [{"name": "a", "host_seconds": -1.0}], "op 0 .*host_seconds"),
    ("ops", [{"name": "a", "workspace_bytes": -1}], "workspace_bytes"),
    ("ops", [{"name": "a", "phase": "lunch"}], "phase.*lunch"),
    ("ops", [{"name": "a", "colour": "red"}], "colour"),
    ("ops", [{"name": "a", "mutates": [0], "metadata_only": True}], "metadata_only"),
    ("ops", [{"name": "a", "statistics": [0]}], "statistics"),
    ("values", [{"bytes": -8, "death": 0}], "bytes"),
    ("values", [{"death": 0}], "bytes"),
    ("values", [{"bytes": 8, "death": 2}], "death"),
    ("values", [{"bytes": 8, "producer": 0, "death": 0}], "producer"),
    ("values", [{"bytes": 8, "kind": "soup", "death": 0}], "soup"),
    ("values", [{"bytes": 8, "shape": [-3], "death": 0}], "shape"),
    ("surprise", 1, "surprise"),
]


@pytest.mark.parametrize(("field", "content", "names"), DAMAGE)
def test_damage_is_named(field: str, content: Any, names: str) -> None:
    step = {"base_bytes": 0, "ops": [{"name": "a", "inputs": [0]}]}
    step["values"] = [{"bytes": 8, "death": 1}]
    poet.Graph.from_json(graph_text(step))
    if content is None:
        text = json.dumps({k: v for k, v in json.loads(graph_text(step)).items() if k != field})
    else:
        text = graph_text(step, **{field: content})
    with pytest.raises(poet.FormatError, match=names) as caught:
        poet.Graph.from_json(text)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "3", "[" * 100_000, '{"a": 1, "a": 2}'])
def test_what_is_no_graph_is_refused(text: str) -> None:
    with pytest.raises(poet.FormatError):
        poet.Graph.from_json(text)


def test_a_value_used_before_it_is_made_is_named() -> None:
    ops = [{"name": "first", "inputs": [0]}, {"name": "second", "outputs": [0]}]
    values = [{"bytes": 8, "producer": 1, "death": 1}]
    with pytest.raises(poet.FormatError, match=r"op 0 \(first\).*value 0 .*op 1 \(second\)"):
        poet.Graph.from_json(graph_text({"base_bytes": 0, "ops": ops, "values": values}))


def test_a_death_before_the_last_use_is_named() -> None:
    ops = [{"name": "a", "inputs": [0]}, {"name": "b", "inputs": [0]}]
    with pytest.raises(poet.FormatError, match=r"value 0: death.*op 1 \(b\)"):
        poet.Graph.from_json(
            graph_text({"base_bytes": 0, "ops": ops, "values": [{"bytes": 8, "death": 0}]})
        )


def test_an_empty_step_is_a_graph() -> None:
    graph = poet.Graph.from_json(graph_text({"base_bytes": 7, "ops": [], "values": []}))
    assert len(graph) == 0
    assert list(graph.ops) == list(graph.values) == []
    assert graph.plain_peak_bytes() == 7
