"""Coop's claims (Zhang et al., NeurIPS 2023) on its eight kinds of network.

    python benchmarks/planner/coop.py [--only coop_unet] [--save coop]
    python benchmarks/planner/coop.py --write  # docs/coop.md from the data that was saved

Each step, forward and backward, is recorded once. For the policies dtr, dtr_eq, dtr_placed (DTR in
Coop's memory) and coop, and for poet beside them: the least budget that they do with, as slack;
what replays cost at slack 0.5 and 0.3, in percent of the step; how long the search takes; and
fragmentation, measured alike: what holes would add to the plan (Schedule.fragmentation()), and for
the two that have addresses the free share of their memory behind evictions. Recompute alone, by the
simulator. Prints a table and, as JSON in the last line, on how many networks Coop does with no more
memory than DTR in the same memory, and its fragmentation to DTR's, the worst.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from _coop_networks import COOP_NETWORKS
from graphs import TracedStep, traced

import poet
from _data import context, load, save

METHODS = ("dtr", "dtr_eq", "dtr_placed", "coop", "poet")
SLACKS = (0.5, 0.3)
SECONDS = 20.0
PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "coop.md"
BOUND = "coop_free_to_dtr"  # of bounds.toml
BASELINE = "dtr_placed"  # DTR in Coop's memory
Pairs = list[tuple[float, float]]  # the baseline's figure, Coop's


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
            "holes_percent": 100 * found.fragmentation(step.graph) if found.has_plan else None,
            "free_percent": free_percent(found.message) if found.has_plan else None,
            "said": found.message if found.has_plan else "",
        }
    return row


def free_percent(message: str) -> float | None:
    """The mean share of a policy's memory that was free behind its evictions, where it says so."""
    said = re.search(r"memory: ([0-9.]+) % on average", message)
    return float(said[1]) if said else None


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


def figure(row: dict[str, Any], *keys: str) -> float | None:
    """What lies there, None where anything on the way is missing."""
    found: Any = row
    for key in keys:
        found = None if found is None else found.get(key)
    return found if found is None else float(found)


def pairs(rows: list[dict[str, Any]], *keys: str) -> Pairs:
    """Of the baseline and Coop, by network, where both have the figure."""
    by = {(row["network"], row["method"]): row for row in rows}
    names = dict.fromkeys(row["network"] for row in rows)
    both = [
        tuple(figure(by.get((name, method), {}), *keys) for method in (BASELINE, "coop"))
        for name in names
    ]
    return [(theirs, ours) for theirs, ours in both if theirs is not None and ours is not None]


def wins(rows: list[dict[str, Any]]) -> int:
    """Networks on which Coop does with no more memory than DTR in the same memory."""
    return sum(ours <= theirs for theirs, ours in pairs(rows, "least_bytes"))


def free_ratio(rows: list[dict[str, Any]]) -> float:
    """Coop's free memory behind evictions to the baseline's at slack 0.5, the worst network."""
    return max((ours / theirs for theirs, ours in pairs(rows, "at_0.5", "free_percent")), default=0)


def versus(found: Pairs, digits: int, unit: str) -> str:
    """How often Coop's figure is the smaller one, and by how much, in words."""
    if not found:
        return "never both"
    less = sum(ours < theirs for theirs, ours in found)
    middle = [statistics.median(each) for each in zip(*found, strict=True)]
    return (
        f"less than DTR on {less} of the {len(found)} that both have; "
        f"medians {middle[1]:.{digits}f}{unit} and {middle[0]:.{digits}f}{unit}"
    )


