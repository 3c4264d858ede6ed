"""A demo's table and its picture, from the records of the three runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from _curves import MIB, NAMES, draw_curves
from _state import differences

_PLURALS = {"loss": "losses", "optimizer": "optimizer states", "generator": "generator states"}
_BATCH_NORM = ("running_mean", "running_var", "num_batches_tracked")


def table(records: dict[str, dict[str, Any]]) -> str:
    """What the runs held, took and reached, a row each, and below it why a run is not identical."""
    plain = records["plain"]
    head = ["", "peak memory", "", "time a step", "", "accuracy", "same bits as plain"]
    rows = [head]
    notes = []
    for form, record in records.items():
        reason = difference(record, plain)
        rows.append(
            [
                NAMES[form],
                f"{record['peak_bytes'] / MIB:.1f} MiB" if record["peak_bytes"] else "-",
                _change(record["peak_bytes"], plain["peak_bytes"]) if form != "plain" else "",
                f"{1000 * record['step_seconds']:.0f} ms" if record["step_seconds"] else "-",
                _change(record["step_seconds"], plain["step_seconds"]) if form != "plain" else "",
                f"{100 * record['accuracy']:.1f} %",
                "-" if form == "plain" else "no" if reason else "yes",
            ]
        )
        if form != "plain":
            compared = len(plain["digests"])
            notes.append(
                f"{NAMES[form]}: {reason}"
                if reason
                else f"{NAMES[form]}: all {compared} parameters, gradients, buffers, optimizer "
                "states, losses and the generator are bit-equal to plain"
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [_line(row, widths) for row in rows]
    lines.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join([*lines, "", *notes])


def _line(row: list[str], widths: list[int]) -> str:
    cells = [row[0].ljust(widths[0])]
    cells += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
    return "  ".join(cells).rstrip()


def _change(own: float | None, plain: float | None) -> str:
    return "" if not own or not plain else f"{100 * (own / plain - 1):+.0f} %"


def difference(record: dict[str, Any], plain: dict[str, Any]) -> str:
    """Why a run is not identical to the plain one, found by comparing; "" when it is."""
    names = differences(record["digests"], plain["digests"])
    if not names:
        return ""
    kinds = Counter(name.split(" ")[0] for name in names)
    what = " and ".join(_count(number, kind) for kind, number in sorted(kinds.items()))
    ours, theirs = record["batch_norm_updates"], plain["batch_norm_updates"]
    ratios = {ours[name] / theirs[name] for name in theirs if ours[name] != theirs[name]}
    if all(name.endswith(_BATCH_NORM) for name in names) and ratios == {2.0}:
        example = next(name for name in theirs if ours[name] != theirs[name])
        return (
            f"{what} of BatchNorm differ, nothing else: recomputing the forward pass updates its "
            f"running statistics a second time ({example} is {ours[example]}, "
            f"plain {theirs[example]})"
        )
    return f"{what} differ, the first is {names[0]}"


def second_opinion(poet: dict[str, Any], plain: dict[str, Any], again: dict[str, Any]) -> str:
    """Whose the difference between poet's run and a plain one is, by a second plain run."""
    between = difference(again, plain)
    if not between:
        return "Two plain runs agree in every bit: the difference is poet's. Please report it."
    ours = difference(poet, again)
    return (
        f"Two plain runs differ from one another ({between}), as kernels on several threads may on "
        "a machine that is busy: there are no bits to agree with. poet's run "
        + (
            f"differs from the second plain one too ({ours})."
            if ours
            else "is the second, bit by bit."
        )
        + " With --threads 1 plain runs agree."
    )


def _count(number: int, kind: str) -> str:
    return f"{number} {kind if number == 1 else _PLURALS.get(kind, kind + 's')}"


def picture(records: dict[str, dict[str, Any]], path: Path, caption: str) -> None:
    """Draws one late step of each run: memory against time."""
    import matplotlib as mpl  # noqa: PLC0415  the training processes do not draw

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(10, 5.4), layout="constrained")
    curves = {form: record["curve"] for form, record in records.items()}
    draw_curves(axes, curves, records["plain"]["fixed_bytes"])
    axes.set_title(caption, loc="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
