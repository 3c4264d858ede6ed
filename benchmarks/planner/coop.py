"""Coop's claims (Zhang et al., NeurIPS 2023) on its eight kinds of network.

    python benchmarks/planner/coop.py [--only coop_unet] [--save coop]

Each step, forward and backward, is recorded once. For the policies dtr, dtr_eq and coop, and for
poet beside them: the least budget that they do with, as slack; what replays cost at slack 0.5 and
0.3, in percent of the step; how long the search takes; and what Coop says of the fragmentation of
its memory. Recompute alone, by the simulator. Prints a table and, as JSON in the last line, on how
many networks Coop does with no more memory than DTR.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from _coop_networks import COOP_NETWORKS
from graphs import TracedStep, traced

import poet
from _data import context, save

METHODS = ("dtr", "dtr_eq", "coop", "poet")
SLACKS = (0.5, 0.3)
SECONDS = 20.0


def measure(step: TracedStep, method: str, seconds: float) -> dict[str, Any]:
    """One method on one step."""
    asked: dict[str, Any] = {"graph": step.graph, "method": method, "paging": False}
    asked |= {"time_limit_s": seconds, "cache_dir": None}
    peak = step.graph.plain_peak_bytes()
    none = poet.solve(ram_budget=max(1, step.fixed_bytes // 2), **asked)
    least = none.least_ram_budget
    row: dict[str, Any] = {
        "network": step.name,
        "ops": len(step.graph.ops),
        "method": method,
        "plain_peak_bytes": peak,
        "fixed_bytes": step.fixed_bytes,
        "least_bytes": least,
        "least_slack": None if least is None else slack_of(least, step),
    }
    for slack in SLACKS:
        found = poet.solve(ram_budget=step.budget(slack), **asked)
        plain = step.graph.plain_seconds
        row[f"at_{slack:g}"] = {
            "status": str(found.status),
            "extra_percent": 100 * (found.makespan_seconds / plain - 1) if found.has_plan else None,
            "search_seconds": found.solve_seconds,
            "said": found.message if found.has_plan else "",
        }
    return row


def slack_of(budget: int, step: TracedStep) -> float:
    """The slack that a budget stands for."""
    return (budget - step.fixed_bytes) / (step.graph.plain_peak_bytes() - step.fixed_bytes)


def line(row: dict[str, Any]) -> str:
    """For a terminal."""
    least = "-" if row["least_slack"] is None else f"{row['least_slack']:.3f}"
    text = f"{row['network']:18} {row['ops']:5} ops {row['method']:7} least slack {least:>6}"
    for slack in SLACKS:
        at = row[f"at_{slack:g}"]
        extra = at["status"] if at["extra_percent"] is None else f"{at['extra_percent']:+.1f} %"
        text += f"  {slack:g}: {extra:>10} in {at['search_seconds']:6.2f} s"
    return text + (f"  ({row['at_0.3']['said']})" if row["at_0.3"]["said"] else "")


def wins(rows: list[dict[str, Any]]) -> int:
    """Networks on which Coop does with no more memory than DTR."""
    least = {(row["network"], row["method"]): row["least_bytes"] for row in rows}
    networks = {row["network"] for row in rows}
    pairs = [(least.get((name, "coop")), least.get((name, "dtr"))) for name in networks]
    return sum(coop is not None and dtr is not None and coop <= dtr for coop, dtr in pairs)


def main() -> None:
    """Measures and saves."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(COOP_NETWORKS), choices=COOP_NETWORKS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--save", metavar="NAME", help="name under benchmarks/data")
    options = parser.parse_args()
    rows = []
    for name in options.only:
        step = traced(name)
        for method in options.methods:
            rows.append(measure(step, method, options.seconds))
            print(line(rows[-1]), flush=True)
    if options.save:
        save(options.save, context() | {"seconds": options.seconds, "rows": rows})
    print(json.dumps({"values": {"coop_networks_at_or_below_dtr": wins(rows)}}))


if __name__ == "__main__":
    main()
