"""Does a planned step compute the same bits, inside its budget, with the peak that was predicted?

    python benchmarks/exactness.py

ResNet-18 with AdamW, one thread. One process trains plainly; then, for each slack, another trains
with poet at that budget: the traced calls first, then six that follow the plan. After the traced
calls and at the end every parameter, gradient, buffer, optimizer state, loss and generator state
must be equal to plain training's, bit for bit. Peaks are the outside meter's (meter.py). Where a
slack lies below the least that any schedule needs, that least is checked in its place.

Prints a JSON line for each slack, and the values of the bounds last. Data: data/exactness.json.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from _data import SLACKS, context, save
from _state import differences
from meter import measure
from steps import budget_at

# The first call makes AdamW's state, the next two are alike, and the plan holds from the fourth on.
TRACED_STEPS = 3
PLANNED_STEPS = 6
DRAWN_SLACK = 0.35


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slacks", type=float, nargs="+", default=list(SLACKS))
    parser.add_argument("--architecture", default="resnet18")
    parser.add_argument("--time-limit", type=float, default=60, help="seconds for the planner")
    parser.add_argument("--dry", action="store_true", help="leave data/ as it is")
    options = parser.parse_args()
    common = {
        "architecture": options.architecture,
        "steps": TRACED_STEPS + PLANNED_STEPS,
        "snapshot": TRACED_STEPS,
        "digests": True,
        "curve": True,
    }
    plain = measure("plain", **common)
    rows = []
    for slack in options.slacks:
        budget = budget_at(slack, plain["fixed_bytes"], plain["peak_bytes"])
        rows.append(check(slack, budget, plain, common | {"time_limit": options.time_limit}))
        print(json.dumps({k: v for k, v in rows[-1].items() if k != "curve"}), flush=True)
    curves = {
        "plain": plain["curve"],
        "checkpoint": measure(
            "checkpoint", steps=TRACED_STEPS, curve=True, architecture=options.architecture
        )["curve"],
        "poet": {row["slack"]: row.pop("curve", []) for row in rows}.get(DRAWN_SLACK, []),
    }
    record = {
        "context": context(),
        "architecture": options.architecture,
        "plain": {key: plain[key] for key in ("peak_bytes", "fixed_bytes", "parameter_bytes")},
        "slacks": rows,
        "curves": curves,
    }
    if not options.dry:
        save("exactness", record)
    print(json.dumps({"values": bound_values(rows)}))


def check(
    slack: float, budget: int, plain: dict[str, Any], common: dict[str, Any]
) -> dict[str, Any]:
    """One slack's row: plan, peak and differences, at the budget or else at the least one."""
    ours = measure("poet", budget=budget, **common)
    row: dict[str, Any] = {"slack": slack, "budget_bytes": budget, "at_least": False}
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


def bound_values(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The worst of the rows; a row without a plan in force leaves its bounds without a value."""
    values: dict[str, float] = {"resnet18_differences": sum(row["differences"] for row in rows)}
    if all(row["followed_steps"] == PLANNED_STEPS for row in rows):
        values["resnet18_prediction_error"] = max(r["prediction_error_percent"] for r in rows)
        values["resnet18_peak_to_budget"] = max(r["peak_to_budget"] for r in rows)
        values["resnet18_unplanned_recomputes"] = sum(r["unplanned_recomputes"] for r in rows)
    else:
        del values["resnet18_differences"]  # equal bits prove nothing where nothing was planned
    if all(row["solve_seconds"] is not None for row in rows):
        values["resnet18_planning_seconds"] = max(
            max(row["solve_seconds"], row.get("infeasible_solve_seconds", 0)) for row in rows
        )
    return values


if __name__ == "__main__":
    main()
