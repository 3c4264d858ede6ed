"""poet.solve: from a recorded step, a device and budgets to a schedule."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
from poet._cache import Cache, open_cache
from poet._enums import Objective, Solver
from poet._errors import ArgumentError, PoetRuntimeError, SolverWarning
from poet._methods import check_method
from poet._progress import SearchBar
from poet._results import SearchPoint
from poet._solvers import check_solver, gurobi_command, highs_library, parse_solver
from poet._store import known_speed, page_folder, store_speed

_MOST_THREADS = 1024


def solve(
    *,
    graph: _C.Graph | str | os.PathLike[str],
    platform: str = "host",
    ram_budget: ByteBudget | None = None,
    runtime_budget: TimeBudget | None = None,
    method: str = "poet",
    minimize: str = "energy",
    recompute: bool = True,
    paging: bool | None = None,
    page_dir: str | os.PathLike[str] | None = None,
    away_between_steps: bool = False,
    time_limit_s: float = 60,
    solve_threads: int = 1,
    solver: str = "auto",
    deterministic: bool = False,
    cache_dir: str | os.PathLike[str] | bool | None = True,
    starts: Sequence[_C.Schedule] = (),
    verbose: bool = False,
    on_progress: Callable[[SearchPoint], object] | None = None,
) -> _C.Schedule:
    """Decides when to keep, free, recompute and page every intermediate value of a training step.

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
        method: what plans: a name that `poet.methods()` has. The schedule is that method's own, or
            there is none: `Schedule.method` says whose it is.
        minimize: "energy", "time" or "memory".
        recompute: plans may run ops again. False together with paging=False leaves plans that only
            free values early.
        paging: plans may move values to secondary storage and back. None: where the store's speed
            is known, which is where the device's profile has a store; for "host" where `page_dir`
            is given or poet has measured the system's folder for temporary files before. True
            measures it, which takes a second once for each folder and machine.
        page_dir: the folder that values would be paged to; None for the system's.
        away_between_steps: optimizer state may stay in the store from one step to the next. Only
            for a runtime that brings it back when something touches it in between, as `poet.wrap`
            does.
        time_limit_s: seconds that the search may take, above 0.
        solve_threads: threads of the solver.
        solver: of the mixed-integer programs: "cbc", which is part of poet; "highs", where the
            package highsbox or highspy or a shared library of HiGHS is installed; "gurobi", where
            gurobipy and a licence are. "auto" takes what is fastest of CBC and HiGHS.
        deterministic: `time_limit_s` limits work instead of seconds, about as much as a quiet
            machine does in them: the same graph, arguments and solver give the same schedule to the
            last byte, twice and on a busy machine. Seconds of the search are then of work too. With
            one thread only. A search that hangs is ended all the same, after 20 times as long.
        cache_dir: where measured speeds are kept: a folder, True for the user's cache folder, or
            None. Schedules are not kept there: `Schedule.save` does that.
        starts: schedules of the same graph to start from, such as those of other budgets. One that
            keeps these budgets is never lost: the result is at least as good.
        verbose: shows a progress bar with the best plan, the bound and the gap.
        on_progress: called with a `poet.SearchPoint` for each better plan and each better bound.
            What it raises ends the search and comes out unchanged.

    Returns:
        The best schedule found; `Schedule.status` says what it is worth, `Schedule.history` how the
        search went.

    Raises:
        ArgumentError: an argument makes no sense, `page_dir` takes no page file, or the solver
            that was named cannot be had.
        FormatError: the file named by `graph` holds no graph.
        PoetRuntimeError: the file cannot be read, or the solver program is missing.

    Warns:
        SolverWarning: another solver had to go on, since a program is above the size limit of
            Gurobi's licence, or Gurobi failed.

    The environment variable POET_SOLVER names another solver program than the `poet-solver` that
    is installed with poet; POET_HIGHS_LIBRARY another library of HiGHS than the one found;
    POET_SOLVER_MEMORY_BYTES limits the solver's address space to so many bytes (half of the
    machine's memory if it is not set; 0 for no limit).

    Source: `POET (Patil et al., ICML 2022) <https://arxiv.org/abs/2207.07697>`_; docs/design.md
    says where this program differs.
    """
    recorded = as_graph(graph)
    chosen = parse_solver(solver)
    if chosen is not Solver.AUTO:
        check_solver(chosen, worker_path())
    flag(recompute, "recompute")
    flag(away_between_steps, "away_between_steps")
    flag(deterministic, "deterministic")
    device = _C.DeviceProfile.by_name(_text(platform, "platform", "the name of a device"))
    device = with_store(device, paging, page_dir, open_cache(cache_dir))
    if ram_budget is None:
        ram_budget_bytes = machine_ram_bytes()
    else:
        ram_budget_bytes = parse_bytes(ram_budget, plain_peak_bytes=recorded.plain_peak_bytes)
    deadline = None
    if runtime_budget is not None:
        deadline = parse_runtime(runtime_budget, plain_seconds=recorded.plain_seconds)
    objective = parse_objective(minimize)
    seconds = positive_number(time_limit_s, "time_limit_s", "seconds above 0")
    flag(verbose, "verbose")
    if on_progress is not None and not callable(on_progress):
        raise ArgumentError(
            f"on_progress: expected a function of a poet.SearchPoint, or None; got {on_progress!r}."
        )
    asked: dict[str, Any] = {
        "method": check_method(method),
        "ram_budget_bytes": ram_budget_bytes,
        "runtime_budget_seconds": deadline,
        "minimize": objective,
        "recompute": recompute,
        "paging": paging is not False,
        "away_between_steps": away_between_steps,
        "deterministic": deterministic,
        "time_limit_s": seconds,
        "solve_threads": whole_number(
            solve_threads, "solve_threads", "a number of threads", least=1, most=_MOST_THREADS
        ),
        "starts": _starts(starts),
        "solver": chosen,
    }
    if not verbose:
        return solve_on(recorded, device, on_progress=on_progress, **asked)
    plain, unit = plain_cost(recorded, device, objective)
    with SearchBar(seconds, plain=plain, unit=unit) as bar:

        def tell(point: SearchPoint) -> None:
            bar.tell(point)
            if on_progress is not None:
                on_progress(point)

        return solve_on(recorded, device, on_progress=tell, should_stop=bar.poll, **asked)


def solve_on(
    graph: _C.Graph,
    device: _C.DeviceProfile,
    *,
    ram_budget_bytes: int,
    runtime_budget_seconds: float | None,
    minimize: str,
    recompute: bool,
    paging: bool,
    away_between_steps: bool,
    time_limit_s: float,
    solve_threads: int = 1,
    solver: Solver = Solver.AUTO,
    deterministic: bool = False,
    should_stop: Callable[[], bool] | None = None,
    on_progress: Callable[[SearchPoint], object] | None = None,
    starts: Sequence[_C.Schedule] = (),
    method: str = "poet",
) -> _C.Schedule:
    """`solve` with arguments that are checked and in the units of the core.

    Once `should_stop` says so, the solver is stopped and the best plan so far returned.
    """
    trouble: list[str] = []
    schedule = _C.solve_in_worker(
        graph,
        device,
        ram_budget_bytes=ram_budget_bytes,
        runtime_budget_seconds=runtime_budget_seconds,
        minimize=minimize,
        time_limit_seconds=time_limit_s,
        threads=solve_threads,
        worker_path=str(worker_path()),
        recompute=recompute,
        paging=paging,
        away_between_steps=away_between_steps,
        deterministic=deterministic,
        should_stop=should_stop,
        on_progress=on_progress,
        starts=starts,
        solver=str(solver),
        highs_library=highs_library(),
        gurobi_command=gurobi_command() if solver is Solver.GUROBI else [],
        on_trouble=trouble.append,
        method=method,
        python=sys.executable or "python3",
    )
    if trouble:
        warnings.warn(f"solver={str(solver)!r}: {' '.join(trouble)}", SolverWarning, stacklevel=3)
    return schedule


def plain_cost(
    graph: _C.Graph, device: _C.DeviceProfile, objective: str
) -> tuple[float | None, str]:
    """What the plain step costs in the objective, where that is what plans add to, and the unit."""
    if objective == Objective.MEMORY:
        return None, "bytes"
    plain = _C.simulate(graph, None, device)
    if objective == Objective.TIME:
        return plain.makespan_seconds, "s"
    return plain.energy_joules, "J"


def _starts(starts: object) -> Sequence[_C.Schedule]:
    if isinstance(starts, Sequence) and all(isinstance(each, _C.Schedule) for each in starts):
        return starts
    raise ArgumentError(f"starts: expected a list of poet.Schedule; got {starts!r}.")


def with_store(
    device: _C.DeviceProfile, paging: object, page_dir: object, cache: Cache | None
) -> _C.DeviceProfile:
    """The device with what was measured of its store, as far as `paging` asks for it."""
    if paging is not None:
        flag(paging, "paging")
    if paging is False:
        if page_dir is not None:
            raise ArgumentError(
                f"page_dir: expected None beside paging=False; got {page_dir!r}. Leave one of "
                "them out."
            )
        return device
    if device.has_store and page_dir is None:
        return device
    if paging is True or page_dir is not None:
        return store_speed(page_folder(page_dir), cache).on(device)
    try:
        speed = known_speed(page_folder(None), cache)
    except ArgumentError:  # the system's folders take no page file
        return device
    return device if speed is None else speed.on(device)


def flag(value: object, name: str) -> bool:
    """Checks that it is True or False."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name}: expected True or False; got {value!r}.")
    return value


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
