"""Every preset on every device: what is planned in ten seconds, and why where there is no plan.

    python benchmarks/presets.py --out build/presets.jsonl [--all] [--only linear] [--platforms m4]

Without --all: POET's eight models on its five platforms. Budgets are shares of the plain peak
and the device's own RAM. Every step is recorded once. A cell is a line of the file as soon as it is
done, and a second run goes on where the first one ended; cells that another build of poet measured
are measured again. A cell fails where there is neither a plan nor a proof that there is none.
Prints the number of failures as JSON in the last line.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import poet
from _data import build
from poet._budgets import format_bytes
from poet._models import ModelRequest
from poet._presets import find_preset
from poet._summary import format_gap

BOUND = "presets_without_answer"  # of bounds.toml
PAPER_PLATFORMS = ("m0", "m4", "a72", "a72nocache", "jetsontx2")
SHARES = ("90%", "70%", "50%", "30%", None)  # None: the device's RAM
SECONDS = 10.0


def measure(graph: poet.Graph, model: str, platform: str, share: str | None) -> dict[str, Any]:
    """Solves one cell."""
    schedule = poet.solve(
        graph=graph, platform=platform, ram_budget=share, time_limit_s=SECONDS, cache_dir=None
    )
    planned = schedule.has_plan
    return {
        "model": model,
        "platform": platform,
        "budget": share or "ram",
        "ram_budget": schedule.ram_budget,
        "status": str(schedule.status),
        "seconds": schedule.solve_seconds,
        "peak_bytes": schedule.peak_bytes if planned else None,
        "makespan_seconds": schedule.makespan_seconds if planned else None,
        "energy_joules": schedule.energy_joules if planned else None,
        "bound": schedule.bound,
        "gap": schedule.gap,
        "bound_scope": schedule.bound_scope,
        "least_ram_budget": schedule.least_ram_budget,
        "message": schedule.message,
        "passes": planned or schedule.status == poet.Status.INFEASIBLE,
        "build": build(),
    }


def known_cells(path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The cells of earlier runs of this build; a line that was cut off is left out."""
    cells = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if row.get("build") == build():
                cells[row["model"], row["platform"], row["budget"]] = row
    return cells


def line(row: dict[str, Any]) -> str:
    """One cell for a terminal."""
    text = f"{row['model']:20} {row['platform']:14} {row['budget']:4} {row['status']:10} "
    text += f"{row['seconds']:5.1f} s "
    if row["energy_joules"] is not None:
        return text + f"{row['energy_joules']:.5g} J, {row['makespan_seconds']:.5g} s{gap(row)}"
    return text + str(row["message"])


def gap(row: dict[str, Any]) -> str:
    """How far a plan may be from the best, and from the best of which; none of a proven one."""
    if row["gap"] is None or row["status"] == "optimal":
        return ""
    return f", gap {format_gap(row['gap'], row['bound_scope'])}"


def cell(row: dict[str, Any] | None) -> str:
    """One cell of the page."""
    if row is None:
        return "not run"
    if row["energy_joules"] is None:
        least = row["least_ram_budget"]
        needs = "" if least is None else f", least found {format_bytes(least)}"
        return f"{row['status']}{needs} ({row['seconds']:.1f} s)"
    return f"{row['status']}{gap(row)} ({row['seconds']:.1f} s)"


def page(rows: list[dict[str, Any]]) -> str:
    """The table: models and devices down, budgets across."""
    found = {(row["model"], row["platform"], row["budget"]): row for row in rows}
    budgets = [share or "ram" for share in SHARES]
    titles = [name if name != "ram" else "the device's RAM" for name in budgets]
    lines = [
        "# Presets on devices",
        "",
        "Written by `benchmarks/presets.py` from `benchmarks/data/presets.jsonl`, which has "
        "joules, seconds and bounds of each cell:",
        "forward, backward and SGD of one input, everything counted, "
        f"{SECONDS:g} s for each search. Budgets are shares of the plain peak. A gap over the "
        "candidates",
        "compares with the bound of those schedules alone that the search put into its programs; "
        "any other gap, with the bound over every schedule.",
        "",
        f"| preset | device | {' | '.join(titles)} |",
        "|---" * (2 + len(budgets)) + "|",
    ]
    for model, platform in dict.fromkeys((row["model"], row["platform"]) for row in rows):
        cells = [cell(found.get((model, platform, budget))) for budget in budgets]
        lines.append(f"| {model} | {platform} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures what is asked for and not known yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--all", action="store_true", help="every preset on every device")
    parser.add_argument("--only", nargs="+", choices=poet.preset_names())
    parser.add_argument("--platforms", nargs="+", choices=poet.device_names())
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table there")
    options = parser.parse_args()
    originals = [name for name in poet.preset_names() if find_preset(name).paper_graph]
    models = options.only or (poet.preset_names() if options.all else originals)
    platforms = options.platforms or (poet.device_names() if options.all else list(PAPER_PLATFORMS))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    cells = known_cells(options.out)
    text = "".join(json.dumps(row) + "\n" for row in cells.values())
    options.out.write_text(text, encoding="utf-8")
    with options.out.open("a", encoding="utf-8") as file:
        for model in models:
            asked = [(model, p, s) for p in platforms for s in SHARES]
            missing = [cell for cell in asked if (cell[0], cell[1], cell[2] or "ram") not in cells]
            graph = ModelRequest(model).graph(None) if missing else None
            for _, platform, share in missing:
                assert graph is not None
                row = measure(graph, model, platform, share)
                cells[model, platform, share or "ram"] = row
                print(line(row), file=sys.stderr, flush=True)
                file.write(json.dumps(row) + "\n")
                file.flush()
    asked_cells = [
        row for row in cells.values() if row["model"] in models and row["platform"] in platforms
    ]
    if options.page:
        options.page.write_text(page(asked_cells), encoding="utf-8")
    failed = sum(not row["passes"] for row in asked_cells)
    print(json.dumps({"values": {BOUND: failed}, "cells": len(asked_cells)}))


if __name__ == "__main__":
    main()
