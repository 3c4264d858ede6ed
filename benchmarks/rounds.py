"""Times the forms of one step against each other, in alternating rounds, a process for each form.

    python benchmarks/rounds.py --forms plain checkpoint poet --budget 173276792 --no-optimizer
    python benchmarks/rounds.py --forms plain compiled@1 compiled@0.5 poet@90000000 --no-optimizer

poet@BYTES has a budget of its own; compiled@SHARE is torch.compile with that
activation_memory_budget.

Machines drift, so every round runs each form once, in an order that rotates, and what counts is
the median over the rounds of a form's time divided by plain's in the same round. One process runs
at a time; the others wait for their turn. The last line printed is a JSON object.

A process each, because what a form leaves of the heap is no business of another's: poet sets
malloc's thresholds, and plain training beside it would run with them, too, and fault its pages in
at every step as it does not in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from meter import add_step_options, poet_record
from steps import Training, batches

# Calls before the first round: poet's traced calls and then its first planned ones, whose pages the
# heap does not hold yet. The other forms get as many.
_WARM_CALLS = 6
_STEP, END = "step", "end"


@dataclass(frozen=True)
class Timing:
    """Of each round: wall and processor seconds, and pages that the kernel had to give."""

    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    page_faults: list[int] = field(default_factory=list)


def timed(step: Callable[[], Any]) -> dict[str, float]:
    """One step's share of a Timing."""
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    wall, processor = time.perf_counter(), time.process_time()
    step()
    processor, wall = time.process_time() - processor, time.perf_counter() - wall
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    return {"seconds": wall, "processor_seconds": processor, "page_faults": faults}


def take_turns(forms: dict[str, Callable[[], dict[str, float]]], rounds: int) -> dict[str, Timing]:
    """Asks every form for a timed step once a round; the order rotates from round to round."""
    names = list(forms)
    timings = {name: Timing() for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            for key, figure in forms[name]().items():
                getattr(timings[name], key).append(figure)
    return timings


def extra_percent(own: list[float], plain: list[float]) -> float:
    """The median over the rounds of how much longer a step took than the plain one beside it."""
    return extra_quartiles(own, plain)[1]


def extra_quartiles(own: list[float], plain: list[float]) -> list[float]:
    """The lower quartile, the median and the upper quartile of the same."""
    ratios = [a / b for a, b in zip(own, plain, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4, method="inclusive")
    return [100 * (ratio - 1) for ratio in quartiles]


def form_of(name: str) -> tuple[str, float | None]:
    """A form's kind, and the figure behind its @.

    Raises:
        ValueError: there is no such form.
    """
    kind, at, figure = name.partition("@")
    if kind not in ("plain", "checkpoint", "compiled", "poet") or bool(at) < (kind == "compiled"):
        raise ValueError(f"no form {name!r}: plain, checkpoint, poet, poet@BYTES, compiled@SHARE")
    if at and kind not in ("compiled", "poet"):
        raise ValueError(f"form {name!r}: {kind} takes no figure")
    return kind, float(figure) if at else None


# ---- a form's own process --------------------------------------------------------------------


def serve(form: str, options: argparse.Namespace) -> None:
    """Warms the form up, then runs a timed step whenever a line asks for one."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints
    torch.set_num_threads(options.threads)
    batch = next(batches(options.architecture))
    kind, figure = form_of(form)
    budget = options.budget if figure is None else int(figure)
    training = Training(
        options.architecture,
        checkpointed=kind == "checkpoint",
        compiled=figure if kind == "compiled" else None,
        optimizer=None if options.no_optimizer else options.optimizer,
    )
    paging: dict[str, Any] = {"paging": options.paging == "on", "page_dir": options.page_dir}
    wrapped = None
    if kind == "poet":
        wrapped = training.wrapped(budget, options.time_limit, minimize=options.minimize, **paging)
    step: Callable[..., Any] = wrapped or training.step
    for _ in range(_WARM_CALLS):
        step(*batch)
    before = wrapped.stats.followed_steps if wrapped else 0
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        if line.strip() == END:
            break
        print(json.dumps(timed(lambda: step(*batch))), file=answers, flush=True)
    record: dict[str, Any] = {}
    if wrapped:
        record["poet"] = poet_record(wrapped, budget, **paging)
        record["followed_rounds"] = wrapped.stats.followed_steps - before
    print(json.dumps(record), file=answers, flush=True)


class FormProcess:
    """A form in a process of its own, which the script serves when it is called with --serve."""

    def __init__(self, form: str, words: list[str], script: str = __file__) -> None:
        self._form = form
        self._process = subprocess.Popen(
            [sys.executable, script, *words, "--serve", form],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def step(self) -> dict[str, float]:
        """Runs one step there, and says what it took."""
        return dict(self.ask(_STEP))

    def end(self) -> dict[str, Any]:
        """What the process says in the end."""
        record = dict(self.ask(END))
        self._process.wait()
        return record

    def kill(self) -> None:
        """Whatever it does."""
        self._process.kill()
        self._process.communicate()

    def ask(self, word: str) -> Any:
        """What the process answers to the word."""
        assert self._process.stdin is not None
        print(word, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"the process of form {self._form!r} ended with {self._process.wait()}"
            )
        return json.loads(line)


def run(options: argparse.Namespace, words: list[str]) -> dict[str, Any]:
    """One comparison, as a record for JSON."""
    record: dict[str, Any] = {
        "forms": options.forms,
        "threads": options.threads,
        "rounds": options.rounds,
    }
    processes: dict[str, FormProcess] = {}
    try:
        for form in options.forms:  # one after the other: planning takes both processors
            processes[form] = FormProcess(form, words)
        timings = take_turns({form: p.step for form, p in processes.items()}, options.rounds)
        for form, process in processes.items():
            said = process.end()
            if form == "poet":
                record |= said
            elif said:
                record.setdefault("at_budgets", {})[form] = said
    finally:
        for process in processes.values():
            process.kill()
    for key in asdict(Timing()):
        record[key] = {form: getattr(timing, key) for form, timing in timings.items()}
    plain = record["seconds"]["plain"]
    record["extra_percent_quartiles"] = {
        form: extra_quartiles(own, plain) for form, own in record["seconds"].items()
    }
    for key, figures in (
        ("extra_percent", record["seconds"]),
        ("extra_processor_percent", record["processor_seconds"]),
    ):
        record[key] = {form: extra_percent(own, figures["plain"]) for form, own in figures.items()}
    return record


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--forms", nargs="+", default=["plain", "poet"])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=int, help="bytes; for poet")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # a form's own process
    add_step_options(parser)
    options = parser.parse_args()
    try:
        for form in options.forms:
            form_of(form)
    except ValueError as error:
        parser.error(f"--forms: {error}")
    if "plain" not in options.forms:
        parser.error("--forms needs plain: the others are compared with it")
    if "poet" in options.forms and options.budget is None:
        parser.error("--forms poet needs --budget")
    if options.serve:
        serve(options.serve, options)
    else:
        print(json.dumps(run(options, sys.argv[1:])))


if __name__ == "__main__":
    main()
