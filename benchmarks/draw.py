"""Draws figures/*.png from data/*.json. Measures nothing.

python benchmarks/draw.py
"""

from __future__ import annotations

from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from _curves import COLOURS, MIB, NAMES, draw_curves, finish
from _data import FIGURES, load, measured
from _methods_figure import methods_on_steps
from _planner_figures import cost_over_budget, gap_over_time, time_over_size

ARCHITECTURES = ("resnet18", "gpt2", "bert")  # in the order of the columns


def main() -> None:
    """Entry point."""
    FIGURES.mkdir(exist_ok=True)
    _save(peak_and_time(load("comparison_resnet18"), load("steps_resnet18")), "peak_and_time")
    _save(memory_in_a_step(load("exactness_resnet18")), "memory_in_a_step")
    if transformers := [name for name in ("gpt2", "bert") if measured(f"comparison_{name}")]:
        records = [load(f"comparison_{name}") for name in transformers]
        _save(beside_checkpoint(records), "transformers_peak_and_time")
    if compiled := [name for name in ARCHITECTURES if measured(f"compiled_{name}")]:
        _save(beside_compile([load(f"compiled_{name}") for name in compiled]), "compiled")
    if measured("planner_course"):
        course = load("planner_course")
        _save(gap_over_time(course["search"]), "planner_gap")
        _save(cost_over_budget(course["budgets"]), "planner_budgets")
        _save(time_over_size(course["search"]), "planner_sizes")
    if measured("compare_methods"):
        _save(methods_on_steps(load("compare_methods")["cells"]), "compare_methods")


def _save(figure: Any, name: str) -> None:
    path = FIGURES / f"{name}.png"
    # No date and no version of matplotlib inside: the same data gives the same file.
    figure.savefig(path, dpi=150, metadata={"Software": None})
    plt.close(figure)
    print(path)


def peak_and_time(comparison: dict[str, Any], steps: dict[str, Any]) -> Any:
    """What less memory costs: forward and backward on the left, whole steps on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    _forms(left, comparison)
    left.set_title("forward and backward", loc="left")
    plain = steps["plain"]
    _point(right, plain["peak_bytes"] / MIB, 0, COLOURS["plain"], "plain")
    for row in steps["slacks"]:
        extra = row["rounds"]["extra_percent"]["poet"]
        label = f"poet, slack {row['slack']:g}: {extra:+.1f} %"
        x = row["budget_bytes"] / MIB
        _point(right, x, extra, COLOURS["poet"], label)
        _quartiles(right, x, row["rounds"], "poet")
    right.axvline(plain["fixed_bytes"] / MIB, color="#333", lw=1, ls=(0, (1, 2)))
    right.annotate(
        "parameters, gradients,\nAdamW's state and temporaries",
        (plain["fixed_bytes"] / MIB, 0.03),
        xycoords=("data", "axes fraction"),
        xytext=(5, 0),
        textcoords="offset points",
        va="bottom",
        fontsize=8,
        color="#333",
    )
    right.set_xlabel("budget, MiB")
    right.set_title("whole AdamW steps", loc="left")
    _finish(left, right)
    figure.suptitle(
        "ResNet-18, batch 32, one thread; median and quartiles", x=0.01, ha="left", fontsize=10
    )
    return figure


def beside_checkpoint(comparisons: list[dict[str, Any]]) -> Any:
    """Forward and backward of each architecture: plain, checkpointed, poet at checkpoint's peak."""
    figure, found = plt.subplots(
        1, len(comparisons), figsize=(5.5 * len(comparisons), 4.6), layout="constrained"
    )
    all_axes = [found] if len(comparisons) == 1 else list(found)
    for axes, comparison in zip(all_axes, comparisons, strict=True):
        _forms(axes, comparison)
        axes.set_title(comparison["architecture"].upper().replace("GPT2", "GPT-2"), loc="left")
    _finish(*all_axes)
    figure.suptitle(
        "forward and backward, six layers of 256, batch 4 x 128, one thread; median and quartiles",
        x=0.01,
        ha="left",
        fontsize=10,
    )
    return figure


