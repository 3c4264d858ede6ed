"""Where the time of steps under poet goes: plans, recordings, planning beside the training.

    python benchmarks/step_costs.py [--only gpt2 lstm] [--part plans] [--save step_costs]

AdamW steps of ten architectures, each form in a process of its own, in alternating rounds with
plain ones (rounds.py says why). Of plans, without paging at slack 0.4 and with paging at 0.3: what
the plan said that the step would take and what it took; the time over plain in replays, in waits
for transfers, and the rest; the share of the transfers' time that was hidden, but for what the plan
itself says cannot be. Of recordings: the first call of a fresh wrapped step within a budget that
presses nothing, over a plain call; and what wrapping it took, in which all garbage is collected.
Of planning: plain steps of one process on two threads, while another one has a plan made in the
background. Parts that are left out stay as they were in the file. The last line printed is JSON:
what bounds.toml limits.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parent / "planner"))

import torch
from _architectures import ARCHITECTURES

import poet
import steps
from _data import context, load, measured, save
from rounds import END, FormProcess, extra_percent, timed

PARTS = ("plans", "recording", "beside")
NAMES = (
    *("resnet18", "gpt2", "bert", "minilm"),
    *("vit", "unet3d", "t5", "lstm", "densenet121", "bert24"),
)
_SLACK = {"off": 0.4, "on": 0.3}
_WARM_CALLS = 6
_SUMMED = ("replay_seconds", "waited_seconds", "transfer_seconds")
_AMPLE_BYTES = 8 << 30
_BLOCKS = 3  # of steps with and without planning beside them
_BLOCK_STEPS = 40
_BLOCK_SECONDS = 20.0


# ---- a form's own process --------------------------------------------------------------------


def _training(name: str) -> tuple[steps.Training, Any]:
    parts = (steps.ARCHITECTURES | ARCHITECTURES)[name]
    training = steps.Training(parts, optimizer="adamw")
    return training, next(parts.batches(torch.Generator().manual_seed(1)))


def _budget(training: steps.Training, batch: Any, slack: float) -> int:
    probe = poet.trace(training.step, *batch)
    return steps.budget_at(slack, steps.fixed_bytes(training), probe.plain_peak_bytes())


class Plain:
    """Steps without poet."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._training, self._batch = _training(options.only[0])
        for _ in range(_WARM_CALLS):
            self._training.step(*self._batch)

    def answer(self, word: str) -> dict[str, Any]:
        """One timed step; nothing else to say."""
        if word == END:
            return {}
        return timed(lambda: self._training.step(*self._batch))


class Recorded(Plain):
    """First calls, each of another wrapped step."""

    def answer(self, word: str) -> dict[str, Any]:
        """One timed recording."""
        if word == END:
            return {}
        started = time.perf_counter()
        wrapped = poet.wrap(
            self._training.step,
            ram_budget=_AMPLE_BYTES,
            background=False,
            paging=False,
            cache_dir=None,
        )
        wrapping = time.perf_counter() - started
        took = timed(lambda: wrapped(*self._batch))
        assert wrapped.stats.traced_steps == 1
        return took | {"wrap_seconds": wrapping}


class Planned:
    """Steps that follow a plan."""

    def __init__(self, options: argparse.Namespace) -> None:
        training, self._batch = _training(options.only[0])
        for _ in range(2):
            training.step(*self._batch)
        self._paging = options.paging == "on"
        budget = _budget(training, self._batch, _SLACK[options.paging])
        self._wrapped = training.wrapped(
            budget, options.time_limit, paging=self._paging, minimize="time"
        )
        for _ in range(_WARM_CALLS):
            self._wrapped(*self._batch)
        self._followed_before = self._wrapped.stats.followed_steps

    def answer(self, word: str) -> dict[str, Any]:
        """One timed step with what its counters have moved by, or what the plan says."""
        if word == END:
            return self._record()
        before = self._wrapped.stats
        took = timed(lambda: self._wrapped(*self._batch))
        after = self._wrapped.stats
        return took | {key: getattr(after, key) - getattr(before, key) for key in _SUMMED}

    def _record(self) -> dict[str, Any]:
        schedule, graph, stats = self._wrapped.schedule, self._wrapped.graph, self._wrapped.stats
        if schedule is None or not schedule.has_plan or graph is None:
            return {"status": None if schedule is None else str(schedule.status)}
        simulated = poet.simulate(graph, schedule, cache_dir=None)
        return {
            "status": str(schedule.status),
            "ops": len(graph.ops),
            "ram_budget_bytes": schedule.ram_budget,
            "predicted_seconds": schedule.makespan_seconds,
            "kernel_seconds": graph.plain_seconds,
            "predicted_replay_seconds": simulated.recompute_seconds,
            "predicted_transfer_seconds": simulated.transfer_seconds,
            "followed": stats.followed_steps - self._followed_before,
        }


