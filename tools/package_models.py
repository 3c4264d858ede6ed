"""Writes docs/package-models.md from what the tests found.

    python -m pytest -o junit_family=xunit1 tests/python/test_package_zoo.py --junitxml=REPORT
    python tools/package_models.py REPORT

(`make compatibility` does both.) The models are in tests/python/package_zoo.py.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "package-models.md"
sys.path.insert(0, str(ROOT / "tests" / "python"))

from package_zoo import MODELS, NOT_TRIED  # noqa: E402

TEST = "test_a_model_of_a_package_trains_to_the_same_bits"
BEGIN, END = "<!-- table:begin -->", "<!-- table:end -->"


def outcomes(reports: list[str]) -> dict[str, dict[str, str]]:
    """Model -> what the test noted, with "bits": yes or no; of several reports the last counts."""
    found = {}
    for case in (c for r in reports for c in ElementTree.parse(r).getroot().iter("testcase")):
        name = case.get("name", "")
        if not name.startswith(TEST + "["):
            continue
        noted = {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
        failure = case.find("failure") if case.find("error") is None else case.find("error")
        noted["bits"] = "yes" if failure is None else "no"
        noted["error"] = "" if failure is None else failure.get("message", "").split("\n")[0]
        found[name[len(TEST) + 1 : -1]] = noted
    return found


def row(name: str, noted: dict[str, str]) -> str:
    """A line of the table."""
    model = MODELS[name]
    followed, budget = noted.get("followed", "-"), noted.get("budget", "-")
    remark = noted.get("error") or model.unplanned
    bits = noted.get("bits", "not run")
    return (
        f"| {name} | {model.package} {version(model.package)} | {model.optimizer} | {bits} "
        f"| {budget} | {followed} | {noted.get('recomputes', '-')} | {remark} |"
    )


def table(found: dict[str, dict[str, str]]) -> str:
    """The table, and what is missing in it."""
    lines = [
        f"With torch {version('torch')}:",
        "",
        "| model | package | optimizer | same bits | budget | steps that followed a plan "
        "| recomputes | |",
        "|---" * 8 + "|",
        *(row(name, found.get(name, {})) for name in MODELS),
        "",
        "What was not tried, and why:",
        "",
        *(f"- {line}" for line in NOT_TRIED),
    ]
    return "\n".join(lines)


def main(reports: list[str]) -> None:
    """Replaces what stands between the marks in docs/package-models.md."""
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(outcomes(reports))}\n{END}{after}")


if __name__ == "__main__":
    main(sys.argv[1:])
