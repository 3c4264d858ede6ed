"""What CI's hour is shared out to: tests/ci_budget.toml."""

from __future__ import annotations

import fnmatch
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TESTS = Path(__file__).parents[1]


def budget() -> dict[str, Any]:
    """The table."""
    return tomllib.loads((TESTS / "ci_budget.toml").read_text())


def suite_of(file: str) -> str:
    """Which suite a file of tests, such as tests/python/test_wrap.py, belongs to."""
    for entry in budget()["python"]:
        if any(fnmatch.fnmatch(Path(file).stem, pattern) for pattern in entry["files"]):
            return str(entry["suite"])
    raise LookupError(file)


def against_budget(spent: Iterable[tuple[str, float]]) -> list[str]:
    """A line for each suite: its seconds, those it has, and a warning where they are fewer.

    Args:
        spent: a file of tests, and seconds that a part of one of its tests took.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    for file, took in spent:
        seconds[file] += took
    by_suite: defaultdict[str, float] = defaultdict(float)
    for file, took in seconds.items():
        by_suite[suite_of(file)] += took
    lines = []
    for entry in budget()["python"]:
        suite, has = entry["suite"], 60 * entry["minutes"]
        line = f"{suite:14} {by_suite[suite]:6.0f} s of {has:5} s"
        over = by_suite[suite] > has
        lines.append(line + ("  WARNING: more than its share of CI's hour" if over else ""))
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    longest = [f"{Path(file).stem} {took:.0f} s" for file, took in ordered[:8]]
    return [*lines, "longest: " + ", ".join(longest)]
