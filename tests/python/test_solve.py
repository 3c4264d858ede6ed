"""poet.solve as its users see it: budgets, statuses, arguments that make no sense, Ctrl-C."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exhaustive import extra_seconds, least_budget
from small_steps import KIB, chain_graph, chain_plain_peak, tanh_step

import poet
from poet import _C
from poet._budgets import machine_ram_bytes
from poet._solve import worker_path
from poet._summary import summary

PEAK = chain_plain_peak(6)
RESIDUAL_BLOCKS = Path(__file__).parents[1] / "data" / "residual_blocks.json"


@pytest.fixture
def graph() -> poet.Graph:
    return chain_graph(6)


def check_plan(graph: poet.Graph, schedule: poet.Schedule) -> poet.Simulation:
    """What every plan must hold to, whatever was asked."""
    assert schedule.has_plan, schedule.message
    schedule.check_against(graph)
    simulated = poet.simulate(graph, schedule)
    assert simulated.peak_bytes == schedule.peak_bytes == schedule.believed_peak_bytes
    assert simulated.peak_op == schedule.peak_op
    assert simulated.makespan_seconds == schedule.makespan_seconds
    assert schedule.believed_seconds == pytest.approx(schedule.makespan_seconds, rel=1e-9)
    assert simulated.energy_joules == schedule.energy_joules
    assert schedule.ram_budget is not None
    assert schedule.peak_bytes <= schedule.ram_budget
    if schedule.runtime_budget_seconds is not None:
        assert schedule.makespan_seconds <= schedule.runtime_budget_seconds * (1 + 1e-9)
    assert schedule.bound_scope in ("all", "candidates")
    assert schedule.gap is not None
    assert schedule.bound is not None
    value = {
        "energy": schedule.energy_joules,
        "time": schedule.makespan_seconds,
        "memory": float(schedule.peak_bytes),
    }[schedule.objective]
    assert schedule.bound <= value * (1 + 1e-9)
    if schedule.status is poet.Status.OPTIMAL:
        assert schedule.gap == 0.0
        assert schedule.bound_scope == "all"
    else:
        assert schedule.status is poet.Status.FEASIBLE
        assert schedule.gap == pytest.approx((value - schedule.bound) / value, abs=1e-9)
    return simulated


def test_the_plain_peak_is_enough_for_plain_training(graph: poet.Graph) -> None:
    schedule = poet.solve(graph=graph, ram_budget=PEAK)
    check_plan(graph, schedule)
    assert schedule.status is poet.Status.OPTIMAL
    assert not [action for action in schedule.actions if action.kind == "recompute"]
    assert schedule.makespan_seconds == pytest.approx(graph.plain_seconds)
    assert schedule.traced_graph is graph
    assert schedule.method == "poet"
    assert schedule.solve_seconds > 0


def test_one_byte_less_needs_a_recompute(graph: poet.Graph) -> None:
    schedule = poet.solve(graph=graph, ram_budget=PEAK - 1)
    simulated = check_plan(graph, schedule)
    assert schedule.status is poet.Status.OPTIMAL
    assert simulated.recomputed_ops == 1
    assert simulated.peak_bytes < PEAK


def test_without_a_budget_the_machine_is_the_budget(graph: poet.Graph) -> None:
    schedule = poet.solve(graph=graph)
    check_plan(graph, schedule)
    assert schedule.ram_budget == machine_ram_bytes()
    assert schedule.runtime_budget_seconds is None
    assert schedule.objective is poet.Objective.ENERGY


@pytest.mark.parametrize(
    ("budget", "size"),
    [
        (PEAK, PEAK),
        (float(PEAK), PEAK),
        (np.int64(PEAK), PEAK),
        ("25KiB", 25 * KIB),
        ("80%", PEAK * 80 // 100),
        ("80.5 %", PEAK * 805 // 1000),
    ],
)
def test_a_budget_may_be_written_in_many_ways(graph: poet.Graph, budget: Any, size: int) -> None:
    schedule = poet.solve(graph=graph, ram_budget=budget)
    assert schedule.ram_budget == size
    check_plan(graph, schedule)


def test_a_deadline_is_a_ratio_or_a_time(graph: poet.Graph) -> None:
    by_ratio = poet.solve(graph=graph, ram_budget="70%", runtime_budget=1.5)
    assert by_ratio.runtime_budget_seconds == pytest.approx(0.018)
    check_plan(graph, by_ratio)
    by_time = poet.solve(graph=graph, ram_budget="70%", runtime_budget="18ms")
    assert by_time.runtime_budget_seconds == pytest.approx(0.018)
    check_plan(graph, by_time)
    assert by_ratio.makespan_seconds == by_time.makespan_seconds


@pytest.mark.parametrize("objective", list(poet.Objective))
def test_each_objective_is_made_small(graph: poet.Graph, objective: poet.Objective) -> None:
    schedule = poet.solve(
        graph=graph, ram_budget="90%", runtime_budget=1.5, minimize=str(objective).title()
    )
    assert schedule.objective is objective
    check_plan(graph, schedule)
    if objective == "memory":
        others = poet.solve(graph=graph, ram_budget="90%", runtime_budget=1.5)
        assert schedule.peak_bytes < others.peak_bytes


def test_what_cannot_be_met_is_a_status_with_the_least_that_would_do() -> None:
    """One op needs more than any other: it alone sets the least."""
    step = json.loads(chain_graph(4).to_json())
    step["ops"][5]["workspace_bytes"] = 64 * KIB
    graph = poet.Graph.from_json(json.dumps(step))
    schedule = poet.solve(graph=graph, ram_budget=KIB)
    assert schedule.status is poet.Status.INFEASIBLE
    assert schedule.actions == ()
    assert schedule.gap is None
    least = schedule.least_ram_budget
    assert least == least_budget(graph)
    assert schedule.least_ram_op == 5
    assert str(least) in schedule.message
    check_plan(graph, poet.solve(graph=graph, ram_budget=least))
    short = poet.solve(graph=graph, ram_budget=least - 1)
    assert short.status is poet.Status.INFEASIBLE
    assert short.least_ram_budget == least
    assert str(least) in str(short)


def test_the_least_that_is_reported_has_a_plan_also_where_no_single_op_sets_it() -> None:
    graph = chain_graph(4)
    schedule = poet.solve(graph=graph, ram_budget=KIB)
    assert schedule.status is poet.Status.INFEASIBLE
    assert schedule.least_ram_budget == least_budget(graph)
    check_plan(graph, poet.solve(graph=graph, ram_budget=schedule.least_ram_budget))
    # Proving that a byte less will not do can take longer than this.
    short = poet.solve(graph=graph, ram_budget=schedule.least_ram_budget - 1, time_limit_s=2)
    assert short.status in (poet.Status.INFEASIBLE, poet.Status.TIME_LIMIT)


def test_no_plan_is_faster_than_plain_training(graph: poet.Graph) -> None:
    schedule = poet.solve(graph=graph, ram_budget=PEAK, runtime_budget=0.99)
    assert schedule.status is poet.Status.INFEASIBLE
    assert schedule.message


def test_memory_and_time_together_can_be_too_little(graph: poet.Graph) -> None:
    assert poet.solve(graph=graph, ram_budget="60%").has_plan
    schedule = poet.solve(graph=graph, ram_budget="60%", runtime_budget=1.01)
    assert schedule.status in (poet.Status.INFEASIBLE, poet.Status.TIME_LIMIT)
    assert not schedule.has_plan


@pytest.mark.parametrize("seed", [24, 27])
def test_a_small_step_without_a_proof_has_a_plan_all_the_same(seed: int) -> None:
    """Times that lie far apart, as a busy machine measures them: hard to prove, not to plan."""
    text = json.loads(poet.trace(tanh_step(), torch.randn(256, 64)).to_json())
    times = random.Random(seed)
    for op in text["ops"]:
        if "seconds" in op:
            op["seconds"] = times.lognormvariate(-11, 2)
    graph = poet.Graph.from_json(json.dumps(text))
    schedule = poet.solve(
        graph=graph, ram_budget="90%", paging=False, time_limit_s=3, deterministic=True
    )
    check_plan(graph, schedule)
    assert schedule.bound is not None


@pytest.mark.parametrize("beside", [0, 142_096, 3_717_088, 100_000_000])
def test_what_lies_beside_a_step_does_not_make_its_plan_harder_to_find(beside: int) -> None:
    """A quarter of the way from the least to the plain peak; recorded on a busy machine."""
    text = json.loads(RESIDUAL_BLOCKS.read_text())
    text["base_bytes"] = beside
    graph = poet.Graph.from_json(json.dumps(text))
    schedule = poet.solve(
        graph=graph,
        ram_budget=beside + 247_273,
        paging=False,
        time_limit_s=5,
        deterministic=True,
    )
    check_plan(graph, schedule)


def test_a_solved_plan_survives_a_file(graph: poet.Graph, tmp_path: Path) -> None:
    schedule = poet.solve(graph=graph, ram_budget="70%")
    path = tmp_path / "plan.json"
    schedule.save(path)
    loaded = poet.Schedule.load(path)
    assert loaded == schedule
    assert poet.simulate(graph, loaded) == poet.simulate(graph, schedule)
    assert loaded.traced_graph is None
    assert "aten::layer" in str(schedule)
    assert "aten::layer" not in str(loaded)
    # What the plain step takes of energy is the device's to say, which the file does not name.
    assert str(schedule) == summary(loaded, graph, schedule.device)


def test_a_loaded_plan_takes_along_what_lies_beside_it_and_fits(
    graph: poet.Graph, tmp_path: Path
) -> None:
    schedule = poet.solve(graph=graph, ram_budget="70%")
    path = tmp_path / "plan.json"
    schedule.save(path)
    graph.save(tmp_path / "plan.graph.json")
    assert schedule.device is not None
    (tmp_path / "plan.device.json").write_text(schedule.device.to_json())
    for name in (path, str(path), os.fsencode(path)):
        loaded = poet.Schedule.load(name)
        assert loaded.traced_graph == graph
        assert loaded.device is not None
        assert loaded.device.to_json() == schedule.device.to_json()
        assert str(loaded) == str(schedule)
        assert loaded.to_bytes() == schedule.to_bytes()
    random_step(1).save(tmp_path / "plan.graph.json")  # of another step
    assert poet.Schedule.load(path).traced_graph is None
    (tmp_path / "plan.graph.json").write_text("{")
    assert poet.Schedule.load(path).traced_graph is None
    graph.save(tmp_path / "plan.graph.json")
    (tmp_path / "plan.device.json").write_bytes(b"\xff{")
    loaded = poet.Schedule.load(path)
    assert loaded.traced_graph == graph
    assert loaded.device is None


def test_a_graph_may_be_a_file(graph: poet.Graph, tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    graph.save(path)
    for name in (path, str(path)):
        schedule = poet.solve(graph=name, ram_budget="70%")
        assert schedule.traced_graph == graph
        check_plan(graph, schedule)


def random_step(seed: int) -> poet.Graph:
    """A chain whose sizes and times differ from op to op."""
    rng = random.Random(seed)
    step = json.loads(chain_graph(8).to_json())
    for op in step["ops"]:
        op["seconds"] = rng.randint(1, 99) / 1000
        op["workspace_bytes"] = rng.choice([0, 0, 0, 3000])
    for value in step["values"]:
        value["bytes"] = rng.randint(1000, 9000)
    return poet.Graph.from_json(json.dumps(step | {"signature": "0" * 16}))


@pytest.mark.parametrize("seed", range(10))
def test_more_memory_never_costs_more(seed: int) -> None:
    graph = random_step(seed)
    seconds = math.inf
    for percent in (55, 70, 85, 100):
        schedule = poet.solve(graph=graph, ram_budget=f"{percent}%", time_limit_s=20)
        if not schedule.has_plan:
            budget = graph.plain_peak_bytes() * percent // 100
            assert extra_seconds(graph, budget) is None, schedule.message
            continue
        check_plan(graph, schedule)
        if schedule.status is poet.Status.OPTIMAL:
            assert schedule.makespan_seconds <= seconds * (1 + 1e-9)
            seconds = schedule.makespan_seconds
    assert seconds == pytest.approx(graph.plain_seconds)


WRONG = [
    ({"graph": 3}, r"graph: expected a poet\.Graph or the path .*; got int"),
    ({"graph": None}, r"model: expected .*poet\.Graph.*; got None"),
    ({"platform": "toaster"}, r"platform.*'toaster'.*Known: host, a72"),
    ({"platform": 3}, r"platform: expected .*; got 3"),
    ({"platform": None}, r"platform: expected .*; got None"),
    ({"ram_budget": "12 parsecs"}, r"ram_budget: expected .*; got '12 parsecs'.*parsecs"),
    ({"ram_budget": -1}, r"ram_budget: expected .*; got -1\. A budget cannot be negative"),
    ({"ram_budget": "-1GiB"}, r"ram_budget: expected .*; got '-1GiB'.*negative"),
    ({"ram_budget": 0}, r"ram_budget: expected .*; got 0\."),
    ({"ram_budget": math.nan}, r"ram_budget: expected .*; got nan"),
    ({"ram_budget": True}, r"ram_budget: expected .*; got True"),
    ({"ram_budget": [1]}, r"ram_budget: expected .*; got \[1\].*list"),
    ({"runtime_budget": "12 parsecs"}, r"runtime_budget: expected .*; got '12 parsecs'"),
    ({"runtime_budget": -1.3}, r"runtime_budget: expected .*; got -1\.3"),
    ({"runtime_budget": 0}, r"runtime_budget: expected .*; got 0"),
    ({"runtime_budget": math.inf}, r"runtime_budget: expected .*; got inf"),
    ({"runtime_budget": True}, r"runtime_budget: expected .*; got True"),
    ({"minimize": "fame"}, r"minimize: expected one of 'energy', 'time', 'memory'; got 'fame'"),
    ({"minimize": "enrgy"}, r"got 'enrgy'\. Did you mean 'energy'"),
    ({"method": "checkmat"}, r"got 'checkmat'\. Did you mean 'checkmate'"),
    ({"solver": "high"}, r"got 'high'\. Did you mean 'highs'"),
    ({"minimize": None}, r"minimize: expected one of .*; got None"),
    ({"time_limit_s": 0}, r"time_limit_s: expected seconds above 0; got 0"),
    ({"time_limit_s": -5}, r"time_limit_s: expected seconds above 0; got -5"),
    ({"time_limit_s": math.nan}, r"time_limit_s: expected .*; got nan"),
    ({"time_limit_s": "60"}, r"time_limit_s: expected .*; got '60'"),
    ({"time_limit_s": None}, r"time_limit_s: expected .*; got None"),
    ({"solve_threads": 0}, r"solve_threads: expected .*; got 0"),
    ({"solve_threads": -2}, r"solve_threads: expected .*; got -2"),
    ({"solve_threads": 1.5}, r"solve_threads: expected .*; got 1\.5"),
    ({"solve_threads": True}, r"solve_threads: expected .*; got True"),
    ({"solve_threads": 10**6}, r"solve_threads: expected .*; got 1000000"),
]


@pytest.mark.parametrize(("wrong", "says"), WRONG, ids=lambda item: str(item)[:40])
def test_arguments_that_make_no_sense_are_refused(
    graph: poet.Graph, wrong: dict[str, Any], says: str
) -> None:
    arguments: dict[str, Any] = {"graph": graph, "ram_budget": "80%"}
    with pytest.raises(poet.ArgumentError, match=says):
        poet.solve(**arguments | wrong)


def test_behind_the_originals_four_only_keywords_are_taken(graph: poet.Graph) -> None:
    with pytest.raises(TypeError):
        poet.solve(graph, "host", "80%", None, graph)  # type: ignore[misc]
    with pytest.raises(TypeError, match="unexpected keyword argument 'budget'"):
        poet.solve(graph=graph, budget=3)


@pytest.mark.parametrize(
    "given",
    [{"optimizer": "adam"}, {"trainable": "all"}, {"loss": len}, {"batch_size": 2}, {"inputs": ()}],
)
@pytest.mark.parametrize("plans", [poet.solve, poet.pareto])
def test_what_goes_with_a_model_is_refused_beside_a_graph(
    graph: poet.Graph, plans: Callable[..., object], given: dict[str, Any]
) -> None:
    with pytest.raises(poet.ArgumentError, match=f"^{next(iter(given))}: .* beside graph=, which"):
        plans(graph=graph, **given)
    with pytest.raises(poet.ArgumentError, match="beside model=the path of a graph file"):
        poet.solve(model="step.graph.json", optimizer="adam")


def test_a_graph_file_that_holds_no_graph_is_refused(tmp_path: Path, graph: poet.Graph) -> None:
    with pytest.raises(poet.PoetRuntimeError, match=r"missing\.json"):
        poet.solve(graph=tmp_path / "missing.json")
    path = tmp_path / "plan.json"
    poet.solve(graph=graph).save(path)
    with pytest.raises(poet.FormatError, match=r"plan\.json"):
        poet.solve(graph=path)


def test_the_solver_is_found_and_can_be_named(
    monkeypatch: pytest.MonkeyPatch, graph: poet.Graph, tmp_path: Path
) -> None:
    found = worker_path()
    assert found.name == "poet-solver"
    monkeypatch.setenv("POET_SOLVER", str(found))
    assert worker_path() == found
    check_plan(graph, poet.solve(graph=graph, ram_budget="80%"))
    for wrong in (tmp_path / "nothing", tmp_path):
        monkeypatch.setenv("POET_SOLVER", str(wrong))
        with pytest.raises(poet.PoetRuntimeError, match=r"POET_SOLVER"):
            poet.solve(graph=graph, ram_budget="80%")


def make_program(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_a_solver_that_crashes_is_a_status(
    monkeypatch: pytest.MonkeyPatch, graph: poet.Graph, tmp_path: Path
) -> None:
    for text in ("exit 3", "kill -SEGV $$", "echo nonsense >&3"):
        monkeypatch.setenv("POET_SOLVER", str(make_program(tmp_path / "crash", text)))
        schedule = poet.solve(graph=graph, ram_budget="80%", time_limit_s=20)
        assert schedule.status is poet.Status.TIME_LIMIT
        assert not schedule.has_plan
        assert "solver process" in schedule.message
        assert schedule.message in str(schedule)


def children() -> set[int]:
    """Processes that this one started and that still run."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it ended meanwhile
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.add(int(stat.parent.name))
    return found


