"""How plans get better, and dearer: gap over time, cost over budget, time over size.

    python benchmarks/planner/course.py [--only resnet18 gpt2] [--part search budgets] [--save]

`search`: one solve of each step of the table (table.py) at slack 0.5, recomputing alone, with its
history: value and bound whenever one of them moved. `budgets`: plans over a row of slacks, with and
without paging (table.py's stated store). All with `deterministic=True`: seconds are of work, about
those of a quiet machine, and the same on a busy one. draw.py draws both.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from graphs import FOLDER, TracedStep, traced
from table import OTHERS, ROWS, STORE, plain_joules, solve_step

from _data import context, load, measured, save
from poet._enums import Solver

DATA = "planner_course"
PARTS = ("search", "budgets")
SEARCH_SLACK = 0.5
# At most: the longest of the table may have ten minutes, and change little after the first.
MOST_SECONDS = 120.0
OVER_BUDGETS = ("resnet18", "gpt2")
SLACKS = (0.8, 0.65, 0.5, 0.35, 0.2, 0.1, 0.05)


def _solve(step: TracedStep, slack: float, mode: str, seconds: float) -> dict[str, Any]:
    """One solve; plan and bound, where there are any, in percent of plain's cost."""
    schedule = solve_step(step, slack, mode, seconds, solver=Solver.CBC, deterministic=True)
    plain = plain_joules(step, mode)

    def percent(value: float | None) -> float | None:
        return None if value is None else 100 * (value / plain - 1)

    return {
        "graph": step.name,
        "ops": len(step.graph.ops),
        "slack": slack,
        "mode": mode,
        "limit_seconds": seconds,
        "status": schedule.status,
        "extra_percent": percent(schedule.energy_joules) if schedule.has_plan else None,
        "bound_extra_percent": percent(schedule.bound),
        "history": [
            {
                "seconds": point.seconds,
                "extra_percent": percent(point.value),
                "bound_extra_percent": percent(point.bound),
            }
            for point in schedule.history
        ],
    }


def measure(part: str, names: list[str], folder: Path) -> list[dict[str, Any]]:
    """The solves of one part."""
    found = []
    rows = [row for row in ROWS if row.name in names and row.size != OTHERS]
    for row in rows:
        if part == "search":
            cells = [(SEARCH_SLACK, "recompute")]
        elif row.name in OVER_BUDGETS:
            cells = [(slack, mode) for mode in ("recompute", "paging") for slack in SLACKS]
        else:
            continue
        step = traced(row.name, folder)
        for slack, mode in cells:
            cell = _solve(step, slack, mode, min(row.seconds, MOST_SECONDS))
            if part == "budgets":
                del cell["history"]
            found.append(cell)
            print(
                f"{part:8} {row.name:15} {slack:5g} {mode:9} {cell['status']:10} "
                f"{cell['extra_percent']} (bound {cell['bound_extra_percent']})",
                file=sys.stderr,
                flush=True,
            )
    return found


def main() -> None:
    """Measures what is asked for and, with --save, keeps it under data/."""
    names = [row.name for row in ROWS if row.size != OTHERS and "+" not in row.name]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--save", action="store_true", help=f"put them into data/{DATA}.json")
    options = parser.parse_args()
    kept: dict[str, Any] = load(DATA) if measured(DATA) else {}
    for part in options.part:
        found = measure(part, options.only, options.folder)
        others = [cell for cell in kept.get(part, []) if cell["graph"] not in options.only]
        kept[part] = [*others, *found]
        if options.save:
            save(
                DATA, {**context(), "store": STORE, **{each: kept.get(each, []) for each in PARTS}}
            )


if __name__ == "__main__":
    main()