def claims(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The claim as published, what is found here, and one line on the difference."""
    saved = [theirs / ours for theirs, ours in pairs(rows, "least_slack")]
    networks = len({row["network"] for row in rows})
    overhead = "; ".join(
        f"slack {slack:g}: " + versus(pairs(rows, f"at_{slack:g}", "extra_percent"), 1, " %")
        for slack in SLACKS
    )
    return [
        (
            "up to 2 times the memory saved",
            f"no more memory than DTR on {wins(rows)} of {networks}; DTR's least slack is "
            f"{min(saved, default=0):.2f} to {max(saved, default=0):.2f} times Coop's",
            "not explained: memory of gradients set aside, an area for small values and one end "
            "for all of them each helped some networks and hurt others",
        ),
        (
            "far less compute overhead",
            overhead,
            "a window takes dear values with cheap ones, and where holes fail the policy its plan "
            "is that of another budget; on BiLSTM it thrashes",
        ),
        (
            "far lower search latency",
            "slack 0.5: " + versus(pairs(rows, "at_0.5", "search_seconds"), 2, " s"),
            "whole solves, with retries and the simulator; a live policy searches once for each "
            "allocation",
        ),
        (
            "far less fragmentation",
            "free memory behind evictions, slack 0.5: "
            + versus(pairs(rows, "at_0.5", "free_percent"), 1, " %"),
            "the authors' measure, in the same memory for both",
        ),
    ]


def cell(row: dict[str, Any], slack: float) -> str:
    """What replays cost, or why there is no plan."""
    at = row.get(f"at_{slack:g}", {})
    extra = at.get("extra_percent")
    return str(at.get("status", "")).replace("_", " ") if extra is None else f"{extra:+.1f} %"


def page(record: dict[str, Any]) -> str:
    """docs/coop.md."""
    rows = record["rows"]
    lines = [
        "# What Coop claims, and what is found here",
        "",
        "Written by `benchmarks/planner/coop.py` from `benchmarks/data/coop.json`, which has every "
        f"figure behind it ({record['machine']},",
        f"beside other jobs, {record['date'][:10]}). Coop (Zhang et al., NeurIPS 2023) was "
        "measured in OneFlow on GPUs; here its eight kinds of network have sizes for a CPU,",
        "steps are recorded, costs are the simulator's, and a search may take "
        f"{record['seconds']:g} s. DTR is `dtr_placed`, in the same memory as `coop`: "
        "first",
        "the cheapest value goes, then the next, until there is a place "
        "([methods.md](methods.md)). Without addresses (`dtr`) no hole is in the way.",
        "",
        "| as published | here | the difference |",
        "|---|---|---|",
    ]
    lines += [f"| {claim} | {ours} | {why} |" for claim, ours, why in claims(rows)]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    by = {(row["network"], row["method"]): row for row in rows}
    for slack in SLACKS:
        lines += [
            "",
            f"Time that replays add at slack {slack:g}; the least slack in brackets.",
            "",
            "| network | " + " | ".join(f"`{method}`" for method in methods) + " |",
            "|---|" + "---|" * len(methods),
        ]
        for name in dict.fromkeys(row["network"] for row in rows):
            cells = [
                f"{cell(row, slack)} ({_fixed(figure(row, 'least_slack'), 2)})"
                for method in methods
                for row in [by.get((name, method), {})]
            ]
            lines.append(f"| {name.removeprefix('coop_')} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Where another method does better than `poet` in that time: " + (_lost(by) or "nowhere."),
        "",
        "Fragmentation at slack 0.5: memory that is free behind an eviction, and what holes would "
        "add to the plan in an arena without moves",
        "(`Schedule.fragmentation()`). Whole searches beside them.",
        "",
        "| network | free: DTR | Coop | holes: `dtr` | DTR | Coop | search: `dtr` | DTR | Coop |",
        "|---|" + "---|" * 8,
    ]
    columns = [
        *(("free_percent", method, 1, " %") for method in (BASELINE, "coop")),
        *(("holes_percent", method, 1, " %") for method in ("dtr", BASELINE, "coop")),
        *(("search_seconds", method, 2, " s") for method in ("dtr", BASELINE, "coop")),
    ]
    for name in dict.fromkeys(row["network"] for row in rows):
        found = [
            _fixed(figure(by.get((name, method), {}), "at_0.5", key), digits, unit)
            for key, method, digits, unit in columns
        ]
        lines.append(f"| {name.removeprefix('coop_')} | " + " | ".join(found) + " |")
    return "\n".join(lines) + "\n"


def _lost(by: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Least budgets below poet's, and plans that cost less than poet's."""
    told = []
    for (name, method), row in by.items():
        ours = by.get((name, "poet"))
        if ours is None or method == "poet":
            continue
        network = name.removeprefix("coop_")
        if figure(row, "least_bytes") is not None and row["least_bytes"] < ours["least_bytes"]:
            told.append(
                f"`{method}` has a plan for {network} within {row['least_bytes']:,} bytes, where "
                f"the least that `poet` found is {ours['least_bytes']:,}"
            )
        for slack in SLACKS:
            theirs, own = (figure(one, f"at_{slack:g}", "extra_percent") for one in (row, ours))
            if theirs is not None and (own is None or theirs < own - 1e-3):
                told.append(f"`{method}` on {network} at slack {slack:g}")
    return "; ".join(told) + "." if told else ""


def _fixed(value: float | None, digits: int, unit: str = "") -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def main() -> None:
    """Measures and saves."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(COOP_NETWORKS), choices=COOP_NETWORKS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--save", metavar="NAME", help="name under benchmarks/data")
    parser.add_argument("--write", action="store_true", help="write docs/coop.md, plan nothing")
    options = parser.parse_args()
    if options.write:
        PAGE.write_text(page(load("coop")), encoding="utf-8")
        return
    rows = []
    for name in options.only:
        step = traced(name)
        for method in options.methods:
            rows.append(measure(step, method, options.seconds))
            print(line(rows[-1]), flush=True)
    if options.save:
        save(options.save, context() | {"seconds": options.seconds, "rows": rows})
    values = {"coop_networks_at_or_below_dtr": wins(rows), BOUND: free_ratio(rows)}
    print(json.dumps({"values": values}))


if __name__ == "__main__":
    main()
