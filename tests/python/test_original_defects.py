"""The confirmed defects of POET's own code (commit 6e63098), each a test that it is not one here.

tests/data/poet_reference/README.md has its figures. Where a defect changes an optimum,
test_paper_graphs.py also shows the original's own accounting beside.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import poet
from poet._devices import find_device
from poet._paper import paper_graph, paper_names

TRANSFORMER: dict[str, Any] = {"model": "transformer", "platform": "a72", "graph": "paper"}


@pytest.fixture(scope="module")
def paged() -> poet.Schedule:
    """A plan that pages: the original's transformer on the a72 at 90 %, one weight of it away."""
    schedule = poet.solve(**TRANSFORMER, ram_budget=33_973_862, recompute=False)
    assert schedule.status == "optimal" and schedule.page_ins > 0
    return schedule


def test_a_page_in_takes_memory_while_it_happens(paged: poet.Schedule) -> None:
    graph = paged.traced_graph
    assert graph is not None and paged.ram_budget is not None
    simulated = poet.simulate(graph, paged)
    assert simulated.peak_bytes == paged.peak_bytes <= paged.ram_budget
    # At each page-in the rewritten step holds the value that comes.
    copies = {(node.kind, node.at): node.resident_bytes for node in paged.graph().nodes}
    for action in paged.actions:
        if action.kind == "page_in":
            size = graph.values[action.value].bytes
            assert copies["page_in", action.at] >= size
            assert copies["page_in", action.at] <= paged.ram_budget


def test_paging_takes_time_out_of_the_deadline(paged: poet.Schedule) -> None:
    graph = paged.traced_graph
    assert graph is not None
    simulated = poet.simulate(graph, paged)
    assert simulated.transfer_seconds > 0
    assert paged.makespan_seconds == pytest.approx(
        graph.plain_seconds + simulated.transfer_seconds, rel=1e-9
    )
    # A deadline between computation alone and what the plan takes forbids it.
    too_short = graph.plain_seconds + simulated.transfer_seconds / 2
    late = poet.solve(
        **TRANSFORMER, ram_budget=33_973_862, recompute=False, runtime_budget=f"{too_short}s"
    )
    assert late.status == "infeasible"


def test_a_runtime_budget_has_one_meaning_and_a_unit() -> None:
    """The original's `runtime_ms` holds seconds, and its budget is a ratio documented as ms."""
    words: dict[str, Any] = {"model": "linear", "platform": "m4", "graph": "paper"}
    ratio = poet.solve(**words, runtime_budget=1.5)
    assert ratio.traced_graph is not None and ratio.runtime_budget_seconds is not None
    plain = ratio.traced_graph.plain_seconds
    assert ratio.runtime_budget_seconds == pytest.approx(1.5 * plain)
    for text, seconds in (("2s", 2.0), ("2000ms", 2.0), ("0.5min", 30.0)):
        schedule = poet.solve(**words, runtime_budget=text)
        assert schedule.runtime_budget_seconds == pytest.approx(seconds)


def test_the_jetson_tx2_is_complete() -> None:
    for cost_model in ("paper", "device"):
        schedule = poet.solve(
            model="linear",
            platform="jetsontx2",
            graph="paper",
            cost_model=cost_model,
            ram_budget="80%",
        )
        assert schedule.has_plan and schedule.energy_joules > 0


def test_the_batch_size_counts_in_every_model() -> None:
    """It is ignored for bert, transformer and linear there; flops of linear layers ignore rows."""
    for name in paper_names():
        one, four = paper_graph(name), paper_graph(name, batch_size=4)
        assert four.plain_peak_bytes() == 4 * one.plain_peak_bytes()
        flops = [sum(op.flops for op in graph.ops) for graph in (one, four)]
        assert flops[1] == 4 * flops[0]


