"""Variants of one test that take turns in CI, so that its hour has room for every test.

Where `POET_TURNS` is set (`.ci/run` does), a test with four variants or more runs a third of them,
another third each time that CHANGELOG.md gains a line. `make test` runs all of them.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

TURNS = 3
_FEW = 3


def turn(of: int) -> int:
    """Whose turn it is, of so many: moves on with every line that CHANGELOG.md gains."""
    changes = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    return len(re.findall(r"^- ", changes, re.MULTILINE)) % of


def asked_for() -> bool:
    """Whether variants are to take turns in this run."""
    return bool(os.environ.get("POET_TURNS"))


def in_turn(nodes: Iterable[str], now: int) -> set[str]:
    """Those of pytest's node ids whose turn it is: of a few variants all, of many a third.

    Every variant has its turn once in `TURNS`, and every test has one at each.
    """
    variants: defaultdict[str, list[str]] = defaultdict(list)
    for node in nodes:
        variants[node.split("[", 1)[0]].append(node)
    kept: set[str] = set()
    for some in variants.values():
        kept.update(some if len(some) <= _FEW else some[now % TURNS :: TURNS])
    return kept
