"""Does every form of an optimizer train to the same bits, and what is the least that it needs?

    python benchmarks/optimizers.py [--architecture gpt2] [--forms adamw-foreach adafactor]

A foreach form holds the temporaries of all parameters at once, and a fused form touches all of them
in one operator: neither can give them back meanwhile. So each imposes a floor, the least budget for
which there is any schedule; and halfway between the floor and plain training's peak, six planned
steps must give what plain training gives, bit for bit, inside the budget.

Prints a JSON line for each form, and the values of the bounds last. Data: data/optimizers.json.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from _data import context, save
from exactness import PLANNED_STEPS, TRACED_STEPS, check
from meter import add_step_options, measure

FORMS = ("adamw-foreach", "adamw-fused", "sgd", "adafactor")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_step_options(parser)
    parser.add_argument("--forms", nargs="+", default=list(FORMS))
    parser.add_argument("--name", default="optimizers", help="of data file and bounds")
    parser.add_argument("--dry", action="store_true", help="leave data/ as it is")
    options = parser.parse_args()
    rows = []
    for form in options.forms:
        rows.append(row_of(form, options))
        print(json.dumps(rows[-1]), flush=True)
    record = {"context": context(), "architecture": options.architecture, "forms": rows}
    if not options.dry:
        save(options.name, record)
    print(json.dumps({"values": bound_values(rows, options.name)}))


def row_of(form: str, options: argparse.Namespace) -> dict[str, Any]:
    """One form's floor, and its row at the budget halfway."""
    step = {"architecture": options.architecture, "optimizer": form}
    planning = {key: getattr(options, key) for key in ("time_limit", "paging", "page_dir")}
    common = step | {
        "steps": TRACED_STEPS + PLANNED_STEPS,
        "snapshot": TRACED_STEPS,
        "digests": True,
        "curve": True,
    }
    plain = measure("plain", **common)
    # No schedule fits into a byte; the answer names the least that one does fit into.
    none = measure("poet", steps=TRACED_STEPS, budget=1, **step, **planning)["poet"]
    floor = none["least_ram_budget"] or plain["fixed_bytes"]
    row = check((floor + plain["peak_bytes"]) // 2, plain, common | planning)
    row.pop("curve", None)
    sizes = {"plain_peak_bytes": plain["peak_bytes"], "fixed_bytes": plain["fixed_bytes"]}
    return {"form": form, "floor_bytes": floor} | sizes | row


def bound_values(rows: list[dict[str, Any]], name: str) -> dict[str, float]:
    """The worst of the rows; none where a form had no plan in force."""
    if any(row["followed_steps"] != PLANNED_STEPS for row in rows):
        return {}
    return {
        f"{name}_differences": sum(row["differences"] for row in rows),
        f"{name}_peak_to_budget": max(row["peak_to_budget"] for row in rows),
        f"{name}_prediction_error": max(row["prediction_error_percent"] for row in rows),
    } | {f"{name}_{row['form'].replace('-', '_')}_floor": row["floor_bytes"] for row in rows}


if __name__ == "__main__":
    main()
