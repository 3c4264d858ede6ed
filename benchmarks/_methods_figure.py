"""The picture of compare_methods.py: what each method pays for less memory, planned and live."""

from __future__ import annotations

import statistics
from typing import Any

import matplotlib.pyplot as plt

from _curves import COLOURS, finish
from _planner_figures import LABELS

_MARKERS = "osD^v<>pPX*hdH1234"
_HIGHEST = 2.0  # times the plain step: what is dearer is drawn at the edge


def methods_on_steps(cells: list[dict[str, Any]]) -> Any:
    """Above: peak against time by the simulator. Below: simulated against live time."""
    names = list(dict.fromkeys(cell["step"] for cell in cells))
    methods = list(dict.fromkeys(row["method"] for cell in cells for row in cell["rows"]))
    figure, rows = plt.subplots(
        2, len(names), figsize=(4.6 * len(names), 8.6), layout="constrained", squeeze=False
    )
    for name, above, below in zip(names, rows[0], rows[1], strict=True):
        own = [cell for cell in cells if cell["step"] == name]
        for number, method in enumerate(methods):
            style = {
                "marker": _MARKERS[number % len(_MARKERS)],
                "color": COLOURS["poet"] if method == "poet" else plt.get_cmap("tab20")(number),
                "lw": 2.5 if method == "poet" else 1,
                "zorder": 3 if method == "poet" else 2,
                "label": method,
            }
            planned = sorted(_planned(own, method))
            above.plot([x for x, _ in planned], [y for _, y in planned], **style)
            trained = _trained(own, method)
            below.plot([x for x, _ in trained], [y for _, y in trained], **style | {"lw": 0})
        if any(_trained(own, method) for method in methods):
            below.plot([1, _HIGHEST], [1, _HIGHEST], color="#333", lw=1, ls=(0, (1, 2)))
        else:
            below.set_axis_off()
            below.text(0.5, 0.5, "no plan measured live", ha="center", transform=below.transAxes)
        above.set_title(LABELS[name], loc="left")
        above.set_xlabel("peak / plain, by the simulator")
        above.set_ylabel("time / plain, by the simulator")
        below.set_xlabel("time / plain, by the simulator")
        below.set_ylabel("time / plain, live")
        for axes in (above, below):
            finish(axes)
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)
    figure.suptitle(
        f"methods at shares of the plain peak, forward and backward, one thread; dearer than "
        f"{_HIGHEST:g} times plain: at the edge",
        x=0.01,
        ha="left",
        fontsize=10,
    )
    return figure


def _planned(cells: list[dict[str, Any]], method: str) -> list[tuple[float, float]]:
    return [
        (
            row["peak_bytes"] / cell["plain"]["peak_bytes"],
            min(_HIGHEST, row["makespan_seconds"] / cell["plain"]["makespan_seconds"]),
        )
        for cell in cells
        for row in cell["rows"]
        if row["method"] == method and "makespan_seconds" in row
    ]


def _trained(cells: list[dict[str, Any]], method: str) -> list[tuple[float, float]]:
    found = []
    for cell in cells:
        if "plain_live_medians" not in cell:
            continue
        plain = statistics.median(cell["plain_live_medians"])
        for row in cell["rows"]:
            if row["method"] == method and "live_medians" in row:
                simulated = row["makespan_seconds"] / cell["plain"]["makespan_seconds"]
                live = statistics.median(row["live_medians"]) / plain
                found.append((min(_HIGHEST, simulated), min(_HIGHEST, live)))
    return found
