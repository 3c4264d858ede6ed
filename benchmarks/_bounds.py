"""benchmarks/bounds.toml: every figure that poet claims, its limit and the value last measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

REPOSITORY = Path(__file__).resolve().parent.parent
BOUNDS_FILE = Path(__file__).resolve().parent / "bounds.toml"

_REQUIRED = {"id": str, "claim": str, "command": str, "limit": (int, float), "direction": str}
_OPTIONAL = {
    "unit": str,
    "last": (int, float),
    "date": str,
    "machine": str,
    "readme": bool,
    "timeout_s": (int, float),
    "open": str,
}


class BoundsError(ValueError):
    """A bounds file that cannot be read, or an id that it does not hold."""


@dataclass(frozen=True)
class Bound:
    """One bound.

    Attributes:
        id: unique name, also the key of its value in a command's output.
        claim: what holds, as a sentence for README.
        command: what to run in the repository's root; prints {"value": number}, or
            {"values": {id: number}} for several bounds of one command.
        limit: the greatest ("max") or least ("min") value that keeps the claim.
        direction: "max" or "min".
        unit: of limit and value; "%" and "MiB" are printed behind the number.
        last: value last measured, None before the first time.
        date: day of that measurement.
        machine: where it was measured.
        readme: whether README shows it.
        timeout_s: seconds that the command may take.
        open: why the claim is known not to hold yet: README says so, and `make bench` fails.
    """

    id: str
    claim: str
    command: str
    limit: float
    direction: str
    unit: str = ""
    last: float | None = None
    date: str = ""
    machine: str = ""
    readme: bool = True
    timeout_s: float = 1800.0
    open: str = ""

    def holds(self, value: float) -> bool:
        """Whether the value keeps the claim; a value that is no number never does."""
        if not math.isfinite(value):
            return False
        return value <= self.limit if self.direction == "max" else value >= self.limit

    def limit_text(self) -> str:
        """The limit with its sign and unit, e.g. "at most 7 %"."""
        return ("at most " if self.direction == "max" else "at least ") + number(
            self.limit, self.unit
        )


def number(value: float, unit: str) -> str:
    """A value with its unit, to four significant digits."""
    if unit in ("bytes", "count") or float(value).is_integer():
        text = f"{value:,.0f}"
    else:
        text = f"{value:.4g}"
    return f"{text} {unit}".rstrip()


def load(path: Path) -> tuple[tomlkit.TOMLDocument, list[Bound]]:
    """The file, both as a document that keeps its comments and as bounds in file order.

    Raises:
        BoundsError: the file is no TOML, or an entry lacks a field, has one too many or one of
            the wrong kind, or an id stands there twice.
    """
    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8"))
    except (OSError, TOMLKitError) as error:
        raise BoundsError(f"{path}: cannot be read: {error}") from error
    tables = document.unwrap().get("bound", [])
    bounds = [_bound(path, index, table) for index, table in enumerate(tables)]
    seen: set[str] = set()
    for bound in bounds:
        if bound.id in seen:
            raise BoundsError(f"{path}: two bounds have the id {bound.id!r}")
        seen.add(bound.id)
    return document, bounds


def _bound(path: Path, index: int, table: dict[str, Any]) -> Bound:
    where = f"{path}: bound {index + 1} ({table.get('id', 'no id')})"
    for key, kind in _REQUIRED.items():
        if key not in table:
            raise BoundsError(f"{where}: {key} is missing")
        _check_kind(where, key, table[key], kind)
    for key, value in table.items():
        if key not in _REQUIRED and key not in _OPTIONAL:
            raise BoundsError(f"{where}: {key} is not a field of a bound")
        if key in _OPTIONAL:
            _check_kind(where, key, value, _OPTIONAL[key])
    if table["direction"] not in ("max", "min"):
        raise BoundsError(f'{where}: direction is "max" or "min", not {table["direction"]!r}')
    return Bound(**table)


def _check_kind(where: str, key: str, value: object, kind: Any) -> None:
    is_bool = isinstance(value, bool)
    if not isinstance(value, kind) or (is_bool and kind is not bool):
        raise BoundsError(f"{where}: {key} is {value!r}, which is of the wrong kind")


def select(bounds: list[Bound], only: list[str]) -> list[Bound]:
    """The bounds with these ids, and those that the same commands measure; all if none is named.

    Raises:
        BoundsError: an id that the file does not hold.
    """
    if not only:
        return bounds
    known = {bound.id for bound in bounds}
    for name in only:
        if name not in known:
            raise BoundsError(
                f"no bound has the id {name!r}; there are: {', '.join(sorted(known))}"
            )
    commands = {bound.command for bound in bounds if bound.id in only}
    return [bound for bound in bounds if bound.command in commands]
