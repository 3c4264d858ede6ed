"""data/paper.json: what was measured so far, one row a line, kept as soon as it is known."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Key = dict[str, Any]


class Store:
    """Rows by kind and key. A row that another build of poet made is measured again.

    Args:
        path: of the file, which may not be there yet.
        build: of poet; None takes rows of any build, and measures nothing (for drawing).
    """

    def __init__(self, path: Path, build: str | None) -> None:
        self._path = path
        self._build = build
        self._rows: dict[str, Row] = {}
        if path.is_file():
            for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
                self._rows[_name(row["kind"], row["key"])] = row

    def find(self, kind: str, key: Key) -> Row | None:
        """The row, where there is one of this build."""
        row = self._rows.get(_name(kind, key))
        if row is None or (self._build is not None and row["build"] != self._build):
            return None
        return row

    def measured(self, kind: str, key: Key, measure: Callable[[], Row]) -> Row:
        """The row; where it is not known, it is measured and written down."""
        row = self.find(kind, key)
        if row is None:
            if self._build is None:
                raise KeyError(f"{_name(kind, key)}: not measured yet")
            row = {"kind": kind, "key": key, **_short(measure()), "build": self._build}
            self._rows[_name(kind, key)] = row
            self._write()
        return row

    def of_kind(self, kind: str) -> list[Row]:
        """All rows of a kind, of any build, in the order in which they were measured."""
        return [row for row in self._rows.values() if row["kind"] == kind]

    def keep_only(self, keys: list[tuple[str, Key]]) -> None:
        """Drops rows that nothing asks for any more."""
        names = {_name(kind, key) for kind, key in keys}
        self._rows = {name: row for name, row in self._rows.items() if name in names}
        self._write()

    def _write(self) -> None:
        lines = ",\n".join("  " + json.dumps(row) for row in self._rows.values())
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_text(f'{{"rows": [\n{lines}\n]}}\n', encoding="utf-8")
        partial.replace(self._path)


class Progress:
    """A line a row on standard error: how many are done, and what was found."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0

    def tell(self, text: str) -> None:
        """One more is done."""
        self._done += 1
        print(f"[{self._done}/{self._total}] {text}", file=sys.stderr, flush=True)


def _name(kind: str, key: Key) -> str:
    return kind + " " + json.dumps(key, sort_keys=True)


def _short(value: Any) -> Any:
    """Numbers to nine digits, which tell two plans apart."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    return value
