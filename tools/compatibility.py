"""Writes docs/compatibility.md from what the tests found.

    python tools/compatibility.py --tests  # what pytest is to run: -o junit_family=xunit1
    python tools/compatibility.py REPORT

(`make compatibility` does both.) Which kinds of step stand for which feature, and which tests for
what programs do, is in tests/python/compatibility_zoo.py.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
sys.path.insert(0, str(ROOT / "tests" / "python"))

import skips  # noqa: E402
from compatibility_zoo import FEATURES, KINDS, LIMITS, PROGRAMS  # noqa: E402

# The columns: heading, test function, its parameter beside the kind.
COLUMNS = (
    ("random plans, recompute", "test_random_plans", "recompute"),
    ("random plans, paging", "test_random_plans", "paging"),
    ("the same on two threads", "test_random_plans_on_two_threads", ""),
    ("`poet.wrap`, slack 0.5", "test_wrapped", "0.5"),
    ("`poet.wrap`, slack 0.3, paging", "test_wrapped", "0.3"),
)
BEGIN, END = "<!-- table:begin -->", "<!-- table:end -->"


def tests() -> list[str]:
    """What pytest is to run."""
    files = {test.split(".")[0] for tests in PROGRAMS.values() for test in tests}
    return [f"tests/python/{file}.py" for file in sorted({"test_compatibility", *files})]


def outcomes(reports: list[str]) -> dict[str, str]:
    """file.function[parameters] -> "yes", "no" or "skipped"; of several reports the last counts."""
    found = {}
    for case in (c for r in reports for c in ElementTree.parse(r).getroot().iter("testcase")):
        file = case.get("classname", "").split(".")[-1]
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "no"
        else:
            outcome = "yes" if case.find("skipped") is None else "skipped"
        noted = {p.get("name"): p.get("value") for p in case.iter("property")}
        if outcome == "yes" and noted.get("slack", "met") != "met":
            outcome = "yes, above the slack"
        found[f"{file}.{case.get('name', '')}"] = outcome
    return found


def cell(found: dict[str, str], kinds: tuple[str, ...], column: int) -> str:
    """What the column says of all kinds of a feature."""
    _, test, parameter = COLUMNS[column]
    each = {}
    for kind in kinds:
        parameters = f"{kind}-{parameter}" if parameter else kind
        each[kind] = found.get(f"test_compatibility.{test}[{parameters}]", "not run")
    if len(set(each.values())) == 1:
        return next(iter(each.values()))
    return "; ".join(f"{kind}: {outcome}" for kind, outcome in each.items())


def of_programs(found: dict[str, str], tests: tuple[str, ...]) -> str:
    """What all of the tests say."""
    each = set()
    for test in tests:
        pattern = re.escape(test).replace(r"\*", ".*")
        named = {outcome for name, outcome in found.items() if re.fullmatch(pattern, name)}
        each |= named or {"not run"}
    return next(iter(each)) if len(each) == 1 else "no"


def table(found: dict[str, str]) -> str:
    """The tables, the list of what each kind does, what is not so, and what is left out."""
    lines = ["| what | " + " | ".join(heading for heading, *_ in COLUMNS) + " |"]
    lines.append("|---" * (1 + len(COLUMNS)) + "|")
    for feature, kinds in FEATURES.items():
        cells = (cell(found, kinds, column) for column in range(len(COLUMNS)))
        lines.append(f"| {feature} | " + " | ".join(cells) + " |")
    lines += ["", "What the steps do:", ""]
    for kind in dict.fromkeys(kind for kinds in FEATURES.values() for kind in kinds):
        text = " ".join((KINDS[kind].__doc__ or "").split())
        lines.append(f"- `{kind}`: {text}")
    lines += ["", "What programs do around steps:", ""]
    lines += ["| what | as without poet | tests |", "|---|---|---|"]
    for line, tests in PROGRAMS.items():
        named = ", ".join(f"`{test}`" for test in tests)
        lines.append(f"| {line} | {of_programs(found, tests)} | {named} |")
    lines += ["", "## Known limits", "", *(f"- {limit}" for limit in LIMITS)]
    lines += ["", "## Skipped, and why", "", *skips.table()]
    return "\n".join(lines)


def main(reports: list[str]) -> None:
    """Replaces what stands between the marks in docs/compatibility.md."""
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(outcomes(reports))}\n{END}{after}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--tests"]:
        print(*tests())
    else:
        main(sys.argv[1:])