class Planning:
    """Plans in the background; its own steps rest meanwhile."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._training, self._batch = _training(options.only[0])
        for _ in range(2):
            self._training.step(*self._batch)
        self._budget = _budget(self._training, self._batch, _SLACK["off"])
        self._wrapped: poet.WrappedStep | None = None

    def answer(self, word: str) -> dict[str, Any]:
        """`plan` begins another search, `step` says whether it goes on, `wait` waits for it."""
        if word == "plan":
            self._wrapped = poet.wrap(
                self._training.step,
                ram_budget=self._budget,
                time_limit_s=_BLOCK_SECONDS + 10,
                paging=False,
                cache_dir=None,
            )
            for _ in range(_WARM_CALLS):
                self._wrapped(*self._batch)
                if self._wrapped.stats.planning:
                    break
        assert self._wrapped is not None or word == END
        if word in ("wait", END) and self._wrapped is not None:
            self._wrapped.wait_for_plan(120)
        return {"planning": self._wrapped is not None and self._wrapped.stats.planning}


class Form(Protocol):
    """What answers the lines of its process's standard input."""

    def answer(self, word: str) -> dict[str, Any]:
        """What is said to the word."""


FORMS: dict[str, Callable[[argparse.Namespace], Form]] = {
    "plain": Plain,
    "recorded": Recorded,
    "poet": Planned,
    "planning": Planning,
}


