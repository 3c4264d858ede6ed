"""POET's eight layer graphs on its four devices: what the planner proves, and how soon.

    python benchmarks/planner/paper_table.py [--only linear bert] [--platforms m4] [--shares 50]

Budgets are shares of the keep-all peak, the deadline is 1.5 times the plain step. A cell passes
where the planner says `optimal` or `infeasible` within the seconds of ROWS, from outside, on one
thread. Where the original's optimum is known (paper_graphs.verified_optimum), it stands beside.
`poet-solver` is taken from $POET_SOLVER or the search path; neither poet nor torch is imported.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _solver
import paper_graphs
from paper_graphs import PLATFORMS, LayerGraph, Platform

# Seconds by model.
LIMITS = dict.fromkeys(paper_graphs.NAMES, 2.0) | {"bert": 10.0, "resnet50": 30.0}
SHARES = (90, 70, 50, 30)
RUNTIME_MULTIPLIER = 1.5
BOUND = "planner_layer_graphs_unproven"  # of bounds.toml
_TO_START = 0.05  # seconds of a process beside its search
DATA = Path(__file__).resolve().parent.parent / "data" / "planner_paper.json"


def measure(
    model: LayerGraph, platform: Platform, share: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Solves one cell."""
    folder = Path(options.folder)
    graph, profile = paper_graphs.write(folder, model, platform)
    budget = model.keep_all_peak * share // 100
    plain = model.joules(platform)
    limit = options.seconds or LIMITS[model.name]
    solve = _solver.run(
        graph,
        profile,
        folder / "schedule.json",
        {
            "ram-budget": budget,
            "runtime-budget": repr(RUNTIME_MULTIPLIER * model.seconds(platform)),
            "time-limit": limit - _TO_START,
        },
    )
    known = paper_graphs.verified_optimum(model.name, platform.name, budget, RUNTIME_MULTIPLIER)
    record: dict[str, Any] = {
        "model": model.name,
        "nodes": len(model.sizes),
        "platform": platform.name,
        "share_percent": share,
        "ram_budget_bytes": budget,
        "least_possible_bytes": model.least,
        "limit_s": limit,
        "seconds": solve.seconds,
        "status": "failed" if solve.schedule is None else solve.schedule["status"],
        "plain_joules": plain,
    }
    if known is not None:
        record["original_joules"] = known["joules"]
    if solve.schedule is None:
        return record | {"passes": False, "message": solve.failure}
    schedule = solve.schedule
    if schedule["status"] in ("optimal", "feasible"):
        joules = schedule["energy_joules"]
        record |= {
            "joules": joules,
            "extra_percent": 100 * (joules / plain - 1),
            "bound_extra_percent": 100 * (schedule.get("bound", 0) / plain - 1),
            "bound_scope": schedule["bound_scope"],
            "gap_percent": 100 * schedule["gap"],
            "makespan_seconds": schedule["makespan_seconds"],
            "peak_bytes": schedule["peak_bytes"],
        }
    else:
        record |= {"least_ram_budget": schedule.get("least_ram_budget")}
        record |= {"message": schedule["message"]}
    proven = schedule["status"] in ("optimal", "infeasible")
    return record | {"passes": proven and solve.seconds <= limit}


def line(record: dict[str, Any]) -> str:
    """One cell for a terminal."""
    head = (
        f"{record['model']:15} {record['platform']:10} {record['share_percent']:3} % "
        f"{record['status']:10} {record['seconds']:6.2f} s {'' if record['passes'] else 'FAILS':5}"
    )
    if "joules" in record:
        head += f" +{record['extra_percent']:.4f} % (bound +{record['bound_extra_percent']:.4f} %"
        head += f", {record['bound_scope']})"
    if "original_joules" in record:
        known = record["original_joules"]
        head += " original " + (
            "infeasible"
            if known is None
            else f"+{100 * (known / record['plain_joules'] - 1):.4f} %"
        )
    return f"{head} {record.get('message', '')}"


def save(records: list[dict[str, Any]]) -> None:
    """Writes data/planner_paper.json, one cell a line; numbers to six digits."""

    def short(value: Any) -> Any:
        return float(f"{value:.6g}") if isinstance(value, float) else value

    rows = [json.dumps({key: short(value) for key, value in row.items()}) for row in records]
    passed = sum(row["passes"] for row in records)
    text = f'{{"cells": {len(records)}, "passed": {passed}, "rows": [\n  '
    DATA.write_text(text + ",\n  ".join(rows) + "\n]}\n", encoding="utf-8")


def main() -> None:
    """Measures what is asked for; prints the figure as the last line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(LIMITS), choices=list(LIMITS))
    parser.add_argument("--platforms", nargs="+", default=list(PLATFORMS), choices=list(PLATFORMS))
    parser.add_argument("--shares", nargs="+", type=int, default=list(SHARES))
    parser.add_argument("--seconds", type=float, help="in place of each model's own")
    parser.add_argument("--save", action="store_true", help=f"write {DATA.name}")
    parser.add_argument("--folder", help="keep graphs, profiles and the last schedule there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        options.folder = options.folder or scratch
        records = []
        for name in options.only:
            model = paper_graphs.layer_graph(name)
            for platform in options.platforms:
                for share in options.shares:
                    records.append(measure(model, PLATFORMS[platform], share, options))
                    print(line(records[-1]), file=sys.stderr, flush=True)
    if options.save:
        save(records)
    failed = sum(not record["passes"] for record in records)
    print(json.dumps({"values": {BOUND: failed}, "cells": len(records)}))


if __name__ == "__main__":
    main()
