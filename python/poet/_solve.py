"""poet.solve: from a recorded step, a device and budgets to a schedule."""

from __future__ import annotations

import os
import sys
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
from poet._constraints import StepShare, TrainingDeadline, step_share
from poet._devices import HOST, device_names, find_device
from poet._enums import Objective, Phase, Solver, Status
from poet._errors import ArgumentError, PoetRuntimeError, SolverWarning
from poet._methods import check_method
from poet._models import ModelRequest, graph_on, is_paper
from poet._names import not_one_of
from poet._original import solve_original
from poet._original_words import as_flag, read_original_words
from poet._profile import with_known_times, with_known_watts
from poet._progress import SearchBar
from poet._results import SearchPoint
from poet._solvers import check_solver, gurobi_command, highs_library, parse_solver
from poet._store import page_folder, store_speed
from poet._warn import warn

_MOST_THREADS = 1024
# Of the budget: what a slice of an elementwise op of the optimizer touches.
_SLICE = 0.25


def solve(
    model: object = None,
    platform: str | os.PathLike[str] = "host",
    ram_budget: ByteBudget | None = None,
    runtime_budget: TimeBudget | None = None,
    *,
    graph: _C.Graph | str | os.PathLike[str] | None = None,
    deadline: TrainingDeadline | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    battery_joules: float | None = None,
    method: str = "poet",
    minimize: str = "energy",
    recompute: bool = True,
    paging: bool | None = None,
    page_dir: str | os.PathLike[str] | None = None,
    away_between_steps: bool | None = None,
    time_limit_s: float = 60,
    solve_threads: int | None = 1,
    solver: str | None = "auto",
    deterministic: bool = False,
    batch_size: int | None = None,
    inputs: object = None,
    loss: Callable[[Any], Any] | None = None,
    optimizer: object = None,
    trainable: object = None,
    count: str | None = None,
    cost_model: str | None = None,
    accounting: str = "poet",
    cache_dir: str | os.PathLike[str] | bool | None = True,
    slices: bool = True,
    starts: Sequence[_C.Schedule] = (),
    verbose: bool = False,
    on_progress: Callable[[SearchPoint], object] | None = None,
    **of_the_original: object,
) -> _C.Schedule:
    """Decides when to keep, free, recompute and page every intermediate value of a training step.

    The program is solved in a process of its own, so that the time limit holds. Ctrl-C ends it at
    once. The GIL is released. A budget that cannot be met is a status of the result, never an
    exception.

    Args:
        model: what is trained: the name of a preset ("resnet18_cifar"; `poet.preset_names()` has
            them all), an nn.Module with `inputs` and `loss`, a step of `poet.wrap` that has run, a
            Graph or the path of a file written by `Graph.save`. A module or preset is run twice or
            more on this machine to record it; a module's parameters, buffers, gradients and mode,
            its optimizer and the generators are as before, bit for bit.
        graph: the recorded step in place of `model`, or the path of its file. "paper", beside the
            name of a model, takes the layer graph of POET's own code; that implies
            count="activations" and cost_model="paper".
        platform: the device that the step runs on: "host", the name of a device that poet knows
            (`poet.device_names()`), or the path of a device file (profiles/README.md).
        ram_budget: most bytes that may be resident at once: bytes, "512MiB", "1.5GiB", or "60%" of
            the plain step's peak. None stands for the RAM of the device.
        runtime_budget: longest that the step may take: a ratio to the plain step's time (1.3), or
            a time ("1.5s"). None stands for no deadline.
        deadline: of the whole training, from now on: seconds, "8h", "90min", "1h 30min", a
            datetime.timedelta, or the moment of its end as a datetime.datetime or as text
            "2026-12-24T18:00" (local time where it names no zone). Divided by the number of steps
            it is a runtime budget; where both are given the tighter one holds.
        steps: of the whole training, for `deadline` and `battery_joules`.
        epochs: in place of `steps`, with `steps_per_epoch`.
        steps_per_epoch: see there.
        battery_joules: that the whole training may draw. Only with minimize="energy". Where the
            best plan found takes more than a step's share there is no plan: the status is
            "infeasible" if the bound proves that every plan does, else "time_limit";
            `Schedule.least_energy_joules` is what the best one takes.
        method: what plans: a name that `poet.methods()` has. The schedule is that method's own, or
            there is none: `Schedule.method` says whose it is.
        minimize: "energy", "time" or "memory".
        recompute: plans may run ops again. False together with paging=False leaves plans that only
            free values early.
        paging: plans may move values to secondary storage and back. None: where the device's
            profile has a store, and for "host" where `page_dir` is given. On "host" the folder is
            measured, which takes a second once for each folder and machine.
        page_dir: the folder that values would be paged to; None for the system's.
        away_between_steps: optimizer state may stay in the store from one step to the next, and
            parameters where that is not enough. Only for a runtime that brings them back when
            something touches them in between, as `poet.wrap` does. None: no on "host", else yes; on
            a device that runs no PyTorch (a microcontroller) buffers and inputs too: nothing but
            the plan touches them.
        time_limit_s: seconds that the search may take, above 0.
        solve_threads: threads of the solver.
        solver: of the mixed-integer programs: "cbc", which is part of poet; "highs", where the
            package highsbox or highspy or a shared library of HiGHS is installed; "gurobi", where
            gurobipy and a licence are. "auto" takes what is fastest of CBC and HiGHS.
        deterministic: `time_limit_s` limits work instead of seconds, about as much as a quiet
            machine does in them: the same graph, arguments and solver give the same schedule to the
            last byte, twice and on a busy machine. Seconds of the search are then of work too. With
            one thread only. A search that hangs is ended after a minute and 20 times as long.
        batch_size: of a preset; None for 1.
        inputs: what an nn.Module is called with: a tensor, a tuple, or a dict of named arguments.
        loss: of an nn.Module: a function of its output that gives one number. None takes the
            output itself, or its attribute `loss`.
        optimizer: "sgd", "momentum", "adam" or "adamw", a torch.optim.Optimizer, or a function that
            makes one from a list of parameters. None: "sgd" for a preset; for an nn.Module forward
            and backward alone.
        trainable: which parameters of a preset or nn.Module are trained: "all", "last", "last 2"
            (layers), "bias" (with the last layer), or patterns of names such as ["layer4.*"].
        count: what counts towards the budget: "all", or "activations": these, their gradients and
            workspaces alone, as in POET's paper. None: "all", but for graph="paper".
        cost_model: "device": the device file's figures; "paper": the constants of POET's own code.
            None: "device", but for graph="paper". docs/costs.md derives both.
        accounting: "poet", or "original" beside graph="paper": memory and time rows as POET's own
            program has them, where page-ins take no memory and transfers no time. What comes back
            then is a `poet.OriginalSolution`, no Schedule: nothing carries it out.
        cache_dir: where measured speeds and recorded presets are kept: a folder, True for the
            user's cache folder, or None. Schedules are not kept there: `Schedule.save` does that.
        slices: on a device that runs no PyTorch the optimizer's elementwise ops may run slice by
            slice, where the step does not fit because one of them does not.
            `Schedule.traced_graph` is the sliced step then; `Op.slice` and `Value.slice` lead back
            to the recorded one, and the message says so. What minimize="memory" finds within the
            budget is the least of the step as it was recorded: one in slices may need less.
        starts: schedules of the same graph to start from, such as those of other budgets. One that
            keeps these budgets is never lost: the result is at least as good.
        verbose: shows the calls that are recorded, and a progress bar with the best plan, the
            bound and the gap.
        on_progress: called with a `poet.SearchPoint` for each better plan and each better bound.
            What it raises ends the search and comes out unchanged.
        **of_the_original: words of POET's own `solve()`: `remat` is `recompute` here,
            `use_actual_gurobi=True` is solver="gurobi", `print_graph_info` and `print_power_costs`
            print, `mem_power_scale` may be 1. It takes 1 and 0 for True and False, None as `solver`
            and `solve_threads`, and its first four arguments by position; so does this one.

    Returns:
        The best schedule found; `Schedule.status` says what it is worth, `Schedule.history` how the
        search went. `Schedule.gap` compares it with `Schedule.bound`, and `Schedule.bound_scope`,
        which is a result as well, says which schedules that bound speaks of: "all", or
        "candidates", those alone that the search put into its programs. `Schedule.bound_all` is
        the bound over every schedule.

    Raises:
        ArgumentError: an argument makes no sense, the model cannot run, `page_dir` takes no page
            file, or the solver that was named cannot be had.
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
    old = read_original_words(of_the_original, list(solve.__annotations__))
    recompute = as_flag(recompute, "recompute") and old.recompute
    paging = None if paging is None else as_flag(paging, "paging")
    chosen = Solver.GUROBI if old.gurobi else parse_solver("auto" if solver is None else solver)
    if chosen is not Solver.AUTO:
        check_solver(chosen, worker_path())
    objective = parse_objective(minimize)
    share = step_share(
        deadline=deadline,
        steps=steps,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        battery_joules=battery_joules,
        minimize=objective,
    )
    seconds = positive_number(time_limit_s, "time_limit_s", "seconds above 0")
    if ram_budget is not None:  # nothing is recorded for a budget that makes no sense
        parse_bytes(ram_budget, plain_peak_bytes=1 << 50)
    cache = open_cache(cache_dir)
    flag(verbose, "verbose")
    request = ModelRequest(
        model,
        inputs,
        loss,
        optimizer,
        trainable,
        batch_size,
        paper=is_paper(graph),
        verbose=verbose,
    )
    _check_accounting(accounting, request.paper, share)
    _check_callback(on_progress)
    device = choose_device(platform, cost_model, request.paper)
    device = with_store(with_known_watts(device, cache), paging, page_dir, cache)
    step = request.graph_or(graph, cache)
    if device.name == HOST:
        step, about_times = with_known_times(step, cache)
        share = share.noted(about_times)
    recorded = on_device(step, device, count, request.paper)
    old.tell(recorded, device)
    elsewhere = device.name != HOST
    away = elsewhere if away_between_steps is None else away_between_steps
    flag(away, "away_between_steps")
    flag(deterministic, "deterministic")
    if ram_budget is None:
        ram_budget_bytes = device.ram_bytes or machine_ram_bytes()
    else:
        ram_budget_bytes = parse_bytes(ram_budget, plain_peak_bytes=recorded.plain_peak_bytes)
    step_seconds = share.seconds
    if runtime_budget is not None:
        step_seconds = share.tighter(
            parse_runtime(runtime_budget, plain_seconds=recorded.plain_seconds)
        )
    if accounting == "original":
        _check_original(
            method=(method, "poet"),
            minimize=(objective, Objective.ENERGY),
            recompute=(recompute, True),
            paging=(None if paging else paging, None),
            page_dir=(page_dir, None),
            away_between_steps=(away_between_steps, None),
            solver=(str(chosen), "auto"),
            deterministic=(deterministic, False),
            slices=(slices, True),
            starts=(_starts(starts), _starts(())),
        )
        original: Any = solve_original(
            recorded,
            device,
            ram_budget_bytes=ram_budget_bytes,
            runtime_budget_seconds=step_seconds,
            time_limit_s=seconds,
        )
        return original  # type: ignore[no-any-return]
    asked: dict[str, Any] = {
        "method": check_method(method),
        "ram_budget_bytes": ram_budget_bytes,
        "runtime_budget_seconds": step_seconds,
        "minimize": objective,
        "recompute": recompute,
        "paging": paging is not False,
        "away_between_steps": away,
        "parameters_away": away,
        "deterministic": deterministic,
        "time_limit_s": seconds,
        "solve_threads": whole_number(
            1 if solve_threads is None else solve_threads,
            "solve_threads",
            "a number of threads",
            least=1,
            most=_MOST_THREADS,
        ),
        "starts": _starts(starts),
        "solver": chosen,
    }
    search = solve_with_bar if verbose else solve_on

    def plan(of_the_device: _C.Graph) -> _C.Schedule:
        return search(of_the_device, device, on_progress=on_progress, **asked)

    may_slice = device.direct_kernels and count in (None, "all") and not request.paper
    if not (flag(slices, "slices") and may_slice):
        return share.hold(plan(recorded))
    cut = sliced(step, ram_budget_bytes - step.base_bytes, ram_budget_bytes)
    if cut is step or recorded.signature in {start.graph_signature for start in asked["starts"]}:
        schedule = plan(recorded)
        if not update_is_too_large(schedule) or asked["starts"]:
            return share.hold(schedule)
        cut = finely_sliced(step, ram_budget_bytes)
        if cut is step:
            return share.hold(schedule)
    return share.noted(_about_slices(cut)).hold(plan(on_device(cut, device, count)))


def _check_accounting(accounting: object, paper: bool, share: StepShare) -> None:
    if accounting not in ("poet", "original"):
        raise ArgumentError(f'accounting: expected "poet" or "original"; got {accounting!r}.')
    if accounting == "original" and not paper:
        raise ArgumentError(
            'accounting="original": expected graph="paper" beside it: the program is POET\'s '
            "own, for its own layer graphs."
        )
    if accounting == "original" and share.joules is not None:
        raise ArgumentError(
            'battery_joules: expected accounting="poet" beside it: POET\'s own program gives no '
            "bound to hold it against. Leave one of them out."
        )


def solve_with_bar(
    graph: _C.Graph,
    device: _C.DeviceProfile,
    *,
    on_progress: Callable[[SearchPoint], object] | None = None,
    should_stop: Callable[[], bool] | None = None,
    **asked: Any,
) -> _C.Schedule:
    """`solve_on` with a progress bar."""
    plain, unit = plain_cost(graph, device, asked["minimize"])
    with SearchBar(asked["time_limit_s"], plain=plain, unit=unit) as bar:

        def tell(point: SearchPoint) -> None:
            bar.tell(point)
            if on_progress is not None:
                on_progress(point)

        def stops() -> bool:
            return bar.poll() or (should_stop is not None and should_stop())

        return solve_on(graph, device, on_progress=tell, should_stop=stops, **asked)


def sliced(graph: _C.Graph, threshold_bytes: int, ram_budget_bytes: int) -> _C.Graph:
    """The step with the optimizer's largest ops in slices; itself where none is too large."""
    cut = _C.slice_optimizer(graph, max(0, threshold_bytes), max(1, int(_SLICE * ram_budget_bytes)))
    return graph if len(cut) == len(graph) else cut


