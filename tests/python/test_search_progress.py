"""How a solve tells of itself and goes on from others: history, verbose, starts, poet.pareto."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from small_steps import chain_graph, chain_plain_peak

import poet
from poet._budgets import format_bytes
from poet._progress import recording_bar

LENGTH = 24
PEAK = chain_plain_peak(LENGTH)
BUDGET = PEAK // 2


@pytest.fixture(scope="module")
def graph() -> poet.Graph:
    return chain_graph(LENGTH)


def solved(graph: poet.Graph, **words: Any) -> poet.Schedule:
    return poet.solve(graph=graph, **{"ram_budget": BUDGET, "time_limit_s": 5, **words})


# ---- history and on_progress


def test_the_history_leads_to_the_result(graph: poet.Graph) -> None:
    told: list[poet.SearchPoint] = []
    schedule = solved(graph, on_progress=told.append)
    history = schedule.history
    assert told == list(history)
    assert history[-1].value == schedule.energy_joules
    assert history[-1].bound == pytest.approx(schedule.bound)
    assert history[-1].gap == pytest.approx(schedule.gap, abs=1e-9)
    for before, after in itertools.pairwise(history):
        assert before.seconds <= after.seconds
        if before.value is not None:
            assert after.value is not None and after.value <= before.value
    assert 0 <= history[0].seconds <= history[-1].seconds <= schedule.solve_seconds


def test_the_history_survives_a_file(graph: poet.Graph, tmp_path: Any) -> None:
    schedule = solved(graph)
    assert schedule.history
    schedule.save(str(tmp_path / "plan.json"))
    assert poet.Schedule.load(str(tmp_path / "plan.json")).history == schedule.history


def test_what_on_progress_raises_ends_the_search(graph: poet.Graph) -> None:
    class EnoughError(Exception):
        pass

    def stop(point: poet.SearchPoint) -> None:
        raise EnoughError(point)

    with pytest.raises(EnoughError):
        solved(graph, on_progress=stop)
    assert solved(graph).has_plan  # nothing is left behind


@pytest.mark.parametrize("words", [{"on_progress": 3}, {"verbose": "yes"}, {"starts": [1]}])
def test_what_makes_no_sense_is_named(graph: poet.Graph, words: dict[str, Any]) -> None:
    with pytest.raises(poet.ArgumentError, match=next(iter(words))):
        solved(graph, **words)


def test_verbose_shows_plan_bound_and_gap(
    graph: poet.Graph, capfd: pytest.CaptureFixture[str]
) -> None:
    schedule = solved(graph, verbose=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "poet: planning" in shown.err
    assert schedule.device is not None
    plain = poet.simulate(graph).energy_joules
    assert f"best {100 * (schedule.energy_joules / plain - 1):+.2f} %" in shown.err
    assert "at least" in shown.err and "gap" in shown.err


# ---- starts


def test_a_start_is_never_lost(graph: poet.Graph) -> None:
    good = solved(graph)
    again = solved(graph, starts=[good], time_limit_s=0.2)
    assert again.has_plan
    assert again.energy_joules <= good.energy_joules
    assert again.history[-1].value == again.energy_joules


def test_a_plan_for_less_memory_is_one_for_more(graph: poet.Graph) -> None:
    tight = solved(graph)
    wide = solved(graph, ram_budget=BUDGET * 11 // 10, starts=[tight], time_limit_s=0.2)
    assert wide.energy_joules <= tight.energy_joules


def test_a_start_of_another_graph_is_refused(graph: poet.Graph) -> None:
    other = solved(chain_graph(6), ram_budget=chain_plain_peak(6))
    with pytest.raises(poet.ScheduleError):
        solved(graph, starts=[other])


# ---- pareto


def test_more_memory_never_costs_more(graph: poet.Graph) -> None:
    curve = poet.pareto(graph=graph, points=5, time_limit_s=6)
    assert len(curve) == 5
    budgets = [schedule.ram_budget for schedule in curve]
    assert budgets == sorted(budgets)
    assert budgets[-1] == graph.plain_peak_bytes()
    assert all(schedule.has_plan for schedule in curve)
    energies = [schedule.energy_joules for schedule in curve]
    assert energies == sorted(energies, reverse=True)
    assert energies[0] > energies[-1]
    assert energies[-1] == pytest.approx(poet.simulate(graph).energy_joules)
    for schedule in curve:
        assert schedule.peak_bytes <= schedule.ram_budget


def test_budgets_may_be_named_and_one_may_be_too_small(graph: poet.Graph) -> None:
    curve = poet.pareto(graph=graph, budgets=["100%", "60%", 1, "60%"], time_limit_s=60)
    assert [schedule.has_plan for schedule in curve] == [False, True, True]
    assert curve[0].status == poet.Status.INFEASIBLE
    assert curve[0].least_ram_budget is not None


@pytest.mark.parametrize(
    "words",
    [
        {"budgets": "60%"},
        {"budgets": ["60%", "nope"]},
        {"budgets": []},
        {"points": 1},
        {"minimize": "memory"},
        {"ram_budget": "60%"},
        {"colour": "red"},
    ],
)
def test_a_curve_that_makes_no_sense_is_refused(graph: poet.Graph, words: dict[str, Any]) -> None:
    with pytest.raises(poet.ArgumentError, match=next(iter(words))):
        poet.pareto(graph=graph, time_limit_s=1, **words)


def test_a_curve_shows_its_progress_where_asked(
    graph: poet.Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    poet.pareto(graph=graph, points=2, time_limit_s=1, verbose=True)
    shown = capsys.readouterr().err
    assert "poet: solving" in shown and "poet: looking for the least budget" in shown
    peak = format_bytes(graph.plain_peak_bytes())
    assert f"at {peak}" in shown and f"; {peak}: optimal, " in shown
    poet.pareto(graph=graph, points=2, time_limit_s=1)
    assert capsys.readouterr().err == ""


def test_a_solve_tells_of_what_it_records(capsys: pytest.CaptureFixture[str]) -> None:
    words: dict[str, Any] = {"model": torch.nn.Linear(8, 8), "inputs": torch.ones(2, 8)}
    words |= {"loss": torch.sum, "cache_dir": None, "time_limit_s": 1}
    poet.solve(ram_budget="100%", verbose=True, **words)
    assert "poet: recording, call 2" in capsys.readouterr().err
    poet.pareto(budgets=["100%"], verbose=True, **words)
    assert "poet: recording, call 2" in capsys.readouterr().err
    poet.solve(ram_budget="100%", **words)
    assert capsys.readouterr().err == ""


def test_a_recording_tells_of_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(8, 8)
    with recording_bar(shown=True):
        poet.trace(lambda: x @ x)
    assert "poet: recording, call 2" in capsys.readouterr().err
    with recording_bar(shown=False):
        poet.trace(lambda: x @ x)
    assert capsys.readouterr().err == ""


def test_deterministic_searches_end_in_the_same_bytes() -> None:
    graph = chain_graph(40)

    def plan() -> str:
        return poet.solve(
            graph=graph,
            ram_budget="60%",
            paging=False,
            time_limit_s=0.3,
            deterministic=True,
            solver="cbc",
        ).to_json()

    assert plan() == plan()


def test_deterministic_searches_have_one_thread() -> None:
    with pytest.raises(poet.ArgumentError, match="solve_threads=1"):
        poet.solve(graph=chain_graph(), ram_budget="60%", deterministic=True, solve_threads=2)
