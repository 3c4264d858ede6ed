"""Where measurements are kept, and under which circumstances they were taken."""

from __future__ import annotations

import datetime
import functools
import json
import os
from pathlib import Path
from typing import Any

import torch

from bench import machine

DATA = Path(__file__).resolve().parent / "data"
FIGURES = Path(__file__).resolve().parent / "figures"

# Budget at slack r: S + r * (plain peak - S); see README.md.
SLACKS = (0.5, 0.35, 0.3)


def context() -> dict[str, Any]:
    """Machine, its load, torch's version and the time: what a figure depends on."""
    return {
        "machine": machine(),
        "load_1min": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
    }


def save(name: str, record: dict[str, Any]) -> Path:
    """Writes data/NAME.json."""
    DATA.mkdir(exist_ok=True)
    path = DATA / f"{name}.json"
    path.write_text(_text(record), encoding="utf-8")
    return path


def load(name: str) -> dict[str, Any]:
    """Reads data/NAME.json.

    Raises:
        FileNotFoundError: it was never measured.
    """
    record: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return record


def measured(name: str) -> bool:
    """Whether data/NAME.json is there."""
    return (DATA / f"{name}.json").is_file()


def _text(record: dict[str, Any]) -> str:
    """One key a line at the top; what is nested stays on its line, so that a diff can be read."""
    rows = []
    for key, value in record.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            inner = ",\n".join("    " + json.dumps(_short(item)) for item in value)
            rows.append(f"  {json.dumps(key)}: [\n{inner}\n  ]")
        else:
            rows.append(f"  {json.dumps(key)}: {json.dumps(_short(value))}")
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _short(value: Any) -> Any:
    """Times to the microsecond, and ratios to six digits: what is behind that is noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    return value


@functools.cache
def build() -> str:
    """Tells one build of poet from another, so that rows of an older one are measured again."""
    from poet._cache import digest  # noqa: PLC0415  other data need no poet
    from poet._plans import _build  # noqa: PLC0415

    return digest(_build())[:12]