def finely_sliced(graph: _C.Graph, ram_budget_bytes: int) -> _C.Graph:
    """Likewise, with every op in slices that touches more than a small part of the budget."""
    return sliced(graph, int(_SLICE * ram_budget_bytes), ram_budget_bytes)


def update_is_too_large(schedule: _C.Schedule) -> bool:
    """Whether nothing fits, and it is an op of the optimizer that sets the least budget."""
    graph, at = schedule.traced_graph, schedule.least_ram_op
    if schedule.status is not Status.INFEASIBLE or graph is None or at is None or at >= len(graph):
        return False
    return graph.ops[at].phase is Phase.OPTIMIZER


def _about_slices(graph: _C.Graph) -> str:
    counts = {v.slice[0]: v.slice[2] for v in graph.values if v.slice and v.slice[2] > 1}
    return (
        f"the optimizer's elementwise ops on {len(counts)} of its values run in up to "
        f"{max(counts.values())} slices"
    )


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
    parameters_away: bool = False,
    solve_threads: int = 1,
    solver: Solver = Solver.AUTO,
    deterministic: bool = False,
    should_stop: Callable[[], bool] | None = None,
    on_progress: Callable[[SearchPoint], object] | None = None,
    starts: Sequence[_C.Schedule] = (),
    method: str = "poet",
    niceness: int = 0,
) -> _C.Schedule:
    """`solve` with arguments that are checked and in the units of the core.

    `niceness`: by how much the solver's process gives way to others, as nice(1) counts it.
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
        parameters_away=parameters_away,
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
        niceness=niceness,
    )
    if trouble:
        warn(f"solver={str(solver)!r}: {' '.join(trouble)}", SolverWarning)
    return schedule


def choose_device(platform: object, cost_model: object, paper: bool) -> _C.DeviceProfile:
    """The profile of a platform under a cost model.

    Args:
        platform: name of a device, or the path of a device file.
        cost_model: "device", "paper", or None for what goes with the graph.
        paper: the graph is one of POET's own.
    """
    model = cost_model if cost_model is not None else ("paper" if paper else "device")
    if model not in ("device", "paper"):
        raise ArgumentError(f'cost_model: expected "device" or "paper"; got {cost_model!r}.')
    device = find_device(platform)
    if model == "device":
        return device.profile
    if device.paper is None:
        known = [name for name in device_names() if name != HOST and find_device(name).paper]
        raise ArgumentError(
            'cost_model="paper": expected a device that POET has as platform=; got '
            f"{device.name!r}. Known: {', '.join(known)}."
        )
    return device.paper


def on_device(
    graph: _C.Graph, device: _C.DeviceProfile, count: object, paper: bool = False
) -> _C.Graph:
    """The step with the device's times, and with the bytes that count."""
    counted = count if count is not None else ("activations" if paper else "all")
    if counted not in ("all", "activations"):
        raise ArgumentError(f'count: expected "all" or "activations"; got {count!r}.')
    graph = graph_on(graph, device)
    return _C.activations_only(graph) if counted == "activations" else graph


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
    if isinstance(starts, list | tuple) and all(isinstance(each, _C.Schedule) for each in starts):
        return starts
    raise ArgumentError(f"starts: expected a list of poet.Schedule; got {starts!r}.")


