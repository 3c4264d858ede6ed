"""The planner's figures: gap over time, cost over budget, time over the size of the graph."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt

from _curves import COLOURS, finish

LABELS = {
    "resnet18": "ResNet-18",
    "gpt2": "GPT-2",
    "bert": "BERT",
    "unet3d": "U-Net 3D",
    "vit": "ViT",
    "t5": "T5",
    "lstm": "LSTM",
    "densenet121": "DenseNet-121",
    "bert24": "BERT, 24 layers",
    "gpt2_48": "GPT-2, 48 layers",
    "gpt2_micro8": "GPT-2, 8 micro-batches",
}
_LEAST_SECONDS = 0.03  # left end of the axes of time
_LEAST_GAP = 0.01  # percent: less is drawn there
_WITHIN = 1.0  # percent of the plain step's cost from the plan found last
_MODES = {"recompute": (COLOURS["poet"], "recomputing"), "paging": ("#2a9d5c", "with paging")}


def gap_over_time(cells: list[dict[str, Any]]) -> Any:
    """(value - bound) / value of each step from its first plan on."""
    figure, axes = plt.subplots(figsize=(10, 5.4), layout="constrained")
    colours = plt.get_cmap("tab20")
    for number, cell in enumerate(cells):
        points = [p for p in cell["history"] if p["extra_percent"] is not None]
        if not points:
            continue
        gaps = [_gap(point) for point in points]
        times = [max(point["seconds"], _LEAST_SECONDS) for point in points]
        label = f"{LABELS[cell['graph']]}: {gaps[-1]:.2g} % after {times[-1]:.0f} s"
        axes.step(
            [*times, max(cell["limit_seconds"], times[-1])],
            [max(gap, _LEAST_GAP) for gap in [*gaps, gaps[-1]]],
            where="post",
            color=colours(number % 20),
            lw=1.5,
            label=label,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("seconds since the solve began (of work)")
    axes.set_ylabel("gap to the proven bound, % of the plan's cost")
    axes.set_title(
        f"How fast plans are proven, slack {cells[0]['slack']:g}, recomputing", loc="left"
    )
    finish(axes)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def cost_over_budget(cells: list[dict[str, Any]]) -> Any:
    """What less memory costs, and the bound below which no plan can be."""
    names = list(dict.fromkeys(cell["graph"] for cell in cells))
    figure, found = plt.subplots(
        1, len(names), figsize=(5.5 * len(names), 4.6), layout="constrained"
    )
    for axes, name in zip([found] if len(names) == 1 else list(found), names, strict=True):
        for mode, (colour, label) in _MODES.items():
            row = [c for c in cells if c["graph"] == name and c["mode"] == mode]
            plans = [c for c in row if c["extra_percent"] is not None]
            slacks = [c["slack"] for c in plans]
            extra = [c["extra_percent"] for c in plans]
            bounds = [c["bound_extra_percent"] for c in plans]
            axes.plot(slacks, extra, "o-", color=colour, ms=5, label=label)
            axes.fill_between(slacks, bounds, extra, color=colour, alpha=0.25, lw=0)
            for cell in row:
                if cell["extra_percent"] is None:
                    axes.plot(cell["slack"], 0, "x", color=colour, ms=7)
        axes.set_xlabel("slack: 1 is plain training's peak, 0 what nothing can be done without")
        axes.set_ylabel("extra energy, %")
        axes.set_title(LABELS[name], loc="left")
        axes.set_ylim(bottom=0)
        axes.invert_xaxis()
        finish(axes)
        axes.legend(frameon=False, loc="upper left")
    figure.suptitle(
        "plans (points) and proven bounds (lower edge of the band); x: no plan",
        x=0.01,
        ha="left",
        fontsize=10,
    )
    return figure


def time_over_size(cells: list[dict[str, Any]]) -> Any:
    """Seconds to the first plan, and to one that hardly got better."""
    figure, axes = plt.subplots(figsize=(9, 4.8), layout="constrained")
    styles = {
        "first plan": ("o", COLOURS["plain"]),
        "within 1 % of the last": ("s", COLOURS["poet"]),
    }
    for label, (marker, colour) in styles.items():
        found = [(cell["ops"], _seconds(cell, first=label == "first plan")) for cell in cells]
        shown = sorted((ops, seconds) for ops, seconds in found if seconds is not None)
        axes.plot(
            [ops for ops, _ in shown],
            [max(seconds, _LEAST_SECONDS) for _, seconds in shown],
            marker,
            color=colour,
            ms=7,
            label=label,
        )
    for cell in cells:
        seconds = _seconds(cell, first=False)
        if seconds is None:
            continue
        axes.annotate(
            LABELS[cell["graph"]],
            (cell["ops"], max(seconds, _LEAST_SECONDS)),
            xytext=(4, 6),
            textcoords="offset points",
            fontsize=7,
            rotation=25,
            color="#333",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operators of the step")
    axes.set_ylabel("seconds (of work)")
    axes.set_title(f"Time to plans, slack {cells[0]['slack']:g}, recomputing", loc="left")
    finish(axes)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 0.25))
    return figure


def _gap(point: dict[str, Any]) -> float:
    value = 100 + point["extra_percent"]
    bound = max(point["bound_extra_percent"] or 0.0, 0.0)
    return float(100 * (point["extra_percent"] - bound) / value)


def _seconds(cell: dict[str, Any], *, first: bool) -> float | None:
    plans = [point for point in cell["history"] if point["extra_percent"] is not None]
    if not plans:
        return None
    last = plans[-1]["extra_percent"]
    good = plans if first else [p for p in plans if p["extra_percent"] <= last + _WITHIN]
    return float(good[0]["seconds"])
