"""poet.compare: the table, its data, its picture, and measurements in other processes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from comparable_step import make_step
from small_steps import chain_graph

import poet

METHODS = ("poet", "checkpoint_all", "rotor", "page_all")


@pytest.fixture(scope="module")
def comparison() -> poet.Comparison:
    return poet.compare(
        graph=chain_graph(8), methods=METHODS, budgets=("100%", "60%"), paging=False, time_limit_s=5
    )


def test_there_is_a_row_for_each_budget_and_method(comparison: poet.Comparison) -> None:
    assert [row.method for row in comparison.rows] == list(METHODS) * 2
    rows = {(row.method, i // 4): row for i, row in enumerate(comparison.rows)}
    assert rows["poet", 0].status == "optimal"
    assert rows["checkpoint_all", 0].peak_bytes == comparison.plain.peak_bytes
    assert rows["checkpoint_all", 1].status == "infeasible"
    assert rows["checkpoint_all", 1].least_ram_budget == comparison.plain.peak_bytes
    assert rows["page_all", 0].status == "refused"
    assert "has no store" in rows["page_all", 0].message
    ours, rotor = rows["poet", 1], rows["rotor", 1]
    assert ours.energy_joules is not None
    assert rotor.energy_joules is not None
    assert ours.energy_joules <= rotor.energy_joules * (1 + 1e-9)


def test_poet_starts_from_no_other_method(comparison: poet.Comparison) -> None:
    for row in comparison.rows:
        assert "starts" not in row.start
        assert bool(row.start) == (row.method == "poet" and row.peak_bytes is not None)
    # Nothing of the planner knows the methods: it could not ask one for a plan.
    planner = Path(__file__).parents[2] / "csrc" / "planner"
    sources = [file for file in planner.rglob("*") if file.suffix in (".h", ".cpp")]
    users = [file.name for file in sources if '#include "methods/' in file.read_text()]
    assert users == ["solver_main.cpp"], "the program poet-solver alone knows planner and methods"


def test_a_start_names_the_methods_of_the_plans_that_were_given() -> None:
    graph = chain_graph(8)
    options: dict[str, Any] = {"ram_budget": "60%", "paging": False, "time_limit_s": 5}
    rotor = poet.solve(graph=graph, method="rotor", **options)
    assert rotor.has_plan
    helped = poet.solve(graph=graph, starts=[rotor], **options)
    assert helped.start.endswith("; starts: rotor")
    assert poet.Schedule.from_json(helped.to_json()).start == helped.start
    assert "starts" not in poet.solve(graph=graph, **options).start


def test_fragmentation_is_what_holes_add(comparison: poet.Comparison) -> None:
    for row in comparison.rows:
        assert (row.fragmentation is None) == (row.peak_bytes is None)
        assert row.fragmentation is None or 0 <= row.fragmentation < 1
    schedule = poet.solve(graph=chain_graph(8), method="checkpoint_all")
    assert schedule.fragmentation() == comparison.rows[1].fragmentation
    loaded = poet.Schedule.from_json(schedule.to_json())
    assert loaded.fragmentation(chain_graph(8)) == schedule.fragmentation()


def test_the_table_explains_its_columns(comparison: poet.Comparison) -> None:
    head, *lines = str(comparison).splitlines()
    columns = head.split("  ")[0]
    assert columns == "method"
    rows = [line for line in lines if line.split("  ")[0] in METHODS]
    assert len(rows) == len(comparison.rows)
    for name in ("energy", "fragmentation", "start"):
        assert any(line.startswith(f"{name}: ") for line in lines)
    assert "live peak" not in head


def test_data_come_as_json_and_csv(comparison: poet.Comparison, tmp_path: Path) -> None:
    data = json.loads(comparison.to_json())
    assert [row["method"] for row in data["rows"]] == list(METHODS) * 2
    assert data["plain"]["peak_bytes"] == comparison.plain.peak_bytes
    rows = list(csv.DictReader(io.StringIO(comparison.to_csv())))
    assert len(rows) == len(comparison.rows)
    assert rows[0]["peak_bytes"] == str(comparison.rows[0].peak_bytes)
    assert rows[3]["peak_bytes"] == ""
    for name in ("c.json", "c.csv", "c.txt"):
        comparison.save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 100


def test_it_draws_a_picture(comparison: poet.Comparison, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    comparison.plot(tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_what_makes_no_sense_is_said() -> None:
    with pytest.raises(poet.ArgumentError, match="expected one of them"):
        poet.compare()
    with pytest.raises(poet.ArgumentError, match="methods"):
        poet.compare(graph=chain_graph(3), methods="poet")
    with pytest.raises(poet.ArgumentError, match="its own plans"):
        poet.compare(graph=chain_graph(3), starts=[])
    with pytest.raises(poet.ArgumentError, match="live=True"):
        poet.compare(graph=chain_graph(3), live=True)
    with pytest.raises(poet.ArgumentError, match="got platform='m4'"):
        poet.compare(make_step, live=True, platform="m4")
    with pytest.raises(poet.ArgumentError, match="got solver="):
        poet.compare(make_step, live=True, solver="cbc")


def test_live_wants_what_makes_the_step() -> None:
    def train() -> None: ...

    with pytest.raises(poet.ArgumentError, match=r"live=True: .*'train' returned None"):
        poet.compare(train, live=True)


def test_what_makes_a_step_is_no_step() -> None:
    with pytest.raises(poet.ArgumentError, match=r"'make_step' makes one, .*live=True"):
        poet.compare(make_step)


def test_a_method_named_twice_has_one_row() -> None:
    rows = poet.compare(graph=chain_graph(6), budgets=["80%"], methods=["dtr", "dtr"]).rows
    assert [row.method for row in rows] == ["dtr"]


def test_what_was_refused_says_why() -> None:
    options: dict[str, Any] = {"minimize": "memory", "budgets": ("70%",), "time_limit_s": 5}
    found = poet.compare(graph=chain_graph(3), methods=("checkmate", "moccasin"), **options)
    for row in found.rows:
        assert row.status == "refused"
        assert f'with the method "{row.method}", got "memory"' in row.message
        assert f"{row.method}: {row.message}" in str(found)


@pytest.mark.parametrize("budgets", ["70%", [], None, 5])
def test_budgets_are_a_list(budgets: Any) -> None:
    with pytest.raises(poet.ArgumentError, match="expected a list of budgets"):
        poet.compare(graph=chain_graph(3), budgets=budgets)


def test_a_bar_shows_which_method_is_at_work(capsys: pytest.CaptureFixture[str]) -> None:
    words: dict[str, Any] = {"methods": ("checkpoint_all", "chen_sqrt"), "budgets": ("100%", "70%")}
    poet.compare(graph=chain_graph(3), verbose=True, **words)
    shown = capsys.readouterr().err
    assert "poet: comparing" in shown
    assert "4/4" in shown
    assert "chen_sqrt" in shown
    poet.compare(graph=chain_graph(3), **words)
    assert capsys.readouterr().err == ""


def test_live_every_method_is_measured_in_a_process_of_its_own() -> None:
    comparison = poet.compare(
        make_step,
        live=True,
        live_steps=2,
        methods=("chen_sqrt",),
        budgets=("150%",),
    )
    assert comparison.plain_live is not None
    assert comparison.plain_live.error == ""
    for row in comparison.rows:
        assert row.live is not None
        assert row.live.error == ""
        assert row.live.results == comparison.plain_live.results
        assert row.live.step_seconds > 0
        assert row.live.planned_share >= 1
    assert "yes" in str(comparison)
