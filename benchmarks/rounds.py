"""Times the forms of one step against each other, in alternating rounds in one process.

    python benchmarks/rounds.py --forms plain checkpoint poet --budget 173276792 --no-optimizer

Machines drift, so every round runs each form once, in an order that rotates, and what counts is
the median over the rounds of a form's time divided by plain's in the same round. The last line
printed is a JSON object.

The forms stand side by side in one process, each a model of its own with the same seed. poet's
budget counts everything that is resident in the process, and there the other forms' parameters,
gradients and optimizer states are resident too. So what they hold is added to the budget: --budget
is what the poet form would get in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from meter import add_step_options, poet_record
from steps import Training, batches, resident_bytes

# Calls before the first round: poet's traced calls and then its first planned ones, whose pages the
# heap does not hold yet. The other forms get as many.
_WARM_CALLS = 6


@dataclass(frozen=True)
class Timing:
    """Wall and processor seconds of each round."""

    wall: list[float]
    processor: list[float]


def time_rounds(
    steps: dict[str, Callable[..., Any]], batch: tuple[Any, ...], rounds: int
) -> dict[str, Timing]:
    """Runs every step once a round; the order rotates from round to round."""
    names = list(steps)
    timings = {name: Timing([], []) for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            wall, processor = time.perf_counter(), time.process_time()
            steps[name](*batch)
            timings[name].processor.append(time.process_time() - processor)
            timings[name].wall.append(time.perf_counter() - wall)
    return timings


def extra_percent(own: list[float], plain: list[float]) -> float:
    """The median over the rounds of how much longer a step took than the plain one beside it."""
    return 100 * (statistics.median(a / b for a, b in zip(own, plain, strict=True)) - 1)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """One comparison, as a record for JSON."""
    torch.set_num_threads(options.threads)
    batch = next(batches(options.architecture))
    trainings = {
        form: Training(
            options.architecture,
            checkpointed=form == "checkpoint",
            optimizer=None if options.no_optimizer else options.optimizer,
        )
        for form in options.forms
    }
    others = {form: t for form, t in trainings.items() if form != "poet"}
    for training in others.values():  # first: gradients and optimizer states are there to stay
        for _ in range(_WARM_CALLS):
            training.step(*batch)
    steps: dict[str, Callable[..., Any]] = {form: t.step for form, t in others.items()}
    record: dict[str, Any] = {"forms": options.forms, "threads": options.threads}
    if "poet" in trainings:
        beside = sum(resident_bytes(training.state()) for training in others.values())
        wrapped = trainings["poet"].wrapped(
            options.budget + beside,
            options.time_limit,
            paging=options.paging == "on",
            page_dir=options.page_dir,
            minimize=options.minimize,
        )
        for _ in range(_WARM_CALLS):
            wrapped(*batch)
        steps["poet"] = wrapped
        record["bytes_beside"] = beside
    before = wrapped.stats.followed_steps if "poet" in trainings else 0
    timings = time_rounds(steps, batch, options.rounds)
    if "poet" in trainings:
        record["poet"] = poet_record(
            wrapped,
            options.budget + beside,
            paging=options.paging == "on",
            page_dir=options.page_dir,
        )
        record["followed_rounds"] = wrapped.stats.followed_steps - before
    record["rounds"] = options.rounds
    record["seconds"] = {form: timing.wall for form, timing in timings.items()}
    record["processor_seconds"] = {form: timing.processor for form, timing in timings.items()}
    record["extra_percent"] = {
        form: extra_percent(timing.wall, timings["plain"].wall) for form, timing in timings.items()
    }
    record["extra_processor_percent"] = {
        form: extra_percent(timing.processor, timings["plain"].processor)
        for form, timing in timings.items()
    }
    return record


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--forms", nargs="+", choices=["plain", "checkpoint", "poet"], default=["plain", "poet"]
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=int, help="bytes, in a process of its own; for poet")
    add_step_options(parser)
    options = parser.parse_args()
    if "plain" not in options.forms:
        parser.error("--forms needs plain: the others are compared with it")
    if "poet" in options.forms and options.budget is None:
        parser.error("--forms poet needs --budget")
    print(json.dumps(run(options)))


if __name__ == "__main__":
    main()
