"""The optimizer's elementwise ops in slices, on devices that run no PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import poet
from poet._cli import main

WEIGHT = 64 * 64 * 4


@pytest.fixture(scope="module")
def graph() -> poet.Graph:
    """A step of two linear layers with Adam: an update touches three weights' bytes at once."""
    net = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 64, bias=False))
    words: dict[str, Any] = {"inputs": torch.randn(1, 64), "loss": lambda y: y.square().mean()}
    found = poet.solve(model=net, optimizer="adam", **words).traced_graph
    assert found is not None
    return found


def solved(graph: poet.Graph, **words: Any) -> poet.Schedule:
    return poet.solve(graph=graph, platform="m4", time_limit_s=5, cache_dir=None, **words)


def test_what_only_slices_make_fit_is_planned(graph: poet.Graph) -> None:
    budget = 2 * WEIGHT  # an update alone takes three
    whole = solved(graph, ram_budget=budget, slices=False)
    assert whole.status == "infeasible"
    assert whole.traced_graph is not None and whole.least_ram_op is not None
    assert whole.traced_graph.ops[whole.least_ram_op].phase is poet.Phase.OPTIMIZER
    assert "slices" not in whole.message
    assert all(op.slice is None for op in whole.traced_graph.ops)
    plan = solved(graph, ram_budget=budget)
    assert plan.has_plan and plan.peak_bytes <= budget
    assert "the optimizer's elementwise ops on" in plan.message and "slices" in plan.message
    assert plan.message in str(plan)
    cut = plan.traced_graph
    assert cut is not None and plan.device is not None
    assert poet.simulate(cut, plan).peak_bytes == plan.peak_bytes


def test_a_curve_reaches_down_to_what_only_slices_make_fit(graph: poet.Graph) -> None:
    words: dict[str, Any] = {"graph": graph, "platform": "m4", "cache_dir": None}
    curve = poet.pareto(budgets=[2 * WEIGHT, "100%"], time_limit_s=8, **words)
    assert [schedule.has_plan for schedule in curve] == [True, True]
    assert curve[0].peak_bytes <= 2 * WEIGHT
    assert curve[1].ram_budget == solved(graph, ram_budget="100%", slices=False).ram_budget
    assert len({schedule.graph_signature for schedule in curve}) == 1
    found = poet.pareto(points=2, time_limit_s=8, **words)
    assert found[0].has_plan and found[0].peak_bytes < 3 * WEIGHT


def test_slices_lead_back_to_the_recorded_step(graph: poet.Graph) -> None:
    plan = solved(graph, ram_budget=2 * WEIGHT)
    cut = plan.traced_graph
    assert cut is not None and len(cut) > len(graph)
    sums = [0] * len(graph.values)
    for value in cut.values:
        assert value.slice is not None
        of, index, count = value.slice
        assert 0 <= index < count
        assert value.kind is graph.values[of].kind
        sums[of] += value.bytes
    assert sums == [value.bytes for value in graph.values]
    assert {op.slice[0] for op in cut.ops if op.slice} == set(range(len(graph)))
    for op in cut.ops:
        assert op.slice is not None and op.name == graph.ops[op.slice[0]].name
        assert op.slice[2] == 1 or op.phase is poet.Phase.OPTIMIZER
    assert poet.Graph.from_json(cut.to_json()) == cut
    record = json.loads(plan.graph().to_json())
    named = [node for node in record["nodes"] if node["kind"] == "op"]
    assert [node["slice"]["of"] for node in named] == [op.slice[0] for op in cut.ops if op.slice]
    assert any(copy["slice"]["count"] > 1 for copy in record["copies"])
    assert " of " in plan.graph().to_dot()


def test_a_plan_of_slices_fits_in_the_compact_form(graph: poet.Graph) -> None:
    plan = solved(graph, ram_budget=2 * WEIGHT)
    assert plan.traced_graph is not None
    assert poet.Schedule.from_bytes(plan.to_bytes(), plan.traced_graph).actions == plan.actions


