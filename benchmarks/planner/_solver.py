"""Runs `poet-solver` on files, one process a solve, and reads the schedule that it writes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_GRACE_S = 20.0  # past its time limit, before it is killed


def solver_path() -> str:
    """$POET_SOLVER, the `poet-solver` of the search path, or that of poet where it is installed.

    Raises:
        SystemExit: none is there.
    """
    found = os.environ.get("POET_SOLVER") or shutil.which("poet-solver") or _installed()
    if found is None:
        sys.exit(
            "poet-solver: not on the search path, and poet is not installed; name it in the "
            "environment variable POET_SOLVER"
        )
    return found


def _installed() -> str | None:
    """In poet's package, which is not imported."""
    poet = importlib.util.find_spec("poet")
    folders = poet.submodule_search_locations if poet is not None else None
    places = [Path(folder) / "bin" / "poet-solver" for folder in folders or ()]
    return next((str(place) for place in places if place.is_file()), None)


@dataclass(frozen=True)
class Solve:
    """What one process found.

    Attributes:
        seconds: wall time of the process, reading and writing of files included.
        schedule: the schedule file's content; None where the process was killed or failed.
        failure: why there is none.
    """

    seconds: float
    schedule: dict[str, Any] | None
    failure: str = ""


def run(graph: Path, profile: Path, out: Path, options: dict[str, Any]) -> Solve:
    """Solves once. `options` are those of `poet-solver --help`, without the dashes."""
    limit = float(options["time-limit"])
    command = [solver_path(), "--graph", str(graph), "--profile", str(profile), "--out", str(out)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    out.unlink(missing_ok=True)
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=limit + _GRACE_S
        )
    except subprocess.TimeoutExpired:
        return Solve(time.perf_counter() - begin, None, "killed past its time limit")
    seconds = time.perf_counter() - begin
    if done.returncode != 0:
        return Solve(seconds, None, done.stderr.strip() or f"exit status {done.returncode}")
    return Solve(seconds, json.loads(out.read_text(encoding="utf-8")))
