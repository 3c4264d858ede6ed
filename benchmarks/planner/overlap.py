"""How far plans with overlapped transfers are from an exhaustive search, on small random graphs.

    python benchmarks/planner/overlap.py [--tests build/dev/tests/cpp/poet_core_tests] [--save]

The search knows of no time of transfers: with those for nothing it bounds from below what any
schedule costs. Runs the test that checks that no plan is better (Optimality.WithOverlap...) and
keeps what it counted: on how many graphs plans cost no more than that bound, and by how much the
others do, in percent of the plain step's objective.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from _data import context, save

TEST = "Optimality.WithOverlapNoPlanIsBetterThanFreeTransfers"
TESTS = Path(__file__).resolve().parents[2] / "build" / "dev" / "tests" / "cpp" / "poet_core_tests"


def counted(report: dict[str, Any]) -> dict[str, float]:
    """The figures in GoogleTest's report of that test.

    Raises:
        ValueError: the test failed, or did not run.
    """
    tests = [test for suite in report["testsuites"] for test in suite["testsuite"]]
    if len(tests) != 1 or tests[0].get("failures") or "compared" not in tests[0]:
        raise ValueError(f"{TEST} failed or did not run")
    (test,) = tests
    return {
        "compared": int(test["compared"]),
        "attained": int(test["attained"]),
        "mean_beyond_percent": float(test["mean_beyond_percent"]),
        "most_beyond_percent": float(test["most_beyond_percent"]),
    }


def main() -> None:
    """Runs the test and, with --save, keeps what it counted under data/."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tests", type=Path, default=TESTS, help="GoogleTest binary of poet_core")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    if not options.tests.is_file():
        sys.exit(f"overlap.py: expected the binary of the tests at {options.tests}: make test-cpp")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [str(options.tests), f"--gtest_filter={TEST}", f"--gtest_output=json:{path}"]
        subprocess.run(command, check=False, stdout=sys.stderr)
        figures = counted(json.loads(path.read_text(encoding="utf-8")))
    if options.save:
        save("planner_overlap_exhaustive", {**context(), **figures})
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