def test_solving_changes_no_device_for_good() -> None:
    """There `mem_power_scale` multiplies the global chipset at every use."""
    before = find_device("a72")
    figures = (before.profile.to_json(), before.paper.to_json() if before.paper else "")
    first = poet.solve(**TRANSFORMER, ram_budget=33_973_862)
    again = poet.solve(**TRANSFORMER, ram_budget=33_973_862)
    assert first.energy_joules == again.energy_joules
    after = find_device("a72")
    assert figures == (after.profile.to_json(), after.paper.to_json() if after.paper else "")


def test_parameters_gradients_and_optimizer_state_count() -> None:
    graph = poet.solve(
        model="resnet18_cifar", platform="m4", optimizer="adam", time_limit_s=1
    ).traced_graph
    assert graph is not None
    held = dict.fromkeys(poet.ValueKind, 0)
    for value in graph.values:
        held[value.kind] += value.bytes
    parameters = 4 * 248_746
    assert held[poet.ValueKind.PARAMETER] == pytest.approx(parameters, rel=0.01)
    assert held[poet.ValueKind.GRADIENT] >= held[poet.ValueKind.PARAMETER]
    assert held[poet.ValueKind.OPTIMIZER_STATE] >= 2 * held[poet.ValueKind.PARAMETER]


def test_a_timeout_is_not_called_optimal() -> None:
    schedule = poet.solve(
        model="bert", platform="a72", graph="paper", ram_budget="50%", time_limit_s=0.3
    )
    if schedule.status == "optimal":
        assert schedule.gap == 0 and schedule.bound_scope == "all"
    else:
        assert schedule.gap is None or schedule.gap > 0


def test_what_is_read_twice_is_freed_once() -> None:
    """There an edge that is listed twice (to the loss) frees its value twice."""
    graph = paper_graph("linear")
    twice = [op for op in graph.ops if len(set(op.inputs)) < len(op.inputs)]
    assert twice, "the original's graph lists an edge twice"
    schedule = poet.solve(graph=graph, platform="m4", cost_model="paper", ram_budget="80%")
    assert schedule.has_plan
    freed = [node.frees for node in schedule.graph().nodes if node.kind == "free"]
    assert len(freed) == len(set(freed))
    assert poet.simulate(graph, schedule).peak_bytes >= 0


def test_the_input_is_data_and_is_not_made_again_for_nothing() -> None:
    """There the input is a node of zero flops, so freeing and "recomputing" it is free."""
    graph = poet.solve(model="linear", platform="m4", time_limit_s=2).traced_graph
    assert graph is not None
    inputs = [value for value in graph.values if value.kind is poet.ValueKind.INPUT]
    assert inputs and all(value.producer is None for value in inputs)


def test_the_backward_pass_has_the_gradients_of_skip_connections() -> None:
    """There it is a chain in the order of the list; here it is the pass that PyTorch ran."""
    graph = poet.solve(model="resnet18_cifar", platform="a72", time_limit_s=2).traced_graph
    assert graph is not None
    backward = [op for op in graph.ops if op.phase is poet.Phase.BACKWARD]
    sums = [op for op in backward if op.name.startswith("aten::add")]
    assert len(sums) >= 6, "one for each block whose two branches have gradients that meet"
    assert all(len(set(op.inputs)) == 2 for op in sums)


_ORDER = """
import poet
schedule = poet.solve(model="linear", platform="m4", graph="paper", ram_budget="80%")
print(schedule.graph_signature, [op.name for op in schedule.traced_graph.ops])
"""


def test_nodes_are_in_the_same_order_in_every_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _ORDER],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_without_rematerialization_there_is_an_answer() -> None:
    """There remat=0 raises."""
    words: dict[str, Any] = {**TRANSFORMER, "ram_budget": "90%", "recompute": False}
    paging = poet.solve(**words)
    assert paging.has_plan and paging.recomputes == 0
    neither = poet.solve(**words, paging=False)
    assert neither.status == "infeasible" and neither.least_ram_budget is not None
