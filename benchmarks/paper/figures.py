"""Draws figures/paper_*.png from data/paper.json. Measures nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from _curves import finish
from paper import cells, chains
from paper.cells import OWN, PAGE, RECOMPUTE, TOGETHER
from paper.store import Row, Store
from poet._budgets import format_bytes
from poet._paper import paper_graph
from poet._plot import plot

# Okabe and Ito's colours, which people with any colour vision tell apart.
_STYLES = {
    TOGETHER: ("#0072B2", "o", "poet: both together"),
    RECOMPUTE: ("#D55E00", "s", "poet: recomputing alone"),
    PAGE: ("#CC79A7", "D", "poet: paging alone"),
    "pofo": ("#009E73", "^", "POFO"),
    "capuchin": ("#E69F00", "v", "Capuchin"),
    "dtr": ("#56B4E9", "P", "DTR"),
    "chen_greedy": ("#8a8f98", "X", "Chen, greedy"),
}
_SHOWN = {
    "m0": "MKR1000 (m0)",
    "m4": "nRF52840 (m4)",
    "a72": "Raspberry Pi 4B+ (a72)",
    "jetsontx2": "Jetson TX2",
}


def write(store: Store, folder: Path) -> list[Path]:
    """Draws all of them; returns where."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {
        "figure1": figure1(store),
        "figure2": figure2(store),
        "figure3": figure3(store),
        "figure4": figure4(store),
        "figure5": figure5(store),
        "growth": growth(store),
    }
    paths = []
    for name, figure in drawn.items():
        path = folder / f"paper_{name}.png"
        # No date and no version of matplotlib inside: the same data gives the same file.
        figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
        plt.close(figure)
        paths.append(path)
    return paths


def figure1(store: Store) -> Any:
    """How it goes, with the figures of one plan."""
    cell = cells.figure2()
    row = store.measured(cells.KIND, cell.key, dict)
    graph = paper_graph(cell.model)
    edges = sum(len(op.inputs) for op in graph.ops)
    boxes = [
        ("a training step", f"{cell.model}\n{len(graph)} ops, {edges} edges"),
        (
            "what its ops cost",
            f"on the {cell.platform}\n{row['plain_seconds']:.3f} s, {row['plain_joules']:.3f} J\n"
            f"peak {format_bytes(row['plain_peak_bytes'])}",
        ),
        (
            "poet: least energy",
            f"memory ≤ {format_bytes(row['ram_bytes'])}\n"
            f"time ≤ {cell.runtime:g} x {row['plain_seconds']:.3f} s",
        ),
        (
            "a plan for the device",
            f"{row['recomputed_ops']} ops again, {row['page_outs']} page-outs\n"
            f"{cells.extra(row):+.2%} energy, {cells.extra(row, 'seconds'):+.1%} time\n"
            f"{row['plan_bytes']} bytes",
        ),
    ]
    figure, axes = plt.subplots(figsize=(12.5, 2.2))
    axes.set_xlim(0, len(boxes))
    axes.set_ylim(0, 1)
    axes.axis("off")
    for index, (title, text) in enumerate(boxes):
        patch = mpl.patches.FancyBboxPatch(
            (index + 0.06, 0.12),
            0.78,
            0.76,
            boxstyle="round,pad=0.02",
            facecolor="#e8f1f8" if index == 2 else "#f5f5f5",
            edgecolor="#0072B2" if index == 2 else "#8a8f98",
        )
        axes.add_patch(patch)
        axes.text(index + 0.45, 0.74, title, ha="center", va="center", fontsize=10, weight="bold")
        axes.text(index + 0.45, 0.4, text, ha="center", va="center", fontsize=8.5)
        if index:
            axes.annotate(
                "",
                (index + 0.03, 0.5),
                (index - 0.13, 0.5),
                arrowprops={"arrowstyle": "-|>", "lw": 2, "color": "#444"},
            )
    return figure


def figure2(store: Store) -> Any:
    """One plan: ops against time, and memory."""
    cell = cells.figure2()
    row = store.measured(cells.KIND, cell.key, dict)
    graph, _ = cells.step_of(cell.model, cell.platform, cell.cost_model)
    return plot(cells.schedule_of(row), None, graph, cells.device_of(cell.platform, "paper"))