def _check_callback(on_progress: object) -> None:
    if on_progress is not None and not callable(on_progress):
        raise ArgumentError(
            f"on_progress: expected a function of a poet.SearchPoint, or None; got {on_progress!r}."
        )


def _check_original(**given: tuple[object, object]) -> None:
    """Refuses what POET's own program does not know: (what was given, what that program has)."""
    for name, (value, default) in given.items():
        if value != default:
            raise ArgumentError(
                f'{name}: expected it to be left out beside accounting="original", whose program '
                f"takes no such word; got {value!r:.60}."
            )


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
    if page_dir is None and (device.has_store or paging is None):
        return device  # whether a disk was measured before must not decide what a plan may do
    if device.name != HOST:
        raise ArgumentError(
            f"page_dir: expected None beside platform={device.name!r}, whose store its device file "
            f"describes; got {page_dir!r}."
            if page_dir is not None
            else f"paging: {device.name!r} has no store in its device file; got {paging!r}."
        )
    return store_speed(page_folder(page_dir), cache).on(device)


def flag(value: object, name: str) -> bool:
    """Checks that it is True or False."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name}: expected True or False; got {value!r}.")
    return value


def parse_objective(minimize: object) -> Objective:
    """The objective of that name."""
    if isinstance(minimize, str):
        try:
            return Objective(minimize.lower())
        except ValueError:
            pass
    raise not_one_of("minimize", Objective, minimize)


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
