"""poet.solve: from a recorded step, a device and budgets to a schedule."""

from __future__ import annotations

import os
from pathlib import Path

from poet import _C
from poet._budgets import (
    ByteBudget,
    TimeBudget,
    machine_ram_bytes,
    parse_bytes,
    parse_runtime,
    positive_number,
    whole_number,
)
from poet._enums import Objective
from poet._errors import ArgumentError, PoetRuntimeError

_MOST_THREADS = 1024


def solve(
    *,
    graph: _C.Graph | str | os.PathLike[str],
    platform: str = "host",
    ram_budget: ByteBudget | None = None,
    runtime_budget: TimeBudget | None = None,
    minimize: str = "energy",
    time_limit_s: float = 60,
    solve_threads: int = 1,
) -> _C.Schedule:
    """Decides when to keep, free and recompute every intermediate value of a training step.

    The program is solved in a process of its own, so that the time limit holds. Ctrl-C ends it at
    once. The GIL is released. A budget that cannot be met is a status of the result, never an
    exception.

    Args:
        graph: the recorded step, or the path of a file written by `Graph.save`.
        platform: name of the device that the step runs on.
        ram_budget: most bytes that may be resident at once: bytes, "512MiB", "1.5GiB", or "60%" of
            the plain step's peak. None stands for the RAM of this machine.
        runtime_budget: longest that the step may take: a ratio to the plain step's time (1.3), or
            a time ("1.5s"). None stands for no deadline.
        minimize: "energy", "time" or "memory".
        time_limit_s: seconds that the search may take, above 0.
        solve_threads: threads of the solver.

    Returns:
        The best schedule found; `Schedule.status` says what it is worth.

    Raises:
        ArgumentError: an argument makes no sense.
        FormatError: the file named by `graph` holds no graph.
        PoetRuntimeError: the file cannot be read, or the solver program is missing.

    The environment variable POET_SOLVER names another solver program than the `poet-solver` that
    is installed with poet.

    Source: `POET (Patil et al., ICML 2022) <https://arxiv.org/abs/2207.07697>`_; docs/design.md
    says where this program differs.
    """
    recorded = as_graph(graph)
    device = _C.DeviceProfile.by_name(_text(platform, "platform", "the name of a device"))
    if ram_budget is None:
        ram_budget_bytes = machine_ram_bytes()
    else:
        ram_budget_bytes = parse_bytes(ram_budget, plain_peak_bytes=recorded.plain_peak_bytes)
    deadline = None
    if runtime_budget is not None:
        deadline = parse_runtime(runtime_budget, plain_seconds=recorded.plain_seconds)
    return _C.solve_in_worker(
        recorded,
        device,
        ram_budget_bytes=ram_budget_bytes,
        runtime_budget_seconds=deadline,
        minimize=parse_objective(minimize),
        time_limit_seconds=positive_number(time_limit_s, "time_limit_s", "seconds above 0"),
        threads=whole_number(
            solve_threads, "solve_threads", "a number of threads", least=1, most=_MOST_THREADS
        ),
        worker_path=str(worker_path()),
    )


def as_graph(graph: object) -> _C.Graph:
    """The graph itself, or the one saved at the path that `graph` is."""
    if isinstance(graph, _C.Graph):
        return graph
    if isinstance(graph, str | os.PathLike):
        return _C.Graph.load(graph)
    raise ArgumentError(
        "graph: expected a poet.Graph or the path of a file written by Graph.save; got "
        f"{type(graph).__name__}. Record a step with poet.trace(step, *args)."
    )


def parse_objective(minimize: object) -> Objective:
    """The objective of that name."""
    names = ", ".join(repr(str(objective)) for objective in Objective)
    if isinstance(minimize, str):
        try:
            return Objective(minimize)
        except ValueError:
            pass
    raise ArgumentError(f"minimize: expected one of {names}; got {minimize!r}.")


def worker_path() -> Path:
    """Where the program `poet-solver` lies: $POET_SOLVER, or bin/ next to the native module."""
    override = os.environ.get("POET_SOLVER")
    if override:
        candidates = [Path(override)]
    else:
        folders = (Path(_C.__file__).parent, Path(__file__).parent)
        candidates = [folder / "bin" / "poet-solver" for folder in folders]
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise PoetRuntimeError(
        f"The solver program was expected at {candidates[0]}, and there is no executable file. "
        + (
            "Correct or unset the environment variable POET_SOLVER."
            if override
            else "Install poet again, or name the program in the environment variable POET_SOLVER."
        )
    )


def _text(value: object, name: str, expected: str) -> str:
    if not isinstance(value, str):
        raise ArgumentError(f"{name}: expected {expected} as a str; got {value!r}.")
    return value