def test_where_it_does_not_help_nothing_is_sliced(graph: poet.Graph) -> None:
    roomy = solved(graph, ram_budget=8 * WEIGHT)
    assert roomy.message == "" and roomy.traced_graph is not None
    assert len(roomy.traced_graph) == len(graph)
    # Devices that run PyTorch run its ops whole.
    for platform in ("host", "a72"):
        schedule = poet.solve(
            graph=graph, platform=platform, ram_budget=2 * WEIGHT, time_limit_s=2, cache_dir=None
        )
        assert schedule.traced_graph is not None and len(schedule.traced_graph) == len(graph)
    activations = solved(graph, ram_budget=WEIGHT, count="activations")
    assert activations.traced_graph is not None and len(activations.traced_graph) == len(graph)


def test_starts_and_curves_keep_the_graph_that_they_are_of(graph: poet.Graph) -> None:
    roomy = solved(graph, ram_budget=8 * WEIGHT)
    again = solved(graph, ram_budget=2 * WEIGHT, starts=[roomy])
    assert again.graph_signature == roomy.graph_signature
    curve = poet.pareto(graph=graph, platform="m4", points=3, time_limit_s=6, cache_dir=None)
    assert len({schedule.graph_signature for schedule in curve}) == 1
    cut = solved(graph, ram_budget=2 * WEIGHT)
    better = solved(graph, ram_budget=2 * WEIGHT, starts=[cut])
    assert better.has_plan and better.energy_joules <= cut.energy_joules * (1 + 1e-9)


def test_methods_are_compared_on_slices_too(graph: poet.Graph) -> None:
    table = poet.compare(
        graph=graph, platform="m4", budgets=[2 * WEIGHT], methods=["poet"], time_limit_s=5
    )
    assert table.rows[0].peak_bytes is not None and table.rows[0].plan_bytes


def test_on_the_command_line(
    graph: poet.Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph.save(tmp_path / "step.json")
    words = ["solve", "--model", str(tmp_path / "step.json"), "--platform", "m4", "--quiet"]
    words += ["--ram-budget", str(2 * WEIGHT), "--time-limit-s", "5"]
    plan = tmp_path / "plan.json"
    assert main([*words, "--out", str(plan)]) == 0
    assert "slices" in capsys.readouterr().out
    assert main(["show", str(plan)]) == 0
    assert "slices" in capsys.readouterr().out
    assert main([*words, "--no-slices"]) == 2
    assert "slices" not in capsys.readouterr().out


def test_it_is_true_or_false(graph: poet.Graph) -> None:
    with pytest.raises(poet.ArgumentError, match="slices: expected True or False"):
        solved(graph, slices=3)


def test_an_update_that_fits_alone_but_not_beside_the_rest_is_sliced_too(graph: poet.Graph) -> None:
    """Three weights' bytes fit, but not beside a fourth one that must stay where it is."""
    step = json.loads(graph.to_json())
    state = [v for v in step["values"] if v.get("kind") == "optimizer_state"]
    next(value for value in state if value["bytes"] == WEIGHT)["evictable"] = False
    pinned = poet.Graph.from_json(json.dumps(step))
    budget = 7 * WEIGHT // 2
    assert solved(pinned, ram_budget=budget, slices=False).status == "infeasible"
    plan = solved(pinned, ram_budget=budget)
    assert plan.has_plan and plan.peak_bytes <= budget
    assert "slices" in plan.message


def test_frozen_weights_stay_in_the_store_of_a_small_device() -> None:
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)]
    net = nn.Sequential(*layers)
    words: dict[str, Any] = {"inputs": torch.randn(1, 64), "loss": lambda y: y.square().mean()}
    words |= {"optimizer": "sgd", "trainable": "last", "platform": "m4", "cache_dir": None}
    frozen = 64 * 64 * 4
    plan = poet.solve(model=net, ram_budget=frozen + 4096, time_limit_s=5, **words)
    assert plan.has_plan and plan.traced_graph is not None
    away = [plan.traced_graph.values[v] for v in plan.away_between_steps]
    assert any(value.bytes == frozen for value in away)
    # No transfer brings an unchanged weight back to where it still is.
    assert plan.page_outs < plan.page_ins
