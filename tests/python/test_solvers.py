"""solver= of poet.solve, what finds the solvers, and the process that talks to Gurobi."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import warnings
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_steps import chain_graph, chain_plain_peak

import poet
from poet import _doctor, _gurobi_child, _solve, _solvers
from poet._solvers import FoundSolver

PEAK = chain_plain_peak(6)
HAS_HIGHS = importlib.util.find_spec("highsbox") or importlib.util.find_spec("highspy")
HAS_GUROBI = importlib.util.find_spec("gurobipy") is not None


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> Iterator[None]:
    caches = (_solvers.linked_solvers, _solvers._probed)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def best(solver: str) -> poet.Schedule:
    with warnings.catch_warnings():
        warnings.simplefilter("error", poet.SolverWarning)
        return poet.solve(graph=chain_graph(6), ram_budget="70%", solver=solver, time_limit_s=20)


# ---------------------------------------------------------------- solver=


@pytest.mark.parametrize("solver", ["highs", "auto", poet.Solver.HIGHS])
def test_every_solver_finds_the_same_optimum(solver: str) -> None:
    if not HAS_HIGHS:
        pytest.skip("neither highsbox nor highspy is installed")
    known = best("cbc")
    found = best(solver)
    assert known.status is found.status is poet.Status.OPTIMAL
    assert found.energy_joules == pytest.approx(known.energy_joules)


@pytest.mark.parametrize("solver", ["", "CBC", "cplex", 3, b"cbc"])
def test_other_names_are_refused_with_those_that_there_are(solver: Any) -> None:
    with pytest.raises(poet.ArgumentError, match="'auto', 'cbc', 'highs', 'gurobi'") as caught:
        poet.solve(graph=chain_graph(), ram_budget="80%", solver=solver)
    assert repr(solver) in str(caught.value)


def test_the_choice_reaches_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    solve = _solve._C.solve_in_worker

    def noted(*things: Any, **words: Any) -> poet.Schedule:
        asked.append(words)
        return solve(*things, **words)

    monkeypatch.setattr(_solve._C, "solve_in_worker", noted)
    monkeypatch.setenv("POET_HIGHS_LIBRARY", "/no/such/library.so")
    best("cbc")
    best("auto")  # works without
    assert [words["solver"] for words in asked] == ["cbc", "auto"]
    assert {words["highs_library"] for words in asked} == {"/no/such/library.so"}
    assert all(words["gurobi_command"] == [] for words in asked)


def test_highs_that_cannot_be_loaded_is_refused_before_solving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POET_HIGHS_LIBRARY", "/no/such/library.so")
    with pytest.raises(poet.ArgumentError, match=r"/no/such/library\.so") as caught:
        best("highs")
    assert "pip install highsbox" in str(caught.value)


def test_gurobi_that_cannot_be_had_is_refused_with_the_way_to_a_licence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_solvers, "gurobi_command", list)
    with pytest.raises(poet.ArgumentError, match="not installed") as caught:
        best("gurobi")
    way = ("portal.gurobi.com", "WLS", "~/gurobi.lic", "C:\\Users\\NAME\\gurobi.lic")
    for word in ("licen", *way):
        assert word in str(caught.value)
    child = tmp_path / "child.py"
    child.write_text('print(\'{"why_not": "no licence: it has expired"}\')')
    monkeypatch.setattr(_solvers, "gurobi_command", lambda: [sys.executable, str(child)])
    with pytest.raises(poet.ArgumentError, match="it has expired"):
        best("gurobi")
    child.write_text("raise SystemExit(3)")
    _solvers._probed.cache_clear()
    with pytest.raises(poet.ArgumentError, match="does not run"):
        best("gurobi")


def test_gurobi_that_fails_later_is_one_warning_and_cbc_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child = tmp_path / "child.py"
    child.write_text('import sys\nif sys.argv[1:]: print(\'{"version": "1", "limited": true}\')')
    for module in (_solvers, _solve):
        monkeypatch.setattr(module, "gurobi_command", lambda: [sys.executable, str(child)])
    with pytest.warns(poet.SolverWarning, match="CBC goes on") as caught:
        schedule = poet.solve(
            graph=chain_graph(6), ram_budget="70%", solver="gurobi", time_limit_s=20
        )
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert schedule.status is poet.Status.OPTIMAL


def test_gurobi_solves_a_small_step() -> None:
    if not HAS_GUROBI:
        pytest.skip("gurobipy is not installed")
    if _solvers.gurobi().why_not:
        pytest.skip(_solvers.gurobi().why_not)
    with warnings.catch_warnings():
        warnings.simplefilter("error", poet.SolverWarning)  # CBC would have gone on instead
        found = poet.solve(graph=chain_graph(6), ram_budget="70%", solver="gurobi", time_limit_s=30)
    assert found.status is poet.Status.OPTIMAL
    assert found.energy_joules == pytest.approx(best("cbc").energy_joules)


# ---------------------------------------------------------------- finding them


def test_the_library_is_looked_for_without_an_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("POET_HIGHS_LIBRARY", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert _solvers.highs_library() == ""
    monkeypatch.undo()
    package = tmp_path / "highsbox"
    library = package / "highs_dist" / "lib" / "libhighs.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.delenv("POET_HIGHS_LIBRARY", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _solvers.highs_library() == str(library)
    monkeypatch.setenv("POET_HIGHS_LIBRARY", "mine.so")
    assert _solvers.highs_library() == "mine.so"


def test_importing_poet_imports_no_solver() -> None:
    code = "import sys, poet; print([m for m in sys.modules if m.startswith(('highs', 'gurobi'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_solver_program_of_another_version_is_named(tmp_path: Path) -> None:
    program = tmp_path / "poet-solver"
    for text in ("exit 3", "echo hello", "true"):
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        _solvers.linked_solvers.cache_clear()
        with pytest.raises(poet.PoetRuntimeError, match="poet-solver"):
            _solvers.linked_solvers(str(program), "")


def test_doctor_says_why_a_solver_is_not_used_and_what_to_do() -> None:
    missing = _doctor._back_end(FoundSolver(poet.Solver.HIGHS, why_not="no such file"))
    assert (missing.state, missing.topic) == ("note", "solver highs")
    assert "no such file" in missing.text and "highsbox" in missing.advice
    limited = _doctor._back_end(FoundSolver(poet.Solver.GUROBI, version="13", note="limited"))
    assert (limited.state, limited.text) == ("ok", "13; limited")
    assert limited.figures["version"] == "13"


# ---------------------------------------------------------------- the process that has gurobipy


def ask_gurobi(
    cost: list[float],
    rows: list[tuple[list[float], float, float]],
    *,
    integer: bool = True,
    upper: float = 1.0,
    start: list[float] | None = None,
) -> tuple[int, float, float, list[float], str]:
    """One program with dense rows, through the socket: answer, objective, bound, point, text."""
    columns = len(cost)
    mine, theirs = socket.socketpair()
    request = _gurobi_child.REQUEST.pack(
        columns, len(rows), columns * len(rows), 30.0, 0.0, 0.0, 1, int(start is not None), 0, 0
    )
    starts = array("i", range(0, columns * len(rows) + 1, columns))
    body = b"".join(
        part.tobytes()
        for part in (
            array("d", cost),
            array("d", [0.0] * columns),
            array("d", [upper] * columns),
            array("b", [int(integer)] * columns),
            array("d", [low for _, low, _ in rows]),
            array("d", [high for _, _, high in rows]),
            starts,
            array("i", list(range(columns)) * len(rows)),
            array("d", [value for terms, _, _ in rows for value in terms]),
            array("d", start or []),
        )
    )
    with mine, theirs:
        child = subprocess.Popen([sys.executable, _gurobi_child.__file__], stdin=theirs)
        theirs.close()
        mine.sendall(request + body)
        with mine.makefile("rb") as answers:
            size = _gurobi_child.REPLY.size
            reply = _gurobi_child.REPLY.unpack(answers.read(size))
            answer, text, objective, bound, count, work = reply
            assert work >= 0
            point = array("d")
            point.frombytes(answers.read(8 * count))
            words = answers.read(text).decode()
        assert child.wait(timeout=60) == 0
    return answer, objective, bound, point.tolist(), words


INF = float("inf")


@pytest.fixture
def gurobi() -> None:
    if not HAS_GUROBI:
        pytest.skip("gurobipy is not installed")
    if _solvers.gurobi().why_not:
        pytest.skip(_solvers.gurobi().why_not)


@pytest.mark.usefixtures("gurobi")
def test_the_child_solves_a_knapsack() -> None:
    cost = [-16.0, -22.0, -12.0, -8.0]
    row = ([5.0, 7.0, 4.0, 3.0], -INF, 14.0)
    for start in (None, [0.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]):
        answer, objective, bound, point, text = ask_gurobi(cost, [row], start=start)
        assert (answer, text) == (_gurobi_child.OPTIMAL, "")
        assert objective == pytest.approx(-42) == bound
        assert point == pytest.approx([0, 1, 1, 1])


@pytest.mark.usefixtures("gurobi")
def test_the_child_keeps_equalities_and_ranges_and_tells_infeasible_from_unbounded() -> None:
    answer, objective, *_ = ask_gurobi([1.0, 3.0], [([1.0, 1.0], 3.0, 3.0)], upper=2.0)
    assert (answer, objective) == (_gurobi_child.OPTIMAL, pytest.approx(5))
    answer, objective, *_ = ask_gurobi([1.0, 3.0], [([1.0, 2.0], 2.5, 3.5)], upper=1.0)
    assert (answer, objective) == (_gurobi_child.OPTIMAL, pytest.approx(4))
    answer, _, bound, point, _ = ask_gurobi([1.0, 1.0], [([2.0, 2.0], 3.0, 3.0)])
    assert (answer, bound, point) == (_gurobi_child.INFEASIBLE, INF, [])
    answer, _, bound, point, _ = ask_gurobi([-1.0], [([1.0], 0.0, INF)], upper=INF)
    assert answer == _gurobi_child.STOPPED


@pytest.mark.usefixtures("gurobi")
def test_a_program_above_the_free_licence_is_an_answer() -> None:
    if not _solvers.gurobi().note:
        pytest.skip("this machine has an unlimited licence")
    answer, _, _, point, text = ask_gurobi([1.0] * 2001, [([1.0] * 2001, 1.0, INF)])
    assert (answer, point) == (_gurobi_child.TOO_BIG, [])
    assert "size-limited" in text


def test_a_missing_package_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with pytest.raises(_gurobi_child.RefusedError, match="gurobipy") as caught:
        _gurobi_child.environment()
    assert caught.value.answer == _gurobi_child.UNUSABLE
    assert "gurobipy" in json.dumps(_gurobi_child.probe())
    assert capsys.readouterr().out == ""
