"""A saved plan's step and device lie beside it: plan.json, plan.graph.json, plan.device.json."""

from __future__ import annotations

import os
from pathlib import Path

from poet import _C
from poet._errors import PoetError


def beside(plan: str | os.PathLike[str], what: str) -> Path:
    """plan.json -> plan.graph.json, where `what` is "graph"."""
    path = Path(os.fsdecode(plan))
    return path.with_name(f"{path.stem}.{what}.json")


def device_beside(plan: str | os.PathLike[str]) -> _C.DeviceProfile | None:
    """The device beside a plan; None where there is none.

    Raises:
        FormatError: the file is no device.
    """
    path = beside(plan, "device")
    if not path.is_file():
        return None
    return _C.DeviceProfile.from_json(path.read_text(encoding="utf-8"))


def found_beside(
    plan: str | os.PathLike[str], schedule: _C.Schedule
) -> tuple[_C.Graph | None, _C.DeviceProfile | None]:
    """What `Schedule.load` takes along: the step and the device, where they are there and fit."""
    try:
        graph = _C.Graph.load(beside(plan, "graph"))
        schedule.check_against(graph)
    except (PoetError, OSError):
        return None, None
    try:
        return graph, device_beside(plan)
    except (PoetError, OSError, UnicodeDecodeError):
        return graph, None


__all__ = ["beside", "device_beside", "found_beside"]