def serve(options: argparse.Namespace) -> None:
    """Answers the lines of standard input until END."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints
    torch.set_num_threads(options.threads)
    form = FORMS[options.serve](options)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        word = line.strip()
        print(json.dumps(form.answer(word)), file=answers, flush=True)
        if word == END:
            break


# ---- the measurements ------------------------------------------------------------------------


def _words(name: str, threads: int = 1, paging: str = "off", limit: float = 10) -> list[str]:
    words = ["--only", name, "--threads", str(threads), "--paging", paging]
    return [*words, "--time-limit", str(limit)]


def paired(
    forms: tuple[str, str], words: list[str], rounds: int
) -> tuple[dict[str, dict[str, list[float]]], dict[str, Any]]:
    """Steps of two forms in turn: lists by form and figure, and what the second said in the end."""
    processes: dict[str, FormProcess] = {}
    found: dict[str, dict[str, list[float]]] = {form: {} for form in forms}
    try:
        for form in forms:
            processes[form] = FormProcess(form, words, __file__)
        for number in range(rounds):
            for form in forms if number % 2 else forms[::-1]:
                for key, figure in processes[form].step().items():
                    found[form].setdefault(key, []).append(figure)
        said = {form: process.end() for form, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
    return found, said[forms[1]]


def plan_row(name: str, paging: str, rounds: int, limit: float) -> dict[str, Any]:
    """A planned step beside a plain one."""
    words = _words(name, paging=paging, limit=limit)
    found, said = paired(("plain", "poet"), words, rounds)
    row = {"step": name, "paging": paging} | said
    if said.get("followed") != rounds:
        return row  # without a plan, or left once: nothing to split
    plain, own = found["plain"]["seconds"], found["poet"]["seconds"]
    extra = [b - a for a, b in zip(plain, own, strict=True)]
    spent = [found["poet"][key] for key in _SUMMED]
    replays, waited, transfers = map(statistics.median, spent)
    rest = statistics.median(e - r - w for e, r, w in zip(extra, *spent[:2], strict=True))
    typical = statistics.median(plain)
    stall = said["predicted_seconds"] - said["kernel_seconds"] - said["predicted_replay_seconds"]
    row |= {
        "plain_seconds": typical,
        "own_seconds": statistics.median(own),
        "extra_percent": 100 * statistics.median(extra) / typical,
        "replay_percent": 100 * replays / typical,
        "waited_percent": 100 * waited / typical,
        "rest_percent": 100 * rest / typical,
        "prediction_error_percent": 100
        * abs(said["predicted_seconds"] / statistics.median(own) - 1),
    }
    if transfers > 0:
        unhidden = max(0.0, waited - max(0.0, stall))
        row["hidden_percent"] = 100 * (1 - min(1.0, unhidden / transfers))
    return row


def recording_row(name: str, rounds: int) -> dict[str, Any]:
    """First calls beside plain ones."""
    found, _ = paired(("plain", "recorded"), _words(name), rounds)
    plain, own = found["plain"]["seconds"], found["recorded"]["seconds"]
    return {
        "step": name,
        "plain_seconds": statistics.median(plain),
        "wrap_seconds": statistics.median(found["recorded"]["wrap_seconds"]),
        "extra_percent": extra_percent(own, plain),
    }


def beside_row(name: str, planned: str) -> dict[str, Any]:
    """Steps on two threads with and without a search beside them."""
    blocks = []
    steps_of, planner = None, None
    try:
        steps_of = FormProcess("plain", _words(name, threads=2), __file__)
        planner = FormProcess("planning", _words(planned, threads=2), __file__)
        for _ in range(_BLOCKS):
            planner.ask("plan")
            during: list[float] = []
            end = time.monotonic() + _BLOCK_SECONDS
            while len(during) < _BLOCK_STEPS and time.monotonic() < end:
                during.append(steps_of.step()["seconds"])
                if not planner.ask("step")["planning"]:
                    during.pop()
                    break
            planner.ask("wait")
            quiet = [steps_of.step()["seconds"] for _ in during]
            blocks.append([during, quiet])
    finally:
        for process in (steps_of, planner):
            if process is not None:
                process.kill()
    ratios = [
        statistics.median(during) / statistics.median(quiet) for during, quiet in blocks if quiet
    ]
    return {
        "step": name,
        "planned": planned,
        "blocks": blocks,
        "extra_percent": 100 * (statistics.median(ratios) - 1) if ratios else None,
    }


def values(record: dict[str, Any]) -> dict[str, float]:
    """What bounds.toml limits."""
    figures = {}
    split = [row for row in record.get("plans", []) if "rest_percent" in row]
    if split:
        figures["step_time_prediction_error"] = statistics.median(
            row["prediction_error_percent"] for row in split
        )
        figures["step_rest_percent"] = max(row["rest_percent"] for row in split)
    hidden = [row["hidden_percent"] for row in split if "hidden_percent" in row]
    if hidden:
        figures["transfers_hidden_percent"] = min(hidden)
    if record.get("recording"):
        figures["recording_percent"] = max(row["extra_percent"] for row in record["recording"])
    beside = [row["extra_percent"] for row in record.get("beside", [])]
    if beside and None not in beside:
        figures["planning_beside_percent"] = max(beside)
    return figures


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The options; `words` in place of the command line's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--time-limit", type=float, default=10, help="seconds for the planner")
    parser.add_argument("--save", metavar="NAME", help="name under benchmarks/data")
    # How the script calls itself for one form.
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--paging", choices=["off", "on"], default="off", help=argparse.SUPPRESS)
    parser.add_argument("--serve", choices=sorted(FORMS), help=argparse.SUPPRESS)
    return parser.parse_args(words)


def _shown(row: dict[str, Any]) -> str:
    figures = {key: row[key] for key in row if key.endswith("_percent") and row[key] is not None}
    said = "  ".join(f"{key[:-8]} {figure:+.1f} %" for key, figure in figures.items())
    paging = {"on": "paging", "off": "recompute"}.get(row.get("paging", ""), "")
    return f"{row['step']:12} {paging:9} {said or row.get('status')}"


def _beside_other_parts(options: argparse.Namespace, record: dict[str, Any]) -> dict[str, Any]:
    """What to save: parts that did not run stay as they are in the file, with their dates."""
    now = context()
    left_out = set(PARTS) - set(options.part)
    kept = load(options.save) if left_out and measured(options.save) else {}
    others = {part: kept[part] for part in PARTS if part in left_out and part in kept}
    dates = kept.get("part_dates", {part: kept.get("date") for part in others})
    dates = {part: dates[part] for part in others} | dict.fromkeys(record, now["date"])
    return now | {"slack": _SLACK, "part_dates": dates} | others | record


def main() -> None:
    """Measures and saves."""
    options = parse()
    if options.serve:
        serve(options)
        return
    record: dict[str, Any] = {}

    def note(part: str, row: dict[str, Any]) -> None:
        record.setdefault(part, []).append(row)
        print(f"{part:9} {_shown(row)}", flush=True)

    if "plans" in options.part:
        for name in options.only:
            for paging in _SLACK:
                note("plans", plan_row(name, paging, options.rounds, options.time_limit))
    if "recording" in options.part:
        for name in options.only:
            note("recording", recording_row(name, options.rounds))
    if "beside" in options.part:
        note("beside", beside_row("gpt2", "bert"))
    if options.save:
        save(options.save, _beside_other_parts(options, record))
    print(json.dumps({"values": values(record)}))


if __name__ == "__main__":
    main()
