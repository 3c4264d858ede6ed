"""The picture of a comparison: memory against time and energy, one line a method."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from poet._outputs import check_picture, load_figure

if TYPE_CHECKING:
    from poet._compare import Comparison

_MARKERS = "osD^v<>pPX*hdH1234"
_OURS = "poet"


def draw(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Two panels side by side; the methods without any plan are named below the legend."""
    check_picture(path)
    plain = comparison.plain
    figure = load_figure()(figsize=(11, 5), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    axes = (
        (panels[0], "makespan_seconds", plain.makespan_seconds, "time of the step / plain"),
        (panels[1], "energy_joules", plain.energy_joules, "energy of the step / plain"),
    )
    asked = list(dict.fromkeys(row.method for row in comparison.rows))
    names = list(dict.fromkeys(row.method for row in comparison.rows if row.peak_bytes is not None))
    for panel, field, unit, title in axes:
        for i, name in enumerate(names):
            points = sorted(
                (row.peak_bytes / plain.peak_bytes, getattr(row, field) / unit)
                for row in comparison.rows
                if row.method == name and row.peak_bytes is not None
            )
            panel.plot(
                [x for x, _ in points],
                [y for _, y in points],
                marker=_MARKERS[i % len(_MARKERS)],
                color=f"C{i % 10}",
                linestyle="-" if i < 10 else "--",
                linewidth=2.5 if name == _OURS else 1,
                zorder=3 if name == _OURS else 2,
                label=name,
            )
        panel.axhline(1, color="grey", linewidth=0.8)
        panel.set_xlabel("peak memory / plain")
        panel.set_ylabel(title)
        panel.grid(alpha=0.3)
    if names:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    without = [name for name in asked if name not in names]
    if without:
        figure.supxlabel("no plan: " + ", ".join(without), fontsize=8, wrap=True)
    figure.savefig(path, dpi=150)
