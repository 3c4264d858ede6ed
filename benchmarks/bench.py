"""Measures the bounds of bounds.toml, writes the values back, and fails when one is broken.

    python benchmarks/bench.py [--list] [--only ID ...] [--bounds FILE]

A bound's command runs in the repository's root; its last output line that is a JSON object counts:
{"value": number}, or {"values": {id: number, ...}} where several bounds share a command, which then
runs once. Exit status: 0 when every bound holds, 1 when one is broken, 2 for a faulty file or id.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tomlkit

from _bounds import BOUNDS_FILE, REPOSITORY, Bound, BoundsError, load, number, select


@dataclass(frozen=True)
class Outcome:
    """A bound, its value (None when there is none) and what is wrong ("" when it holds)."""

    bound: Bound
    value: float | None
    problem: str


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    options = _options(arguments)
    try:
        document, bounds = load(options.bounds)
        chosen = select(bounds, options.only)
    except BoundsError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    if options.list:
        for bound in chosen:
            last = "never measured" if bound.last is None else number(bound.last, bound.unit)
            print(f"{bound.id}: {bound.claim} ({bound.limit_text()}; last: {last})")
        return 0
    outcomes = _measure_all(chosen)
    _write_back(options.bounds, document, outcomes)
    _print_table(outcomes)
    return 1 if any(outcome.problem for outcome in outcomes) else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the bounds, measure nothing")
    parser.add_argument("--only", metavar="ID", action="extend", nargs="+", default=[])
    parser.add_argument("--bounds", type=Path, default=BOUNDS_FILE)
    return parser.parse_args(arguments)


def _measure_all(bounds: list[Bound]) -> list[Outcome]:
    """Runs every command once, in file order."""
    by_command: dict[str, list[Bound]] = {}
    for bound in bounds:
        by_command.setdefault(bound.command, []).append(bound)
    found: dict[str, Outcome] = {}
    for command, group in by_command.items():
        print(f"bench: {command}", flush=True)
        begin = time.monotonic()
        record, problem = _run(command, max(bound.timeout_s for bound in group))
        for bound in group:
            found[bound.id] = _judge(bound, record, problem)
        print(f"bench: took {time.monotonic() - begin:.0f} s", flush=True)
    return [found[bound.id] for bound in bounds]


def _run(command: str, timeout_s: float) -> tuple[dict[str, object], str]:
    """The JSON object that the command printed last, or what went wrong."""
    words = shlex.split(command)
    if words and words[0] == "python":
        words[0] = sys.executable
    try:
        done = subprocess.run(
            words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {}, f"ran longer than {timeout_s:g} s"
    except OSError as error:
        return {}, f"could not be started: {error}"
    if done.returncode != 0:
        sys.stdout.write(done.stdout)
        return {}, f"exit status {done.returncode}"
    for line in reversed(done.stdout.splitlines()):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            return record, ""
    return {}, "printed no JSON object"


def _judge(bound: Bound, record: dict[str, object], problem: str) -> Outcome:
    if problem:
        return Outcome(bound, None, problem)
    values = record.get("values")
    value = values.get(bound.id) if isinstance(values, dict) else record.get("value")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return Outcome(bound, None, f"printed no value for {bound.id}")
    if not bound.holds(value):
        return Outcome(bound, value, f"{number(value, bound.unit)} is not {bound.limit_text()}")
    return Outcome(bound, value, "")


def _write_back(path: Path, document: tomlkit.TOMLDocument, outcomes: list[Outcome]) -> None:
    """Puts what was measured into the file, broken or not; comments and order stay."""
    values = {o.bound.id: o.value for o in outcomes if o.value is not None}
    today = datetime.date.today().isoformat()
    for table in document.get("bound", []):
        value = values.get(str(table["id"]))
        if value is not None:
            table["last"] = float(f"{value:.6g}") if isinstance(value, float) else value
            table["date"] = today
            table["machine"] = machine()
    scratch = path.with_suffix(".tmp")
    scratch.write_text(tomlkit.dumps(document), encoding="utf-8")
    os.replace(scratch, path)


def machine() -> str:
    """The processor and how many cores of it may be used, e.g. "AMD EPYC 7B13, 2 cores"."""
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def _print_table(outcomes: list[Outcome]) -> None:
    width = max((len(o.bound.id) for o in outcomes), default=0)
    for outcome in outcomes:
        bound = outcome.bound
        value = "-" if outcome.value is None else number(outcome.value, bound.unit)
        verdict = f"BROKEN: {outcome.problem}" if outcome.problem else "holds"
        print(f"{bound.id:<{width}}  {value:>14}  {bound.limit_text():<20}  {verdict}")
    broken = sum(bool(o.problem) for o in outcomes)
    print(f"bench: {len(outcomes) - broken} hold, {broken} broken")


if __name__ == "__main__":
    sys.exit(main())
