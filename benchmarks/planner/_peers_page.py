"""Time to solution on the published instances, as a table, and docs/peers.md around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]

METHODS = ("poet", "moccasin", "checkmate")
_PROVEN = 1e-4  # percentage points between a plan and the bound of its class
_NOT_COUNTED = "not counted"
_LEAST_SHARE = 0.5  # of its seconds a search must have had a processor to count
_ALL_OF_LIMIT = 0.9

HEAD = """# poet, Moccasin and Checkmate on published instances

Written by `benchmarks/planner/peers.py --page docs/peers.md` from
`benchmarks/data/planner_peers.json`, which has every figure, the machine, its load and the day.
Every solve has one thread and the same limit;
both peers are those of `csrc/methods`, over the same problem as poet. Nothing is paged, there is no
deadline, and budgets are shares of the peak of plain execution.

## Time to solution
"""
AFTER_TABLE = """
The percentage is what a plan computes beyond plain execution. *first*, *best*: seconds from the
start of the search to its first plan and to the best it has; *end*: seconds of the whole process,
and *processor*, of those, how many it had a processor, where that was kept.
poet tells each plan when it finds it. Moccasin and Checkmate hand theirs over when they end, so one
time stands for both; CP-SAT may have had the plan before. *proven*: no plan of the method's own
class is cheaper (poet's: of its candidates); *optimal*: no plan at all is. Checkmate's own program
has half of its time here, then its relaxation is rounded. *not counted*: not run, or its limit went
by while other work had the processor for more than half of it.
"""

LONG = """
## Ten minutes for the peers, one for poet

The best of what the rows of `planner_peers.json` have: poet's plan after 60 s at most, beside
Moccasin and the dense program after 600 s at most. What was *not run* has a proof of poet's beside
it, of its plan or that there is none.
"""
_LONG_S = 600.0
_LONG = {"poet": 60.0, "moccasin": _LONG_S, "poet_paper": _LONG_S}


def long_runs(rows: Sequence[Row]) -> str:
    """A Markdown table: the best row of each method within its limit, by instance and share."""
    best: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        method = row["method"]
        if row["instance"].endswith("-inference") or row["limit_s"] > _LONG.get(method, 0.0):
            continue
        if method != "poet" and row["limit_s"] < _LONG_S:
            continue
        cell = best.setdefault((row["instance"], row["share_percent"]), {})
        cell[method] = min(cell.get(method, row), row, key=_worth)
    lines = [
        "| instance | nodes | budget | " + " | ".join(_LONG) + " |",
        "|" + "---|" * (3 + len(_LONG)),
    ]
    for (instance, share), cell in best.items():
        if len(cell) == 1 and "poet" in cell:
            continue
        nodes = next(iter(cell.values()))["nodes"]
        told = [_long_cell(cell.get(method)) for method in _LONG]
        lines.append(f"| {instance} | {nodes:,} | {share} % | {' | '.join(told)} |")
    return "\n".join(lines)


def _worth(row: Row) -> tuple[float, bool]:
    return row.get("extra_percent", float("inf")), row["status"] not in ("optimal", "infeasible")


def _long_cell(row: Row | None) -> str:
    if row is None:
        return "not run"
    word = row["status"].replace("_", " ")
    if "extra_percent" not in row:
        return f"{word} ({row['seconds']:.0f} s)"
    if row["status"] != "optimal":
        word = "proven" if _proven(row) else ""
    return f"+{row['extra_percent']:.2f} % ({word + ', ' if word else ''}{row['seconds']:.0f} s)"


def solved(rows: Iterable[Row], limit: float) -> dict[tuple[str, int, str], Row]:
    """The rows that have times to solution, by instance, share and method."""
    return {
        (row["instance"], row["share_percent"], row["method"]): row
        for row in rows
        if "build" in row and row["limit_s"] == limit and not starved(row)
    }


def starved(row: Row) -> bool:
    """Used up its limit while others had the processor: says nothing of the method."""
    used = row.get("processor_s", 0.0)
    late = row["seconds"] > _ALL_OF_LIMIT * row["limit_s"]
    return bool(late and used < _LEAST_SHARE * row["seconds"])


def time_to_solution(rows: Sequence[Row], limit: float) -> str:
    """A Markdown table: a line for each instance and share, a column for each method."""
    cells = solved(rows, limit)
    lines = [
        f"| instance | nodes | budget | {' | '.join(METHODS)} |",
        "|" + "---|" * (3 + len(METHODS)),
    ]
    nodes = {(row["instance"], row["share_percent"]): row["nodes"] for row in cells.values()}
    for (instance, share), count in nodes.items():
        told = [_cell(cells.get((instance, share, method))) for method in METHODS]
        lines.append(f"| {instance} | {count:,} | {share} % | {' | '.join(told)} |")
    return "\n".join(lines)


def _why_none(row: Row) -> str:
    """The status of a search that ended for another reason than its time says little."""
    message = row.get("message") or ""
    if "not even its relaxation is built" in message:
        return "too large to build"
    if "no rounding of the linear relaxation" in message:
        return "no rounding fits"
    return str(row["status"].replace("_", " "))


def _cell(row: Row | None) -> str:
    if row is None:
        return _NOT_COUNTED
    end = f"{row['seconds']:.1f} s"
    if "processor_s" in row:
        end += f", processor {row['processor_s']:.1f} s"
    if "extra_percent" not in row:
        return f"{_why_none(row)} (end {end})"
    proven = "proven, " if _proven(row) else ""
    word = "optimal, " if row["status"] == "optimal" else proven
    first, best = row["first_plan_s"], row["best_plan_s"]
    times = f"first {first:.1f} s, best {best:.1f} s"
    if row["plans_told"] == "at the end":
        times = f"{best:.1f} s"
    return f"+{row['extra_percent']:.2f} % ({word}{times}, end {end})"


def _proven(row: Row) -> bool:
    return bool(row["extra_percent"] - row["bound_extra_percent"] < _PROVEN)


def page(rows: Sequence[Row], limit: float) -> str:
    """docs/peers.md."""
    lines = ["| published | here | difference |", "|---|---|---|"]
    lines += [f"| {' | '.join(claim)} |" for claim in _claims(rows, solved(rows, limit))]
    table = time_to_solution(rows, limit)
    return (
        f"{HEAD}\n{limit:g} s each.\n\n{table}\n{AFTER_TABLE}{LONG}\n{long_runs(rows)}\n\n"
        "## What was published\n\n" + "\n".join(lines) + "\n"
    )


def _claims(
    rows: Sequence[Row], cells: dict[tuple[str, int, str], Row]
) -> list[tuple[str, str, str]]:
    return [_speed(cells), _setting(cells), _sizes(rows, cells), _class(rows), _inference(cells)]


def _speed(cells: dict[tuple[str, int, str], Row]) -> tuple[str, str, str]:
    told, poet = [], []
    for (instance, share, method), row in cells.items():
        other = cells.get((instance, share, "checkmate"))
        if method != "moccasin" or other is None or instance.endswith("-inference"):
            continue
        told.append(f"{instance} at {share} %: {_against(row, other)}")
        ours = cells.get((instance, share, "poet"))
        if ours is not None and "first_plan_s" in ours and "first_plan_s" in row:
            reached = "and no dearer" if _no_dearer(ours, row) else "but dearer"
            poet.append(f"{row['best_plan_s'] / ours['best_plan_s']:.1f} ({reached})")
    return (
        "Moccasin is about ten times faster than Checkmate's formulation (abstract)",
        "; ".join(told),
        "Checkmate's are rounded, dearer plans, so a ratio of times flatters it. Moccasin's time "
        "to poet's to its best plan: " + (", ".join(poet) or "no cell has both"),
    )


def _against(moccasin: Row, checkmate: Row) -> str:
    plans = ["extra_percent" in row for row in (moccasin, checkmate)]
    if not any(plans):
        return "neither has a plan"
    if not plans[1]:
        return f"Moccasin in {moccasin['best_plan_s']:.1f} s, Checkmate has none"
    if not plans[0]:
        return f"Moccasin has none, Checkmate in {checkmate['best_plan_s']:.1f} s"
    ratio = checkmate["best_plan_s"] / moccasin["best_plan_s"]
    return (
        f"{ratio:.1f} times as fast, at +{moccasin['extra_percent']:.2f} % in place of "
        f"+{checkmate['extra_percent']:.2f} %"
    )


def _no_dearer(one: Row, other: Row) -> bool:
    return bool(one["extra_percent"] <= other["extra_percent"] + _PROVEN)


def _setting(cells: dict[tuple[str, int, str], Row]) -> tuple[str, str, str]:
    limits = sorted({row["limit_s"] for row in cells.values()})
    machines = sorted({row["machine"] for row in cells.values()})
    loads = [row["load_1min"] for row in cells.values()]
    return (
        "16 workers, 1,800 s a solve and 3,600 s from 500 nodes on",
        f"one thread, {', '.join(f'{limit:g}' for limit in limits)} s ({'; '.join(machines)}; "
        f"load of the machine {min(loads):.0f} to {max(loads):.0f})",
        "much less work for each solve here: what has no plan in the table may well have one there",
    )


def _sizes(rows: Sequence[Row], cells: dict[tuple[str, int, str], Row]) -> tuple[str, str, str]:
    def least(method: str) -> str:
        found: dict[int, bool] = {}
        for (instance, _, name), row in cells.items():
            if name == method and instance.startswith("RL"):
                found[row["nodes"]] = found.get(row["nodes"], False) or "extra_percent" in row
        return ", ".join(f"{n:,} {'yes' if has else 'no'}" for n, has in sorted(found.items()))

    longest = [row for row in rows if row["method"] == "moccasin" and row["limit_s"] > 60]
    longest = [
        row
        for row in longest
        if row["nodes"] >= 250 and row["instance"].startswith("RL") and row["share_percent"] >= 80
    ]
    large, count = sum("extra_percent" in row for row in longest), len(longest)
    return (
        "solves random layered graphs of 100 to 1,000 nodes at 90 and 80 % of the peak",
        "a plan by nodes: " + "; ".join(f"{name} {least(name)}" for name in METHODS),
        f"in more than 60 s Moccasin has a plan in {large} of {count} of these cells of 250 and "
        "more nodes, on one thread",
    )


def _class(rows: Sequence[Row]) -> tuple[str, str, str]:
    best: dict[tuple[str, int], Row] = {}
    for row in rows:
        cell = row["instance"], row["share_percent"]
        if row["method"] == "poet" and "extra_percent" in row:
            best[cell] = min(best.get(cell, row), row, key=lambda each: each["extra_percent"])
    dearer = []
    for row in rows:
        ours = best.get((row["instance"], row["share_percent"]))
        if row["method"] != "moccasin" or "extra_percent" not in row or ours is None:
            continue
        if _proven(row) and not _no_dearer(row, ours):
            dearer.append(
                f"{row['instance']} at {row['share_percent']} %: +{row['extra_percent']:.2f} % "
                f"where poet has +{ours['extra_percent']:.2f} %"
            )
    return (
        "at most C = 2 retention intervals a value; optimality is proven within that class only",
        "proven by Moccasin and dearer than poet's plan: "
        + ("; ".join(dict.fromkeys(dearer)) or "none"),
        "a value that is computed three times is what C = 2 excludes",
    )


def _inference(cells: dict[tuple[str, int, str], Row]) -> tuple[str, str, str]:
    rows = [row for (instance, _, _), row in cells.items() if instance.endswith("-inference")]
    names = sorted({row["instance"] for row in rows})
    told = {
        method: ", ".join(
            sorted({row["status"].replace("_", " ") for row in rows if row["method"] == method})
        )
        for method in METHODS
    }
    below = sum(row["largest_op_bytes"] > row["ram_budget_bytes"] for row in rows)
    return (
        "inference graphs too",
        f"{', '.join(names)} at 90 and 80 %: " + "; ".join(f"{m} {told[m]}" for m in METHODS),
        f"in {below} of {len(rows)} of these solves a single op and what it reads need more than "
        "the budget: where every value dies after its last use the largest op is the whole peak, "
        "and recomputing saves nothing",
    )
