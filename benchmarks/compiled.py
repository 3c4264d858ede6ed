"""poet beside torch.compile with activation_memory_budget, forward and backward.

    python benchmarks/compiled.py [--architecture gpt2] [--paging on]

One thread. The compiled step is measured at each share of the activations that its partitioner may
keep: peaks by the outside meter (meter.py), a process each. poet gets each of these peaks as its
budget. Then all forms are timed in one run of alternating rounds (rounds.py). A compiler makes a
step faster in other ways, too, so each side's extra time is over its own unconstrained step: the
eager one, and the compiled one with a share of 1. Where two shares come to one peak, the quicker
one counts for both: nobody would take the other.

A point is lost where poet's measured peak is above the compiled one's, or its extra time not below.
Prints the points lost last. Data: data/compiled_*.json; drawn by draw.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from _data import context, save
from meter import add_step_options, as_words, measure, run_script
from rounds import extra_quartiles

SHARES = (1.0, 0.7, 0.5, 0.3, 0.1, 0.0)
_ROUNDS = 31
_METER_STEPS = 5  # of which the first does not count; it compiles
_POET_STEPS = 6


def main() -> None:
    """Entry point."""
    options = parse()
    record = compare(options)
    if not options.dry:
        save(f"compiled_{options.architecture}", record)
    print(json.dumps({"values": values(record)}))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of a command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_step_options(parser, minimize="time")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--dry", action="store_true", help="leave data/ as it is")
    return parser.parse_args(arguments)


def bound_ids(options: argparse.Namespace) -> set[str]:
    """The bounds to which a run with these options gives values."""
    return {f"{options.architecture}_compiled_points_lost"}


def values(record: dict[str, Any]) -> dict[str, float]:
    """The bound's value; none where a measurement is missing."""
    lost = sum(not point["poet_wins"] for point in record["points"])
    return {f"{record['architecture']}_compiled_points_lost": lost} if record["points"] else {}


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Peaks, times and points of one architecture, as a record for JSON."""
    common = {"architecture": options.architecture, "no_optimizer": True}
    plain = measure("plain", steps=_METER_STEPS, **common)
    own = plain["parameter_bytes"]
    peaks: dict[float, int] = {}
    for share in SHARES:
        found = measure("compiled", steps=_METER_STEPS, activation_memory_budget=share, **common)
        peaks[share] = found["peak_bytes"]
        _say(share=share, peak_above_parameters_mib=round((peaks[share] - own) / 2**20, 2))
    common |= {key: getattr(options, key) for key in ("time_limit", "paging", "page_dir")}
    common["minimize"] = options.minimize
    budgets = sorted({peaks[share] for share in SHARES[1:]}, reverse=True)
    metered = {
        budget: measure("poet", steps=_POET_STEPS, budget=budget, **common) for budget in budgets
    }
    kept = [budget for budget in budgets if metered[budget]["peak_bytes"] is not None]
    forms = ["plain", *(f"compiled@{share:g}" for share in SHARES)]
    forms += [f"poet@{budget}" for budget in kept]
    more = {"forms": forms, "rounds": options.rounds} | common
    rounds = run_script(Path(__file__).with_name("rounds.py"), as_words(more))
    record = {
        "context": context(),
        "architecture": options.architecture,
        "paging": options.paging,
        "parameter_bytes": own,
        "plain_peak_bytes": plain["peak_bytes"],
        "compiled_peak_bytes": {f"{share:g}": peaks[share] for share in SHARES},
        "poet_peak_bytes": {str(budget): metered[budget]["peak_bytes"] for budget in budgets},
        "plans": {str(budget): metered[budget]["poet"] for budget in budgets},
        "rounds": rounds,
    }
    return record | {"points": points(record)}


def points(record: dict[str, Any]) -> list[dict[str, Any]]:
    """For each share below 1: both sides' peaks, extras (quartiles, percent) and milliseconds."""
    seconds = record["rounds"]["seconds"]
    peaks = record["compiled_peak_bytes"]
    found = []
    for share in SHARES[1:]:
        peak = peaks[f"{share:g}"]
        same = [f"compiled@{other:g}" for other in SHARES[1:] if peaks[f"{other:g}"] == peak]
        quartiles = min(
            (extra_quartiles(seconds[form], seconds["compiled@1"]) for form in same),
            key=lambda one: one[1],
        )
        point: dict[str, Any] = {
            "share": share,
            "compiled_peak_bytes": peak,
            "compiled_extra_percent": quartiles,
            "compiled_ms": 1000 * _median(seconds[f"compiled@{share:g}"]),
            "poet_peak_bytes": record["poet_peak_bytes"][str(peak)],
            "poet_extra_percent": None,
            "poet_ms": None,
            "poet_wins": False,
        }
        form = f"poet@{peak}"
        ended = record["rounds"].get("at_budgets", {}).get(form)
        if ended is not None and ended["followed_rounds"] == record["rounds"]["rounds"]:
            extra = extra_quartiles(seconds[form], seconds["plain"])
            point["poet_extra_percent"] = extra
            point["poet_ms"] = 1000 * _median(seconds[form])
            point["poet_wins"] = point["poet_peak_bytes"] <= peak and extra[1] < quartiles[1]
        _say(**point)
        found.append(point)
    return found


def _median(figures: list[float]) -> float:
    return sorted(figures)[len(figures) // 2]


def _say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    main()