def beside_compile(records: list[dict[str, Any]]) -> Any:
    """torch.compile's memory budgets and poet at the same peaks: extra time, and milliseconds."""
    figure, rows = plt.subplots(
        2, len(records), figsize=(5 * len(records), 7.5), layout="constrained", squeeze=False
    )
    for record, extra, absolute in zip(records, rows[0], rows[1], strict=True):
        own = record["parameter_bytes"]
        seconds = record["rounds"]["seconds"]
        for form, colour, first in (
            ("compiled", COLOURS["checkpoint"], ("compiled@1", record["compiled_peak_bytes"]["1"])),
            ("poet", COLOURS["poet"], ("plain", record["plain_peak_bytes"])),
        ):
            points = [p for p in record["points"] if p[f"{form}_extra_percent"] is not None]
            peaks = [(p[f"{form}_peak_bytes"] - own) / MIB for p in points]
            label = "torch.compile" if form == "compiled" else "poet"
            extras = [p[f"{form}_extra_percent"][1] for p in points]
            extra.plot(peaks, extras, "o", color=colour, label=label)
            for x, p in zip(peaks, points, strict=True):
                low, _, high = p[f"{form}_extra_percent"]
                extra.plot([x, x], [low, high], color=colour, lw=2, alpha=0.5)
            absolute.plot(peaks, [p[f"{form}_ms"] for p in points], "o", color=colour)
            times = sorted(seconds[first[0]])
            unconstrained = ((first[1] - own) / MIB, 1000 * times[len(times) // 2])
            absolute.plot(*unconstrained, "s", color=colour, label=f"{label}, unconstrained")
        extra.set_title(record["architecture"].upper().replace("GPT2", "GPT-2"), loc="left")
        extra.set_ylabel("extra over its own unconstrained step, %")
        absolute.set_ylabel("forward and backward, ms")
        absolute.set_ylim(bottom=0)
        absolute.set_xlabel("peak above the parameters, MiB")
        for axes in (extra, absolute):
            axes.legend(frameon=False, fontsize=9)
            finish(axes)
    return figure


def _forms(axes: Any, comparison: dict[str, Any]) -> None:
    """Each form's peak and extra time."""
    own = comparison["parameter_bytes"]
    for form, peak in comparison["peak_bytes"].items():
        extra = comparison["rounds"]["extra_percent"][form]
        label = NAMES[form] if form == "plain" else f"{NAMES[form]}: {extra:+.1f} %"
        _point(axes, (peak - own) / MIB, extra, COLOURS[form], label)
        _quartiles(axes, (peak - own) / MIB, comparison["rounds"], form)
    axes.set_xlabel("peak above the parameters, MiB")


def _finish(*all_axes: Any) -> None:
    for axes in all_axes:
        axes.set_ylabel("extra time, %")
        axes.margins(x=0.28, y=0.15)
        finish(axes)


def _point(axes: Any, x: float, y: float, colour: str, label: str) -> None:
    axes.plot(x, y, "o", color=colour, ms=8)
    axes.annotate(
        label, (x, y), xytext=(8, 5), textcoords="offset points", fontsize=9, color=colour
    )


def _quartiles(axes: Any, x: float, rounds: dict[str, Any], form: str) -> None:
    """A bar from the lower to the upper quartile of the rounds."""
    low, _, high = rounds["extra_percent_quartiles"][form]
    axes.plot([x, x], [low, high], color=COLOURS[form], lw=2, alpha=0.5, solid_capstyle="butt")


def memory_in_a_step(exactness: dict[str, Any]) -> Any:
    """One AdamW step of each form: bytes resident against time."""
    figure, axes = plt.subplots(figsize=(10, 5.4), layout="constrained")
    draw_curves(axes, exactness["curves"], exactness["plain"]["fixed_bytes"])
    axes.set_title("One AdamW step of ResNet-18, batch 32, one thread", loc="left")
    return figure


if __name__ == "__main__":
    main()
