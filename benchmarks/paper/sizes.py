"""What goes to a device: the bytes of a plan, for every preset."""

from __future__ import annotations

import functools
from typing import Any

import poet
from paper.store import Row
from poet._models import ModelRequest
from poet._presets import find_preset

KIND = "plan of a preset"
PLATFORM = "m4"
# Percent of the plain peak: the first one that has a plan within the time.
SHARES = (50, 70, 90)


def keys(quick: bool = False) -> list[dict[str, Any]]:
    """Every preset."""
    names = ["linear"] if quick else poet.preset_names()
    return [{"model": name, "platform": PLATFORM} for name in names]


@functools.lru_cache(maxsize=1)
def recorded(model: str) -> poet.Graph:
    """A step with SGD of one input."""
    return ModelRequest(model).graph(None)


def measure(model: str, platform: str, seconds: float) -> Row:
    """The plan's size in both forms."""
    row: Row = {"title": find_preset(model).title}
    for share in SHARES:
        schedule = poet.solve(
            graph=recorded(model),
            platform=platform,
            ram_budget=f"{share}%",
            time_limit_s=seconds,
            cache_dir=None,
        )
        row["status"] = str(schedule.status)
        if schedule.has_plan:
            graph = schedule.traced_graph
            assert graph is not None
            return row | {
                "share": share,
                "ops": len(graph),
                "actions": len(schedule.actions),
                "recomputed_ops": sum(len(action.ops) for action in schedule.actions),
                "page_outs": schedule.page_outs,
                "peak_bytes": schedule.peak_bytes,
                "plan_bytes": len(schedule.to_bytes()),
                "json_bytes": len(schedule.to_json().encode()),
            }
    return row