def test_the_time_limit_holds_for_a_solver_that_hangs(
    monkeypatch: pytest.MonkeyPatch, graph: poet.Graph, tmp_path: Path
) -> None:
    monkeypatch.setenv("POET_SOLVER", str(make_program(tmp_path / "hang", "exec sleep 600")))
    before = children()
    schedule = poet.solve(graph=graph, ram_budget="80%", time_limit_s=0.2)
    assert schedule.status is poet.Status.TIME_LIMIT
    assert schedule.solve_seconds < 60
    assert children() <= before


def hanging_solve(program: Path, should_stop: Any) -> poet.Schedule:
    """A solve that only `should_stop` can end in time."""
    return _C.solve_in_worker(
        chain_graph(),
        poet.DeviceProfile.by_name("host"),
        ram_budget_bytes=PEAK,
        runtime_budget_seconds=None,
        minimize="energy",
        time_limit_seconds=300,
        threads=1,
        worker_path=str(program),
        should_stop=should_stop,
    )


def test_a_solve_can_be_stopped_and_leaves_no_process(tmp_path: Path) -> None:
    program = make_program(tmp_path / "hang", "exec sleep 600")
    before = children()
    schedule = hanging_solve(program, lambda: True)
    assert schedule.status is poet.Status.TIME_LIMIT
    assert "stopped" in schedule.message
    with pytest.raises(ZeroDivisionError):
        hanging_solve(program, lambda: 1 // 0)
    assert children() <= before


def test_other_threads_run_during_a_solve(tmp_path: Path) -> None:
    program = make_program(tmp_path / "hang", "exec sleep 600")
    stop = threading.Event()
    # Sets the event from another thread; if the solve held the GIL it would never be seen.
    timer = threading.Timer(0.3, stop.set)
    timer.start()
    hanging_solve(program, stop.is_set)
    timer.join()


CTRL_C = """
    import signal, sys
    # What a shell has started in the background ignores interrupts, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path.insert(0, sys.argv[1])
    import poet
    from small_steps import chain_graph
    graph = chain_graph(400)
    print("ready", flush=True)
    try:
        poet.solve(graph=graph, ram_budget=graph.plain_peak_bytes() // 9, time_limit_s=300)
        print("ended", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def solvers_of(parent: int) -> set[int]:
    """poet-solver processes that `parent` started."""
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    started = {int(child) for task in tasks for child in task.read_text().split()}
    return {child for child in started if name_of(child) == "poet-solver"}


def name_of(process: int) -> str:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return ""
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return "" if fields["State"].startswith("Z") else fields["Name"]


def wait_until(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)


@pytest.mark.parametrize("to_group", [False, True], ids=["process", "terminal"])
def test_ctrl_c_ends_a_solve_and_its_process(to_group: bool) -> None:
    command = [sys.executable, "-c", textwrap.dedent(CTRL_C), str(Path(__file__).parent)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        wait_until(lambda: solvers_of(run.pid))
        solvers = solvers_of(run.pid)
        (os.killpg if to_group else os.kill)(run.pid, signal.SIGINT)
        interrupted = time.monotonic()
        assert run.stdout.readline() == "interrupted\n"
        assert time.monotonic() - interrupted < 20
        assert run.wait(60) == 0
    assert not [pid for pid in solvers if name_of(pid) == "poet-solver"]


def test_the_solver_dies_with_a_process_that_is_killed() -> None:
    command = [sys.executable, "-c", textwrap.dedent(CTRL_C), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        wait_until(lambda: solvers_of(run.pid))
        solvers = solvers_of(run.pid)
        run.kill()
    wait_until(lambda: not [pid for pid in solvers if name_of(pid) == "poet-solver"])


def test_a_memory_limit_of_the_solver_that_is_none_is_a_status(
    monkeypatch: pytest.MonkeyPatch, graph: poet.Graph
) -> None:
    monkeypatch.setenv("POET_SOLVER_MEMORY_BYTES", "lots")
    schedule = poet.solve(graph=graph, ram_budget="80%", time_limit_s=20)
    assert schedule.status is poet.Status.TIME_LIMIT
    assert "POET_SOLVER_MEMORY_BYTES" in schedule.message
