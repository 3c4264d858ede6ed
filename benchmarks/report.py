"""Writes the figures of README.md from bounds.toml, between its two `figures` marks.

    python benchmarks/report.py [--check] [--bounds FILE] [--readme FILE]

--check writes nothing and exits with 1 when README is not in step.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from _bounds import BOUNDS_FILE, REPOSITORY, Bound, BoundsError, load, number

BEGIN = "<!-- figures:begin -->"
END = "<!-- figures:end -->"


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--bounds", type=Path, default=BOUNDS_FILE)
    parser.add_argument("--readme", type=Path, default=REPOSITORY / "README.md")
    options = parser.parse_args(arguments)
    try:
        _, bounds = load(options.bounds)
        before = options.readme.read_text(encoding="utf-8")
        after = with_figures(before, bounds)
    except (BoundsError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    if before == after:
        return 0
    if options.check:
        print(f"report: {options.readme} is not in step with {options.bounds}: run make report")
        return 1
    options.readme.write_text(after, encoding="utf-8")
    print(f"report: wrote the figures of {options.readme}")
    return 0


def with_figures(text: str, bounds: list[Bound]) -> str:
    """README's text with its figures block made anew.

    Raises:
        BoundsError: a mark is missing, stands there twice, or the two are in the wrong order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise BoundsError(f"README must hold {BEGIN} and, after it, {END}, once each")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{figures(bounds)}\n{END}{tail}"


def figures(bounds: list[Bound]) -> str:
    """The table, and below it where and when its values were measured."""
    shown = [bound for bound in bounds if bound.readme]
    rows = ["| claim | measured | bound |", "|---|---|---|"]
    rows += [
        f"| {_cell(bound.claim)} | {_measured(bound)} | {bound.limit_text()} |" for bound in shown
    ]
    sources = sorted({(b.date, b.machine) for b in shown if b.last is not None})
    text = "\n".join(rows)
    if sources:
        text += "\n\nMeasured by `make bench`: "
        text += "; ".join(f"{date}, {machine}" for date, machine in sources) + "."
    return text


def _measured(bound: Bound) -> str:
    if bound.last is None:
        return "not yet"
    measured = number(bound.last, bound.unit)
    if bound.holds(bound.last):
        return measured
    return f"{measured}, **not held** yet" + (f": {_cell(bound.open)}" if bound.open else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
