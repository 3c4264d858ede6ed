"""POET's own layer graphs and constants: its example, its optima, and its defects counted right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import poet
from poet._devices import find_device
from poet._paper import paper_graph, paper_names

REFERENCE = Path(__file__).resolve().parents[1] / "data" / "poet_reference"
RESULTS = json.loads((REFERENCE / "results.json").read_text(encoding="utf-8"))
JOULES = 1e-6  # relative


@pytest.mark.parametrize("plain", RESULTS["plain"], ids=lambda r: f"{r['model']}-{r['platform']}")
def test_a_plain_step_costs_what_the_original_says(plain: dict[str, object]) -> None:
    device = find_device(plain["platform"]).paper
    assert device is not None
    graph = poet._C.on_device(paper_graph(str(plain["model"])), device)
    cost = poet._C.simulate(graph, None, device)
    assert cost.makespan_seconds == pytest.approx(plain["seconds"], rel=JOULES)
    assert cost.energy_joules == pytest.approx(plain["joules"], rel=JOULES)


@pytest.mark.parametrize("name", ["linear", "transformer", "resnet18_cifar"])
def test_the_plain_peak_is_the_originals(name: str) -> None:
    record = json.loads((REFERENCE / f"{name}.json").read_text(encoding="utf-8"))
    assert paper_graph(name).plain_peak_bytes() == record["keep_all_peak_bytes"]
    assert len(paper_graph(name)) == len(record["nodes"])


def test_the_readmes_example() -> None:
    schedule = poet.solve(
        model="resnet18_cifar",
        platform="a72",
        graph="paper",
        ram_budget=3_000_000,
        runtime_budget=7.6,
    )
    assert schedule.status == "optimal"
    assert schedule.energy_joules == pytest.approx(7.889510182705887, rel=JOULES)
    assert schedule.page_ins == schedule.recomputes == 0


def key(row: dict[str, object]) -> str:
    return f"{row['model']}-{row['platform']}-{row['ram_budget_bytes']}"


@pytest.mark.parametrize("row", RESULTS["optima"], ids=key)
def test_verified_optima_are_reached_or_rightly_refused(row: dict[str, object]) -> None:
    schedule = poet.solve(
        model=row["model"],
        platform=str(row["platform"]),
        graph="paper",
        ram_budget=int(str(row["ram_budget_bytes"])),
        runtime_budget=float(str(row["runtime_multiplier"])),
        time_limit_s=30,
    )
    if row["joules"] is None:
        assert schedule.status == "infeasible"
    else:
        assert schedule.status == "optimal"
        assert schedule.energy_joules == pytest.approx(row["joules"], rel=JOULES)


@pytest.mark.parametrize("row", RESULTS["optima"], ids=key)
def test_the_originals_own_program_gives_its_verified_optima(row: dict[str, object]) -> None:
    pytest.importorskip("scipy")
    solution: Any = poet.solve(
        model=row["model"],
        platform=str(row["platform"]),
        graph="paper",
        accounting="original",
        ram_budget=int(str(row["ram_budget_bytes"])),
        runtime_budget=float(str(row["runtime_multiplier"])),
        time_limit_s=120,
    )
    assert isinstance(solution, poet.OriginalSolution)
    if row["joules"] is None:
        assert solution.status == "infeasible" and not solution.has_plan
        return
    assert solution.status == "optimal"
    assert solution.energy_joules == pytest.approx(row["joules"], rel=JOULES)
    assert solution.peak_bytes <= solution.ram_budget


@pytest.mark.parametrize(
    "given", [{"method": "rotor"}, {"minimize": "time"}, {"paging": False}, {"recompute": False}]
)
def test_the_originals_own_program_takes_no_options_of_poets(given: dict[str, Any]) -> None:
    with pytest.raises(poet.ArgumentError, match=r"expected it to be left out beside accounting="):
        poet.solve(model="linear", graph="paper", accounting="original", platform="m4", **given)


@pytest.mark.parametrize("platform", ["a72", "m4", "m0"])
def test_page_ins_are_counted_here_which_forbids_plans_of_the_original(platform: str) -> None:
    """Its transformer at 90 % does not fit once page-ins count; another plan costs no more."""
    pytest.importorskip("scipy")
    asked: dict[str, Any] = {"model": "transformer", "platform": platform, "graph": "paper"}
    asked |= {"ram_budget": 33_973_862, "runtime_budget": 1.5}
    original: Any = poet.solve(accounting="original", **asked)
    assert original.page_ins > 0 and original.transfer_seconds > 0
    assert original.peak_bytes <= 33_973_862 < original.true_peak_bytes
    ours = poet.solve(**asked)
    assert ours.status == "optimal"
    assert ours.peak_bytes <= 33_973_862
    assert ours.energy_joules == pytest.approx(original.energy_joules, rel=JOULES)


def test_accounting_is_checked() -> None:
    with pytest.raises(poet.ArgumentError, match='accounting: expected "poet" or "original"'):
        poet.solve(model="linear", graph="paper", platform="m4", accounting="none")
    with pytest.raises(poet.ArgumentError, match='graph="paper"'):
        poet.solve(model="linear", accounting="original")


def test_a_word_that_was_meant_as_paper_is_found() -> None:
    with pytest.raises(poet.ArgumentError, match=r"got 'papers'\. Did you mean 'paper'\?"):
        poet.solve(model="linear", graph="papers")


def test_batch_size_counts_everywhere() -> None:
    """The original ignores it for linear, transformer and bert."""
    for name in paper_names():
        one, four = paper_graph(name), paper_graph(name, batch_size=4)
        assert four.plain_peak_bytes() == 4 * one.plain_peak_bytes()
        assert sum(op.flops for op in four.ops) == 4 * sum(op.flops for op in one.ops)


def test_jetsontx2_is_complete_and_deadlines_are_ratios_or_seconds() -> None:
    schedule = poet.solve(model="linear", platform="jetsontx2", graph="paper", ram_budget="80%")
    assert schedule.has_plan
    slow = poet.solve(
        model="linear", platform="m0", graph="paper", ram_budget="80%", runtime_budget="1.6s"
    )
    assert slow.runtime_budget_seconds == 1.6


def test_paging_time_counts_towards_the_deadline() -> None:
    """The original's deadline forgets it."""
    loose = poet.solve(model="transformer", platform="a72", graph="paper", ram_budget="90%")
    assert loose.traced_graph is not None
    if loose.page_ins:
        cost = poet.simulate(loose.traced_graph, loose)
        assert cost.makespan_seconds > loose.traced_graph.plain_seconds + cost.recompute_seconds


def test_an_unknown_model_offers_the_nearest() -> None:
    with pytest.raises(poet.ArgumentError, match="'resnet18_cifar'"):
        poet.solve(model="resnet18_cifr", graph="paper", platform="m4")
    with pytest.raises(poet.ArgumentError, match="cost_model"):
        poet.solve(model="linear", graph="paper", platform="phone")
