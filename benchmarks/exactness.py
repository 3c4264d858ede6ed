"""Does a planned step compute the same bits, inside its budget, with the peak that was predicted?

    python benchmarks/exactness.py [--architecture gpt2] [--paging on] [--slacks 0.5 0.3]

One thread. One process trains plainly; then, for each budget, another trains with poet: the traced
calls first, then six that follow the plan. After the traced calls and at the end every parameter,
gradient, buffer, optimizer state, loss and generator state must be equal to plain training's, bit
for bit. Peaks are the outside meter's (meter.py). A budget is a slack, or a share of S (--shares).
Where it lies below the least that any schedule needs, that least is checked in its place.

Prints a JSON line for each budget, and the values of the bounds last. Data: data/exactness*.json.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from _data import SLACKS, context, save
from _state import differences
from meter import add_step_options, measure
from steps import budget_at

# The first call makes the optimizer's state, the next two are alike, and the plan holds from the
# fourth on.
TRACED_STEPS = 3
PLANNED_STEPS = 6
DRAWN_SLACK = 0.35


def main() -> None:
    """Entry point."""
    options = parse()
    step = {"architecture": options.architecture, "optimizer": options.optimizer}
    common = step | {
        "steps": TRACED_STEPS + PLANNED_STEPS,
        # Before the plan is there: reading the state would bring back what is away between steps.
        "snapshot": TRACED_STEPS - 1,
        "digests": True,
        "curve": True,
    }
    plain = measure("plain", **common)
    rows = []
    for paging in ("off", "on") if options.paging == "both" else (options.paging,):
        more = {"time_limit": options.time_limit, "paging": paging, "page_dir": options.page_dir}
        for kind, budget in budgets(options, plain):
            rows.append(kind | {"paging": paging} | check(budget, plain, common | more))
            print(json.dumps({k: v for k, v in rows[-1].items() if k != "curve"}), flush=True)
    drawn = {row["slack"]: row.pop("curve", []) for row in rows}
    record = {
        "context": context(),
        **step,
        "plain": {key: plain[key] for key in ("peak_bytes", "fixed_bytes", "parameter_bytes")},
        "budgets": rows,
    }
    if DRAWN_SLACK in drawn:
        checkpoint = measure("checkpoint", steps=TRACED_STEPS, curve=True, **step)["curve"]
        curves = {"plain": plain["curve"], "checkpoint": checkpoint, "poet": drawn[DRAWN_SLACK]}
        record["curves"] = curves
    if not options.dry:
        save(f"exactness_{options.name}", record)
    print(json.dumps({"values": bound_values(rows, options.name)}))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of a command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_step_options(parser, ("off", "on", "both"))
    parser.add_argument("--slacks", type=float, nargs="*", default=list(SLACKS))
    parser.add_argument("--shares", type=float, nargs="*", default=[], help="of S, as budgets")
    parser.add_argument("--name", help="of data file and bounds; the architecture's by default")
    parser.add_argument("--dry", action="store_true", help="leave data/ as it is")
    options = parser.parse_args(arguments)
    options.name = options.name or options.architecture
    return options


def budgets(
    options: argparse.Namespace, plain: dict[str, Any]
) -> list[tuple[dict[str, float | None], int]]:
    """The budgets to check, in bytes, each with what it was made from."""
    fixed, peak = plain["fixed_bytes"], plain["peak_bytes"]
    slacks = [(slack, None, budget_at(slack, fixed, peak)) for slack in options.slacks]
    shares = [(None, share, round(share * fixed)) for share in options.shares]
    return [
        ({"slack": slack, "share": share}, budget) for slack, share, budget in [*slacks, *shares]
    ]


def check(budget: int, plain: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """One budget's row: plan, peak and differences, at the budget or else at the least one."""
    ours = measure("poet", budget=budget, **common)
    row: dict[str, Any] = {"budget_bytes": budget, "at_least": False}
    least = ours["poet"]["least_ram_budget"]
    if ours["poet"]["status"] == "infeasible" and least is not None:
        row |= {"at_least": True, "infeasible_solve_seconds": ours["poet"]["solve_seconds"]}
        budget = least
        ours = measure("poet", budget=budget, **common)
    predicted, measured = ours["poet"]["predicted_peak_bytes"], ours["peak_bytes"]
    row |= ours["poet"] | {"tested_budget_bytes": budget, "measured_peak_bytes": measured}
    different = {
        moment: differences(ours["snapshots"][moment], plain["snapshots"][moment])
        for moment in plain["snapshots"]
    }
    row["compared"] = sum(len(names) for names in plain["snapshots"].values())
    row["differences"] = sum(len(names) for names in different.values())
    row["first_differences"] = [name for names in different.values() for name in names][:5]
    if predicted is not None and measured is not None:
        row["prediction_error_percent"] = 100 * abs(predicted / measured - 1)
        row["peak_to_budget"] = measured / budget
        row["curve"] = ours["curve"]
    return row


def bound_values(rows: list[dict[str, Any]], name: str) -> dict[str, float]:
    """The worst of the rows; a row without a plan in force leaves its bounds without a value."""
    values: dict[str, float] = {}
    if all(row["followed_steps"] == PLANNED_STEPS for row in rows):
        values = {
            # Equal bits prove nothing where nothing was planned: so here and not above.
            "differences": sum(row["differences"] for row in rows),
            "prediction_error": max(row["prediction_error_percent"] for row in rows),
            "peak_to_budget": max(row["peak_to_budget"] for row in rows),
            "unplanned_recomputes": sum(
                row["unplanned_recomputes"] + row["unplanned_page_ins"] for row in rows
            ),
            "budgets_missed_with_paging": sum(
                row["at_least"] for row in rows if row["paging"] == "on"
            ),
        }
        for row in rows:
            if row["slack"] is not None and row["compact_bytes"] is not None:
                values[f"compact_bytes_at_{100 * row['slack']:.0f}"] = row["compact_bytes"]
    if all(row["solve_seconds"] is not None for row in rows):
        values["planning_seconds"] = max(
            max(row["solve_seconds"], row.get("infeasible_solve_seconds", 0)) for row in rows
        )
    return {f"{name}_{key}": value for key, value in values.items()}


if __name__ == "__main__":
    main()
