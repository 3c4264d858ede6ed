"""What each solver takes for the programs of traced steps, and the plans it leads to.

    python benchmarks/planner/solvers.py --build build/dev [--only gpt2 bert] [--slacks 0.3]

Builds and runs solver_times (solver_times.cpp) for linear and mixed-integer programs that are the
same for every solver, then whole solves of poet-solver, all on one thread. Prints ratios of seconds
to CBC's: geometric means, since a ratio of sums would be that of the longest few.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from graphs import FOLDER, TracedStep, traced

from _data import context, save
from poet import DeviceProfile, Solver
from poet._solve import solve_on
from poet._solvers import gurobi_command, highs_library

NAMES = ("resnet18", "gpt2", "bert", "vit", "t5", "densenet121", "lstm")
SOLVERS = ("cbc", "highs")
_FIRST_RESULT = 1e-3  # seconds; faster than this is the clock's noise

Record = dict[str, Any]


def programs(
    build: Path, step: TracedStep, slack: float, seconds: float, solvers: list[str]
) -> list[Record]:
    """Times of single programs: a record for each, by solver."""
    command: list[str] = [str(build / "tests" / "cpp" / "solver_times"), str(step.path)]
    command += [str(step.fixed_bytes), str(slack), str(seconds), *solvers]
    command += ["--", highs_library(), *gurobi_command()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    return [{"graph": step.name, "slack": slack, **record} for record in records]


def plans(step: TracedStep, slack: float, seconds: float, solvers: list[str]) -> list[Record]:
    """What a whole solve comes to within the time, by solver."""
    records = []
    for solver in solvers:
        schedule = solve_on(
            step.graph,
            DeviceProfile.by_name("host"),
            ram_budget_bytes=step.budget(slack),
            runtime_budget_seconds=None,
            minimize="energy",
            recompute=True,
            paging=False,
            away_between_steps=False,
            time_limit_s=seconds,
            solver=Solver(solver),
        )
        plain = step.graph.plain_seconds
        records.append(
            {
                "graph": step.name,
                "slack": slack,
                "what": "solve",
                "number": 0,
                "solver": solver,
                "seconds": schedule.solve_seconds,
                "status": str(schedule.status),
                "extra_percent": 100 * (schedule.makespan_seconds / plain - 1)
                if schedule.has_plan
                else None,
            }
        )
    return records


def ratios(records: list[Record]) -> dict[str, dict[str, dict[str, float]]]:
    """By kind of program and solver: the geometric mean of seconds over CBC's, and how many."""
    same: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    for record in records:
        key = tuple(record[name] for name in ("graph", "slack", "what", "number"))
        same[key][record["solver"]] = max(record["seconds"], _FIRST_RESULT)
    logs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (_, _, what, _), seconds in same.items():
        for solver, taken in seconds.items():
            if "cbc" in seconds and solver != "cbc":
                logs[what][solver].append(math.log(taken / seconds["cbc"]))
    return {
        what: {
            solver: {
                "ratio": math.exp(sum(values) / len(values)),
                "least": math.exp(min(values)),
                "most": math.exp(max(values)),
                "programs": len(values),
            }
            for solver, values in by_solver.items()
        }
        for what, by_solver in logs.items()
    }


def line(record: Record) -> str:
    """One record for a terminal."""
    head = f"{record['graph']:12} {record['slack']:4g} {record['what']:10} {record['number']:3}"
    head += f" {record['solver']:7} {record['seconds']:8.3f} s {record['status']:10}"
    if record["what"] == "solve":
        extra = record["extra_percent"]
        return head + ("" if extra is None else f" {extra:+.3f} %")
    return f"{head} {record['columns']} x {record['rows']}: {record['objective']:.6g}"


def main() -> None:
    """Measures what is asked for; --save keeps it under benchmarks/data."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--build", type=Path, required=True, help="a configured build folder")
    parser.add_argument("--only", nargs="+", default=list(NAMES), metavar="NAME")
    parser.add_argument("--solvers", nargs="+", choices=list(Solver), default=list(SOLVERS))
    parser.add_argument("--slacks", type=float, nargs="+", default=[0.3])
    parser.add_argument("--seconds", type=float, default=30.0, help="for each program or solve")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--save", help="name under benchmarks/data", metavar="NAME")
    options = parser.parse_args()
    subprocess.run(["cmake", "--build", options.build, "--target", "solver_times"], check=True)
    records: list[Record] = []
    for name in options.only:
        step = traced(name, options.folder)
        for slack in options.slacks:
            found = programs(options.build, step, slack, options.seconds, options.solvers)
            found += plans(step, slack, options.seconds, options.solvers)
            records += found
            for record in found:
                print(line(record), file=sys.stderr, flush=True)
    summary = ratios(records)
    if options.save:
        save(options.save, {**context(), "ratios": summary, "records": records})
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
