"""Plans for traced steps, with their proofs: value, bound, gaps and seconds, from outside.

    python benchmarks/planner/table.py [--only gpt2 bert] [--slacks 0.5] [--mode recompute paging]

Every solve is one process of the solver on one thread, objective energy on "host". With paging the
host has a stated store (STORE), so that two machines solve the same problem. `seconds` is from
outside, with the process and the simulator's replay in it and the tracing left out.
gap = (value - bound) / value; gap_extra = (value - bound) / (value - plain).

pessimism = believed / simulated - 1: what the program's own arithmetic has of the step's seconds
more than the simulator, which decides. 0 without overlap; with overlap never below 0 (a plan whose
simulation takes longer than believed is refused).

`bound` is the greatest that is known, `bound_all` the greatest over every schedule.
`--method poet_paper moccasin` puts the dense T x T program and Moccasin's intervals (ortools)
beside it, in the same time; their bounds are of their own schedules.
On a machine that does other work too, `--deterministic` limits work instead of seconds, and
`processor_seconds` says what the solver and its children took of a processor.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from graphs import FOLDER, TracedStep, traced

import poet
from _data import context, save
from poet import _C
from poet._enums import Solver
from poet._solve import solve_on

# Bytes a second and seconds: of a consumer's NVMe drive with its file system.
STORE = {
    "read_rate": 1.5e9,
    "write_rate": 1.0e9,
    "read_latency_seconds": 1e-4,
    "write_latency_seconds": 1e-4,
}
MODES = ("recompute", "paging", "blocking")  # blocking: paging without overlap
METHODS = ("poet", "poet_paper", "moccasin")
OTHERS = 0
# Up to so many ops a bound over every schedule is asked for.
SCOPE_ALL_UP_TO = 500


@dataclass(frozen=True)
class Row:
    """One line of the issue's table.

    Attributes:
        name: of the traced step.
        slacks: budgets, each S + slack (plain peak - S).
        seconds: within which the gaps of bounds.toml are asked for, the process and the replay of
            its plan included: the search has a little less (`time_limit`).
        size: about how many ops it has, the word by which bounds.toml asks for it; OTHERS for
            those on which no constant of the search was chosen.
    """

    name: str
    slacks: tuple[float, ...]
    seconds: float
    size: int


ROWS = (
    Row("resnet18", (0.5, 0.35, 0.2), 5, 500),
    Row("gpt2", (0.5, 0.3), 15, 500),
    Row("bert", (0.5, 0.3), 15, 500),
    Row("resnet18+adamw", (0.5, 0.35, 0.2), 5, 500),
    Row("gpt2+adamw", (0.5, 0.3), 15, 500),
    Row("bert+adamw", (0.5, 0.3), 15, 500),
    Row("unet3d", (0.5, 0.3), 30, 1500),
    Row("vit", (0.5, 0.3), 30, 1500),
    Row("t5", (0.5, 0.3), 30, 1500),
    Row("lstm", (0.5, 0.3), 30, 1500),
    Row("densenet121", (0.5, 0.3), 60, 1500),
    Row("bert24", (0.5, 0.3), 60, 1500),
    Row("gpt2_48", (0.5, 0.3), 600, 10000),
    Row("gpt2_micro8", (0.5, 0.3), 600, 10000),
    Row("coop_resnet50", (0.5, 0.3), 30, OTHERS),
    Row("coop_inception_v3", (0.5, 0.3), 30, OTHERS),
    Row("coop_spos", (0.5, 0.3), 30, OTHERS),
    Row("coop_bilstm", (0.5, 0.3), 30, OTHERS),
    Row("coop_swin", (0.5, 0.3), 30, OTHERS),
)


def time_limit(seconds: float) -> float:
    """Of a search that is to have ended, plan replayed and all, within so many seconds."""
    return seconds - max(0.1, 0.01 * seconds)


def device(mode: str) -> _C.DeviceProfile:
    """The host, with the stated store where the mode pages."""
    host = _C.DeviceProfile.by_name("host")
    if mode == "recompute":
        return host
    return host.with_store(**STORE, dma_channels=0 if mode == "blocking" else 1, source="stated")


def processor_seconds() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def solve_step(
    step: TracedStep,
    slack: float,
    mode: str,
    seconds: float,
    *,
    solver: Solver,
    deterministic: bool,
    method: str = "poet",
) -> _C.Schedule:
    """One process of the solver, on one thread."""
    return solve_on(
        step.graph,
        device(mode),
        ram_budget_bytes=step.budget(slack),
        runtime_budget_seconds=None,
        minimize="energy",
        recompute=True,
        paging=mode != "recompute",
        away_between_steps=False,
        time_limit_s=seconds,
        solver=solver,
        deterministic=deterministic,
        method=method,
    )


def plain_joules(step: TracedStep, mode: str) -> float:
    """What the step takes as it was recorded."""
    profile = device(mode)
    watts = profile.compute_watts + profile.idle_watts + profile.memory_watts
    return float(watts * step.graph.plain_seconds)


def measure(
    step: TracedStep,
    slack: float,
    mode: str,
    seconds: float,
    *,
    solver: Solver = Solver.CBC,
    deterministic: bool = False,
    method: str = "poet",
) -> dict[str, Any]:
    """Solves once and says what came of it."""
    used = processor_seconds()
    begin = time.perf_counter()
    schedule = solve_step(
        step,
        slack,
        mode,
        time_limit(seconds),
        solver=solver,
        deterministic=deterministic,
        method=method,
    )
    took = time.perf_counter() - begin
    used = processor_seconds() - used
    record: dict[str, Any] = {
        "graph": step.name,
        "ops": len(step.graph.ops),
        "slack": slack,
        "mode": mode,
        "method": method,
        "status": schedule.status,
        "seconds": took,
        "processor_seconds": used,
        "limit_seconds": seconds,
        "first_plan_seconds": first_plan_seconds(schedule, took),
        "solver": str(solver),
        "deterministic": deterministic,
        "budget_bytes": step.budget(slack),
        "least_ram_budget": schedule.least_ram_budget,
    }
    if schedule.has_plan:
        plain = plain_joules(step, mode)
        value = schedule.energy_joules
        bound = schedule.bound if schedule.bound is not None else 0.0
        record |= {
            "value": value,
            "plain": plain,
            "extra_percent": 100 * (value / plain - 1),
            "bound": bound,
            "bound_scope": schedule.bound_scope,
            "bound_all": schedule.bound_all,
            "bound_extra_percent": 100 * (bound / plain - 1),
            "gap_percent": 100 * (value - bound) / value,
            "gap_extra_percent": 100 * (value - bound) / max(value - plain, 1e-12),
            "peak_bytes": schedule.peak_bytes,
            "simulated_seconds": schedule.makespan_seconds,
            "believed_seconds": schedule.believed_seconds,
            "pessimism_percent": 100 * (schedule.believed_seconds / schedule.makespan_seconds - 1),
        }
    return record


def first_plan_seconds(schedule: _C.Schedule, took: float) -> float | None:
    """When the search had a plan, and what the process takes beside it, of `took` in all."""
    beside = max(0.0, took - schedule.solve_seconds)
    found = (point.seconds for point in schedule.history if point.value is not None)
    first = next(found, None)
    return None if first is None else first + beside


def line(record: dict[str, Any]) -> str:
    """One row for a terminal."""
    head = (
        f"{record['graph']:15} {record['slack']:4g} {record['mode']:9} "
        f"{record['method']:10} {record['status']:10}"
    )
    if "value" not in record:
        return f"{head} least {record['least_ram_budget']}  {record['seconds']:6.1f} s"
    over_all = 100 * ((record["bound_all"] or 0) / record["plain"] - 1)
    return (
        f"{head} {record['extra_percent']:+7.2f} % (bound {record['bound_extra_percent']:+7.2f}) "
        f"gap {record['gap_percent']:6.2f} gap_extra {record['gap_extra_percent']:6.1f} % "
        f"{record['bound_scope']:10} (all {over_all:+.2f}) "
        f"{record['seconds']:6.1f} s "
        f"({record['processor_seconds']:.1f} of a processor) "
        f"believed {record['pessimism_percent']:+.3f} %"
    )


def gap_all(record: dict[str, Any]) -> float:
    """Gap in percent to the bound over every schedule."""
    if "value" not in record or record["bound_all"] is None:
        return math.inf
    value, bound = float(record["value"]), float(record["bound_all"])
    return 100 * (value - bound) / value


def gap_extra_all(record: dict[str, Any]) -> float:
    """Likewise, in percent of what the plan costs beyond plain training."""
    if "value" not in record or record["bound_all"] is None:
        return math.inf
    value, bound = float(record["value"]), float(record["bound_all"])
    return 100 * (value - bound) / max(value - float(record["plain"]), 1e-12)


def values(records: list[dict[str, Any]]) -> dict[str, float]:
    """What bounds.toml limits: the worst of each size and mode over its steps and budgets.

    Budgets that are proven to be too small have no gap.
    """
    sizes = {row.name: row.size for row in ROWS}
    worst: dict[str, float] = {}
    for record in records:
        if record.get("method", "poet") != "poet":
            continue
        size = sizes[record["graph"]]
        name = "planner_other_steps" if size == OTHERS else f"planner_{size}_ops"
        figures = {}
        if record["status"] != poet.Status.INFEASIBLE:
            figures[f"{name}_gap"] = record.get("gap_percent", math.inf)
            figures[f"{name}_{record['mode']}_gap_extra"] = record.get(
                "gap_extra_percent", math.inf
            )
            if size == SCOPE_ALL_UP_TO and record["mode"] != "blocking":
                figures[f"{name}_gap_all"] = gap_all(record)
                figures[f"{name}_{record['mode']}_gap_extra_all"] = gap_extra_all(record)
        if "seconds" in record and not record["deterministic"]:
            figures[f"{name}_seconds_share"] = record["seconds"] / record["limit_seconds"]
            if record["status"] != poet.Status.INFEASIBLE:
                figures[f"{name}_first_plan_seconds"] = record["first_plan_seconds"] or math.inf
        if "pessimism_percent" in record:
            figures["planner_optimism"] = 0.0 - record["pessimism_percent"]
        for key, figure in figures.items():
            worst[key] = max(worst.get(key, -math.inf), figure)
    return worst


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The options of a command line; `rows` are those of ROWS that it asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=[row.name for row in ROWS], metavar="NAME")
    parser.add_argument("--size", type=int, nargs="+", choices=sorted({row.size for row in ROWS}))
    parser.add_argument("--slacks", type=float, nargs="+")
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--seconds", type=float, help="in place of each row's own")
    parser.add_argument("--solver", choices=[str(each) for each in Solver], default="cbc")
    parser.add_argument("--method", nargs="+", choices=METHODS, default=["poet"])
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--save", help="name under benchmarks/data", metavar="NAME")
    options = parser.parse_args(words)
    options.rows = [
        row
        for row in ROWS
        if row.name in (options.only or [row.name]) and row.size in (options.size or [row.size])
    ]
    return options


def main() -> None:
    """Measures what is asked for and, with --save, keeps it under data/."""
    options = parse()
    records = []
    for row in options.rows:
        step = traced(row.name, options.folder)
        for slack in options.slacks or row.slacks:
            for mode in options.mode:
                for method in options.method:
                    record = measure(
                        step,
                        slack,
                        mode,
                        options.seconds or row.seconds,
                        solver=Solver(options.solver),
                        deterministic=options.deterministic,
                        method=method,
                    )
                    records.append(record)
                    print(line(record), file=sys.stderr, flush=True)
                    if options.save:
                        save(options.save, {**context(), "store": STORE, "rows": records})
    print(json.dumps({"values": values(records)}))


if __name__ == "__main__":
    main()
