"""What less memory costs in time: poet beside PyTorch's checkpointing, and whole optimizer steps.

    python benchmarks/comparison.py [--architecture gpt2] [--part comparison|steps] [--paging on]

One thread.
comparison: forward and backward, plain, checkpointed at every block, and with poet at the peak that
checkpointing itself was measured to have. Peaks by the outside meter (meter.py), each form in a
process of its own; times in 31 alternating rounds, a process for each form (rounds.py).
steps: whole optimizer steps with poet at some slacks against plain ones, timed likewise.

Prints the values of the bounds last. Data: data/comparison_*.json, data/steps_*.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from _data import SLACKS, context, save
from meter import add_step_options, as_words, measure, run_script
from steps import budget_at

ROUNDS = 31
_METER_STEPS = 4  # of which the first does not count
_TRACED_CALLS = 3


def main() -> None:
    """Entry point."""
    options = parse()
    values: dict[str, float] = {}
    for part, measured in (("comparison", comparison), ("steps", whole_steps)):
        if options.part not in (None, part):
            continue
        record, found = measured(options)
        values |= found
        if not options.dry:
            save(f"{part}_{options.name}", record)
    print(json.dumps({"values": values}))


def bound_ids(options: argparse.Namespace) -> set[str]:
    """The bounds to which a run with these options gives values."""
    names: set[str] = set()
    if options.part in (None, "comparison"):
        names |= {
            "checkpoint_share",
            "checkpoint_extra",
            "extra_at_checkpoint_peak",
            "peak_to_checkpoint_peak",
        }
    if options.part in (None, "steps"):
        names |= {_step_id(slack) for slack in options.slacks}
    return {f"{options.name}_{name}" for name in names}


def _step_id(slack: float) -> str:
    return "step_extra_at_" + f"{100 * slack:g}".replace(".", "_")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of a command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=["comparison", "steps"], help="both when left out")
    add_step_options(parser, minimize="time")  # what is claimed is time
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--slacks", type=float, nargs="+", default=list(SLACKS))
    parser.add_argument("--name", help="of data files and bounds; the architecture's by default")
    parser.add_argument("--dry", action="store_true", help="leave data/ as it is")
    options = parser.parse_args(arguments)
    options.name = options.name or options.architecture
    return options


def comparison(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, float]]:
    """Forward and backward: plain, checkpointed, poet at checkpoint's own peak."""
    common = {"architecture": options.architecture, "no_optimizer": True}
    meters = {form: measure(form, steps=_METER_STEPS, **common) for form in ("plain", "checkpoint")}
    budget = meters["checkpoint"]["peak_bytes"]
    common |= _planning(options)
    meters["poet"] = measure("poet", steps=_TRACED_CALLS + 3, budget=budget, **common)
    own = meters["plain"]["parameter_bytes"]
    for form, found in meters.items():
        print(json.dumps({"form": form, "peak_above_parameters_mib": _mib(found, own)}), flush=True)
    rounds = time_rounds(["plain", "checkpoint", "poet"], budget, options, common)
    record = {
        "context": context(),
        "architecture": options.architecture,
        "paging": options.paging,
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
            f"{options.name}_checkpoint_share": extra["poet"] / extra["checkpoint"],
            f"{options.name}_checkpoint_extra": extra["checkpoint"],
            f"{options.name}_extra_at_checkpoint_peak": extra["poet"],
            f"{options.name}_peak_to_checkpoint_peak": meters["poet"]["peak_bytes"] / budget,
        }
    return record, values


def whole_steps(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, float]]:
    """Optimizer steps at each slack against plain ones."""
    common = {"architecture": options.architecture, "optimizer": options.optimizer}
    plain = measure("plain", steps=_METER_STEPS, **common)
    common |= _planning(options)
    rows = []
    values: dict[str, float] = {}
    for slack in options.slacks:
        budget = budget_at(slack, plain["fixed_bytes"], plain["peak_bytes"])
        rounds = time_rounds(["plain", "poet"], budget, options, common)
        rows.append({"slack": slack, "budget_bytes": budget, "rounds": rounds})
        if rounds["followed_rounds"] == options.rounds:
            values[f"{options.name}_{_step_id(slack)}"] = rounds["extra_percent"]["poet"]
    record = {
        "context": context(),
        "architecture": options.architecture,
        "optimizer": options.optimizer,
        "paging": options.paging,
        "plain": {key: plain[key] for key in ("peak_bytes", "fixed_bytes", "parameter_bytes")},
        "slacks": rows,
    }
    return record, values


def _planning(options: argparse.Namespace) -> dict[str, Any]:
    """What poet may do."""
    return {key: getattr(options, key) for key in ("time_limit", "paging", "page_dir", "minimize")}


def time_rounds(
    forms: list[str], budget: int, options: argparse.Namespace, common: dict[str, Any]
) -> dict[str, Any]:
    """Runs rounds.py in a process of its own and says what came out."""
    more = {"forms": forms, "budget": budget, "rounds": options.rounds} | common
    rounds = run_script(Path(__file__).with_name("rounds.py"), as_words(more))
    said = {key: rounds[key] for key in ("extra_percent_quartiles", "extra_processor_percent")}
    said |= {"budget_bytes": budget, "status": rounds["poet"]["status"]}
    print(json.dumps(said), flush=True)
    return rounds


def _mib(found: dict[str, Any], parameters: int) -> float | None:
    peak = found["peak_bytes"]
    return None if peak is None else round((peak - parameters) / 2**20, 2)


if __name__ == "__main__":
    main()