def figure3(store: Store) -> Any:
    """Energy against the memory budget: a row a network, a column a device."""
    figure, grid = plt.subplots(
        len(cells.MODELS),
        len(cells.PLATFORMS),
        figsize=(14, 9),
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for across, model in zip(grid, cells.MODELS, strict=True):
        for axes, platform in zip(across, cells.PLATFORMS, strict=True):
            for method in _STYLES:
                _curve(axes, _rows(store, model, platform, method), method)
            axes.set_yscale("symlog", linthresh=0.1)
            axes.set_ylim(0, 100)
            axes.set_yticks([0, 0.1, 1, 10, 100], ["0", "0.1", "1", "10", "100"])
            axes.set_xlim(0, 100)
            finish(axes)
            axes.set_title(f"{model} on {_SHOWN[platform]}", loc="left", fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("memory budget, % of the plain step's peak")
    for axes in grid[:, 0]:
        axes.set_ylabel("energy above the plain step's, %")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _curve(axes: Any, rows: list[Row], method: str) -> None:
    colour, marker, label = _STYLES[method]
    points = sorted((r["key"]["ram"], _percent(r)) for r in rows if r["key"]["ram"] in cells.SHARES)
    main = method == TOGETHER
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        marker=marker,
        color=colour,
        label=label,
        lw=2 if main else 1,
        ms=7 if main else 5,
        alpha=0.9,
        zorder=3 if main else 2,
    )


def _rows(
    store: Store, model: str, platform: str, method: str, cost_model: str = "paper"
) -> list[Row]:
    """Those of budgets for which there is a plan, at Figure 3's deadline."""
    return [
        row
        for row in store.of_kind(cells.KIND)
        if row["key"]["model"] == model
        and row["key"]["platform"] == platform
        and row["key"]["method"] == method
        and row["key"]["cost_model"] == cost_model
        and row["key"]["minimize"] == "energy"
        and row["key"]["runtime"] == cells.RUNTIME
        and "joules" in row
    ]


def _percent(row: Row) -> float:
    return max(0.0, 100 * cells.extra(row))


def figure4(store: Store) -> Any:
    """Energy at each deadline: both together, and each alone."""
    asked = cells.figure4()
    places = list(dict.fromkeys((cell.model, cell.platform) for cell in asked))
    figure, grid = plt.subplots(2, 2, figsize=(12, 7), layout="constrained")
    for axes, (model, platform) in zip(grid.flat, places, strict=True):
        for offset, method in zip((-0.27, 0, 0.27), OWN, strict=True):
            colour, _, label = _STYLES[method]
            for index, deadline in enumerate(cells.DEADLINES):
                key = cells.Cell(model, platform, cells.TIGHT, deadline, method).key
                row = store.measured(cells.KIND, key, dict)
                planned = "joules" in row
                height = _percent(row) if planned else 0.0
                axes.bar(
                    index + offset, height, 0.25, color=colour, label=label if not index else None
                )
                text = f"{height:.2g}" if planned else "no plan"
                axes.annotate(
                    text,
                    (index + offset, height),
                    xytext=(0, 2),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7,
                    rotation=0 if planned else 90,
                    color=colour,
                )
        axes.set_xticks(range(len(cells.DEADLINES)), [f"{d:g} x" for d in cells.DEADLINES])
        axes.set_xlabel("runtime budget, to the plain step's time")
        axes.set_ylabel("energy above the plain step's, %")
        axes.set_title(f"{model} on {_SHOWN[platform]}, {cells.TIGHT} % of the memory", loc="left")
        finish(axes)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def figure5(store: Store) -> Any:
    """Poet and Capuchin on the A72, with the authors' constants and with the board's own."""
    models = list(dict.fromkeys(cell.model for cell in cells.figure5()))
    figure, grid = plt.subplots(
        1, len(models), figsize=(12, 4.6), sharey=True, layout="constrained"
    )
    for axes, model in zip(grid, models, strict=True):
        axes.axhspan(73, 141, color="#E69F00", alpha=0.15, lw=0)
        axes.annotate("Capuchin, as published", (91, 100), fontsize=8, color="#8a5c00", va="center")
        axes.axhline(1, color="#0072B2", lw=1, ls=(0, (1, 2)))
        axes.annotate("POET, as published: below", (91, 1.1), fontsize=8, color="#0072B2")
        for cost_model, style in (("paper", "-"), ("device", "--")):
            for method in (TOGETHER, "capuchin"):
                colour, marker, label = _STYLES[method]
                rows = sorted(
                    _rows(store, model, "a72", method, cost_model), key=lambda r: r["key"]["ram"]
                )
                costs = "the authors' constants" if cost_model == "paper" else "the board's"
                axes.plot(
                    [row["key"]["ram"] for row in rows],
                    [max(_percent(row), 0.005) for row in rows],
                    style,
                    marker=marker,
                    color=colour,
                    label=f"{label.split(':')[0]}, {costs}",
                    mfc=colour if style == "-" else "white",
                )
        axes.set_yscale("log")
        axes.set_xlim(92, 18)
        axes.set_xlabel("memory budget, % of the plain step's peak")
        axes.set_title(model, loc="left")
        finish(axes)
    grid[0].set_ylabel("energy above the plain step's, %")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def growth(store: Store) -> Any:
    """Recomputing on chains: against memory, and against length."""
    best = chains.least_found(store.of_kind(chains.KIND))
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    colours = ("#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7")
    for layers, colour in zip(chains.LENGTHS, colours, strict=True):
        points = [
            (100 * units / (layers + 1), 100 * row["extra"])
            for (length, units), row in sorted(best.items())
            if length == layers and row["extra"] > 0
        ]
        left.plot(*zip(*points, strict=True), "o-", color=colour, label=f"{layers} layers", ms=5)
    live = [row for row in store.of_kind(chains.LIVE) if row["followed_steps"]]
    if live:
        left.plot(
            [100 * row["ram_bytes"] / row["plain_peak_bytes"] for row in live],
            [100 * row["replay_seconds"] / row["plain_seconds"] for row in live],
            "k*",
            ms=9,
            ls="none",
            label=f"{chains.LIVE_LAYERS} layers in training: measured time of replays",
        )
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel("memory, % of what keeping everything takes")
    left.set_ylabel("energy of recomputing, % of the plain step's")
    left.legend(frameon=False, fontsize=9)
    for name, units_of in chains.SERIES.items():
        rows = chains.series(best, units_of)
        right.plot(
            [row["key"]["layers"] for row in rows],
            [1000 * row["joules"] for row in rows],
            "o-",
            label=f"{name}: n to the power of {chains.exponent(rows):.2f}",
        )
    right.set_xscale("log", base=2)
    right.set_yscale("log")
    right.set_xticks(chains.LENGTHS, [str(layers) for layers in chains.LENGTHS])
    right.set_xlabel("layers n")
    right.set_ylabel(f"energy of recomputing on the {chains.PLATFORM}, mJ")
    right.legend(frameon=False, fontsize=9, title="memory")
    for axes in (left, right):
        finish(axes)
    return figure
