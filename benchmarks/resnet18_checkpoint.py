"""What less memory costs in time: poet beside PyTorch's checkpointing, and whole AdamW steps.

    python benchmarks/resnet18_checkpoint.py [--part comparison|steps]

ResNet-18, one thread, batch 32.
comparison: forward and backward, plain, checkpointed at every residual block, and with poet at the
peak that checkpointing itself was measured to have. Peaks by the outside meter (meter.py), each
form in a process of its own; times in 15 alternating rounds in one process (rounds.py).
steps: whole AdamW steps with poet at slack 0.5, 0.35 and 0.3 against plain ones, timed likewise.

Prints the values of the bounds last. Data: data/comparison.json, data/steps.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from _data import SLACKS, context, save
from meter import as_words, measure, run_script
from steps import budget_at

ROUNDS = 15
_METER_STEPS = 4  # of which the first does not count
_TRACED_CALLS = 3

BOUNDS = (
    "resnet18_checkpoint_share",
    "resnet18_extra_at_checkpoint_peak",
    "resnet18_peak_to_checkpoint_peak",
    "resnet18_step_extra_at_50",
    "resnet18_step_extra_at_35",
    "resnet18_step_extra_at_30",
)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=["comparison", "steps"], help="both when left out")
    parser.add_argument("--architecture", default="resnet18")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--slacks", type=float, nargs="+", default=list(SLACKS))
    parser.add_argument("--time-limit", type=float, default=60, help="seconds for the planner")
    parser.add_argument("--dry", action="store_true", help="leave data/ as it is")
    options = parser.parse_args()
    values: dict[str, float] = {}
    for part, measured in (("comparison", comparison), ("steps", whole_steps)):
        if options.part not in (None, part):
            continue
        record, found = measured(options)
        values |= found
        if not options.dry:
            save(part, record)
    print(json.dumps({"values": values}))


def comparison(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, float]]:
    """Forward and backward: plain, checkpointed, poet at checkpoint's own peak."""
    common = {
        "architecture": options.architecture,
        "no_optimizer": True,
        "time_limit": options.time_limit,
    }
    meters = {form: measure(form, steps=_METER_STEPS, **common) for form in ("plain", "checkpoint")}
    budget = meters["checkpoint"]["peak_bytes"]
    meters["poet"] = measure("poet", steps=_TRACED_CALLS + 3, budget=budget, **common)
    own = meters["plain"]["parameter_bytes"]
    for form, found in meters.items():
        print(json.dumps({"form": form, "peak_above_parameters_mib": _mib(found, own)}), flush=True)
    rounds = time_rounds(["plain", "checkpoint", "poet"], budget, options, common)
    record = {
        "context": context(),
        "architecture": options.architecture,
        "parameter_bytes": own,
        "checkpoint_peak_bytes": budget,
        "peak_bytes": {form: found["peak_bytes"] for form, found in meters.items()},
        "plan": meters["poet"]["poet"],
        "rounds": rounds,
    }
    values: dict[str, float] = {}
    if rounds["followed_rounds"] == options.rounds and meters["poet"]["peak_bytes"] is not None:
        extra = rounds["extra_percent"]
        values = {
            "resnet18_checkpoint_share": extra["poet"] / extra["checkpoint"],
            "resnet18_extra_at_checkpoint_peak": extra["poet"],
            "resnet18_peak_to_checkpoint_peak": meters["poet"]["peak_bytes"] / budget,
        }
    return record, values


def whole_steps(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, float]]:
    """AdamW steps at each slack against plain ones."""
    plain = measure("plain", steps=_METER_STEPS, architecture=options.architecture)
    rows = []
    values: dict[str, float] = {}
    for slack in options.slacks:
        budget = budget_at(slack, plain["fixed_bytes"], plain["peak_bytes"])
        common = {"architecture": options.architecture, "time_limit": options.time_limit}
        rounds = time_rounds(["plain", "poet"], budget, options, common)
        rows.append({"slack": slack, "budget_bytes": budget, "rounds": rounds})
        if rounds["followed_rounds"] == options.rounds:
            percent = f"{100 * slack:g}".replace(".", "_")
            values[f"resnet18_step_extra_at_{percent}"] = rounds["extra_percent"]["poet"]
    record = {
        "context": context(),
        "architecture": options.architecture,
        "plain": {key: plain[key] for key in ("peak_bytes", "fixed_bytes", "parameter_bytes")},
        "slacks": rows,
    }
    return record, values


def time_rounds(
    forms: list[str], budget: int, options: argparse.Namespace, common: dict[str, Any]
) -> dict[str, Any]:
    """Runs rounds.py in a process of its own and says what came out."""
    more = {"forms": forms, "budget": budget, "rounds": options.rounds} | common
    rounds = run_script(Path(__file__).with_name("rounds.py"), as_words(more))
    said = {key: rounds[key] for key in ("extra_percent", "extra_processor_percent")}
    said |= {"budget_bytes": budget, "status": rounds["poet"]["status"]}
    print(json.dumps(said), flush=True)
    return rounds


def _mib(found: dict[str, Any], parameters: int) -> float | None:
    peak = found["peak_bytes"]
    return None if peak is None else round((peak - parameters) / 2**20, 2)


if __name__ == "__main__":
    main()
