"""The solvers of mixed-integer programs: which there are on this machine, and how they start."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from poet._enums import Solver
from poet._errors import ArgumentError, PoetRuntimeError
from poet._names import not_one_of

_PROBE_SECONDS = 60.0
# In the package that is named first: below its folder.
_HIGHS_LIBRARIES = {
    "highsbox": ("highs_dist/lib/libhighs.so",),
    "highspy": ("libhighs.so.1", "libhighs.so"),
}
HIGHS_ADVICE = (
    "Install it with `pip install highsbox`, or name the library in the environment variable "
    "POET_HIGHS_LIBRARY."
)
GUROBI_ADVICE = (
    "Not needed: CBC and HiGHS do without. Install it with `pip install gurobipy`; register at "
    "https://portal.gurobi.com (free with an academic address), ask there for a Web License "
    "Service (WLS) licence, and put the gurobi.lic that it gives you into your home folder "
    "(~/gurobi.lic, on Windows C:\\Users\\NAME\\gurobi.lic; GRB_LICENSE_FILE names another place). "
    "Without a licence gurobipy solves programs of up to 2000 variables and 2000 constraints, and "
    "poet goes on with another solver where one is larger."
)


@dataclasses.dataclass(frozen=True)
class FoundSolver:
    """One solver on this machine.

    Attributes:
        solver: which.
        version: "" where it cannot be used.
        why_not: "" where it can.
        note: what else there is to know of it.
    """

    solver: Solver
    version: str = ""
    why_not: str = ""
    note: str = ""


def parse_solver(solver: object) -> Solver:
    """The solver of that name."""
    if isinstance(solver, str):
        try:
            return Solver(solver)
        except ValueError:
            pass
    raise not_one_of("solver", Solver, solver)


def check_solver(solver: Solver, worker: Path) -> None:
    """Refuses a solver that was asked for by name and cannot be had; `worker` is poet-solver.

    Raises:
        ArgumentError: it cannot be used here.
        PoetRuntimeError: poet-solver does not run.
    """
    if solver is Solver.HIGHS:
        found = next(f for f in linked_solvers(str(worker), highs_library()) if f.solver is solver)
        if found.why_not:
            raise ArgumentError(
                f'solver: expected "highs" only where HiGHS can be loaded; got: {found.why_not}. '
                f"{HIGHS_ADVICE}"
            )
    if solver is Solver.GUROBI:
        found = gurobi()
        if found.why_not:
            raise ArgumentError(
                'solver: expected "gurobi" only where Gurobi and a licence are there; got: '
                f"{found.why_not}. {GUROBI_ADVICE}"
            )


def highs_library() -> str:
    """HiGHS's shared library: $POET_HIGHS_LIBRARY, highsbox's or highspy's.

    Empty where none is found: poet-solver then asks the system's loader.
    """
    named = os.environ.get("POET_HIGHS_LIBRARY")
    if named:
        return named
    for package, files in _HIGHS_LIBRARIES.items():
        for folder in _package_folders(package):
            for file in files:
                if (folder / file).is_file():
                    return str(folder / file)
    return ""


def _package_folders(package: str) -> list[Path]:
    """Where it is installed; it is not imported."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # something half installed
        return []
    if spec is None:
        return []
    return [Path(folder) for folder in spec.submodule_search_locations or ()]


@functools.cache
def linked_solvers(worker: str, library: str) -> tuple[FoundSolver, ...]:
    """CBC and HiGHS, as poet-solver finds them.

    Raises:
        PoetRuntimeError: poet-solver does not run.
    """
    try:
        done = subprocess.run(
            [worker, "--solvers", library],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=True,
        )
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        found = tuple(FoundSolver(Solver(name), version, why) for name, version, why in rows)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise PoetRuntimeError(
            f"The solver program {worker} was asked for its solvers and gave no answer: {error}. "
            "Install poet again, or correct the environment variable POET_SOLVER."
        ) from error
    if {each.solver for each in found} != {Solver.CBC, Solver.HIGHS}:
        raise PoetRuntimeError(f"The solver program {worker} is not of this version of poet.")
    return found


def gurobi_command() -> list[str]:
    """Starts the process that solves with gurobipy; empty where there can be none."""
    if not sys.executable or not _package_folders("gurobipy"):
        return []
    return [sys.executable, str(Path(__file__).with_name("_gurobi_child.py"))]


def gurobi() -> FoundSolver:
    """Gurobi, as its child process finds it; a licence may be asked for."""
    command = gurobi_command()
    if not command:
        return FoundSolver(Solver.GUROBI, why_not="the package gurobipy is not installed")
    return _probed(tuple(command))


@functools.cache
def _probed(command: tuple[str, ...]) -> FoundSolver:
    try:
        done = subprocess.run(
            [*command, "--probe"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return FoundSolver(Solver.GUROBI, why_not=f"its process does not run: {error}")
    if "why_not" in answer:
        return FoundSolver(Solver.GUROBI, why_not=str(answer["why_not"]))
    note = "its licence is limited to small programs; CBC solves the others"
    return FoundSolver(
        Solver.GUROBI, version=str(answer["version"]), note=note if answer["limited"] else ""
    )


def examine(worker: Path) -> list[FoundSolver]:
    """Every solver, for `poet doctor`.

    Raises:
        PoetRuntimeError: poet-solver does not run.
    """
    return [*linked_solvers(str(worker), highs_library()), gurobi()]
