"""Writes docs/compatibility.md from what the tests found.

    python -m pytest tests/python/test_compatibility.py --junitxml=build/compatibility.xml
    python tools/compatibility.py build/compatibility.xml

(`make compatibility` does both.) Which kinds of step stand for which feature is in
tests/python/compatibility_zoo.py.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
sys.path.insert(0, str(ROOT / "tests" / "python"))

from compatibility_zoo import FEATURES, KINDS, LIMITS  # noqa: E402

# The columns: heading, test function, its parameter beside the kind.
COLUMNS = (
    ("random plans, recompute", "test_random_plans", "recompute"),
    ("random plans, paging", "test_random_plans", "paging"),
    ("`poet.wrap`, slack 0.5", "test_wrapped", "0.5"),
    ("`poet.wrap`, slack 0.3, paging", "test_wrapped", "0.3"),
)
BEGIN, END = "<!-- table:begin -->", "<!-- table:end -->"


def outcomes(report: Path) -> dict[tuple[str, str], str]:
    """(test function, its parameters) -> "yes", "no" or "skipped"."""
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        parts = re.fullmatch(r"(\w+)\[(.+)\]", case.get("name", ""))
        if parts is None:
            continue
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "no"
        else:
            outcome = "yes" if case.find("skipped") is None else "skipped"
        found[parts[1], parts[2]] = outcome
    return found


def cell(found: dict[tuple[str, str], str], kinds: tuple[str, ...], column: int) -> str:
    """What the column says of all kinds of a feature."""
    _, test, parameter = COLUMNS[column]
    each = {kind: found.get((test, f"{kind}-{parameter}"), "not run") for kind in kinds}
    if len(set(each.values())) == 1:
        return next(iter(each.values()))
    return ", ".join(f"{kind}: {outcome}" for kind, outcome in each.items() if outcome != "yes")


def table(found: dict[tuple[str, str], str]) -> str:
    """The table, and the list of what each kind does."""
    lines = ["| what | " + " | ".join(heading for heading, *_ in COLUMNS) + " |"]
    lines.append("|---" * (1 + len(COLUMNS)) + "|")
    for feature, kinds in FEATURES.items():
        cells = (cell(found, kinds, column) for column in range(len(COLUMNS)))
        lines.append(f"| {feature} | " + " | ".join(cells) + " |")
    lines += ["", "What the steps do:", ""]
    for kind in dict.fromkeys(kind for kinds in FEATURES.values() for kind in kinds):
        text = " ".join((KINDS[kind].__doc__ or "").split())
        lines.append(f"- `{kind}`: {text}")
    lines += ["", "## Known limits", "", *(f"- {limit}" for limit in LIMITS)]
    return "\n".join(lines)


def main(report: str) -> None:
    """Replaces what stands between the marks in docs/compatibility.md."""
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(outcomes(Path(report)))}\n{END}{after}")


if __name__ == "__main__":
    main(sys.argv[1])
