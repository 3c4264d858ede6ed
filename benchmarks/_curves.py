"""Names and colours of the three forms, and the drawing that demo and benchmarks share."""

from __future__ import annotations

from typing import Any

MIB = 2**20
NAMES = {"plain": "plain", "checkpoint": "torch checkpoint", "poet": "poet"}
COLOURS = {"plain": "#8a8f98", "checkpoint": "#d9822b", "poet": "#1667b7"}


def draw_curves(axes: Any, curves: dict[str, list[tuple[float, int]]], fixed: int) -> None:
    """Memory against time in one step: a line for each form, its peak marked.

    Args:
        axes: matplotlib's axes.
        curves: for each form seconds since the step began and bytes from then on.
        fixed: bytes that recomputing cannot make go away, drawn as a level.
    """
    highest = 0.0
    for form, curve in curves.items():
        if not curve:
            continue
        times = [1000 * seconds for seconds, _ in curve]
        held = [resident / MIB for _, resident in curve]
        peak = max(held)
        highest = max(highest, peak)
        label = f"{NAMES[form]}: {peak:.0f} MiB, {times[-1]:.0f} ms"
        axes.step(times, held, where="post", color=COLOURS[form], lw=1.5, label=label)
        axes.plot(times[held.index(peak)], peak, "o", color=COLOURS[form], ms=5)
        if form == "poet":
            axes.fill_between(times, held, step="post", color=COLOURS[form], alpha=0.1, lw=0)
    label = f"{fixed / MIB:.0f} MiB: parameters, gradients, AdamW's state and temporaries"
    axes.axhline(fixed / MIB, color="#333", lw=1, ls=(0, (1, 2)), label=label)
    axes.set_xlabel("time since the step began, ms")
    axes.set_ylabel("resident, MiB")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.22 * max(highest, fixed / MIB))
    finish(axes)
    axes.legend(frameon=False, loc="upper center", ncols=2, fontsize=9)


def finish(axes: Any) -> None:
    """The same frame and grid for every figure."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
