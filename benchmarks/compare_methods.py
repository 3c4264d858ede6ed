"""Every method on four real steps at four budgets: is poet's plan the cheapest, and is it so live?

    python benchmarks/compare_methods.py [--only lstm unet3d] [--budgets 90 50] [--resume]
    python benchmarks/compare_methods.py --count        # of what is in the data; measures nothing,
                                                        # and writes the table of docs/methods.md

Forward and backward of each architecture, one thread, minimize="time", with a page file unless
`--paging off`. `poet.compare(step, live=True)` plans each cell (a step at a budget) with every
method that executes, each with the same time limit, simulates the plans on one recorded graph, and
trains with each in a process of its own. A cell is saved as soon as it is done; `--resume` leaves
out those that this build of poet has with the same options.

- A cell is lost where a plan of another method is cheaper than poet's by the simulator, or poet has
  none and another has.
- A pair is two methods of a cell whose plans differ by the simulator, both measured live. It is
  against the order where the one that is slower by the simulator is faster live by more than the
  pair's noise.
- Live figures are medians of repeated medians: each process gives the median of its steps, and each
  method trains in `--repeats` processes, the first of them poet.compare's, the others in a second
  round over all methods. The noise of one is (greatest - least) / median of its medians; that of a
  pair the greatest of both methods' and of plain training's, which has `--repeats` processes before
  the methods, poet.compare's own, and as many after them.

What trains is planned again in its process, from its own recording. So the order is that of the
simulated times of the plans that trained (`live_planned`, the median over a method's processes);
methods that train by a policy have the time of their policy's plan. Prints, as JSON in the last
line, what bounds.toml limits.
Data: data/compare_methods.json.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "planner"))

import torch
from _architectures import ARCHITECTURES as MORE

import poet
import steps
from _data import build, context, load, measured, save
from poet._compare_live import measure_plain, measure_wrapped

NAMES = ("resnet18", "gpt2", "unet3d", "lstm")
SHARES = (90, 70, 50, 30)
LOST, AGAINST = "methods_cells_lost", "methods_pairs_against_the_order"  # of bounds.toml
FILE = "compare_methods"
_OURS = "poet"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "methods.md"
BEGIN, END = "<!-- compared:begin -->", "<!-- compared:end -->"
_TIE = 1e-6  # of the time of a step: closer plans cost the same

Cell = dict[str, Any]


def step_of(name: str) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """The step and its batch, as poet.compare(live=True) asks for it in each process."""
    torch.set_num_threads(1)
    architecture = steps.ARCHITECTURES.get(name) or MORE[name]
    training = steps.Training(architecture, optimizer=None)
    return training.step, next(architecture.batches(torch.Generator().manual_seed(1)))


def executing() -> list[str]:
    """The methods with whose plans poet.wrap trains."""
    return [name for name, method in poet.methods().items() if method.executes]


def measure(name: str, share: int, options: argparse.Namespace, page_dir: str | None) -> Cell:
    """One step at one budget."""
    make = functools.partial(step_of, name)
    live = options.live == "on"
    asked: dict[str, Any] = {
        "methods": options.methods,
        "budgets": [f"{share}%"],
        "time_limit_s": options.seconds,
        "minimize": "time",
        "page_dir": page_dir,
    }
    before = _plain_medians(make, options) if live else []
    if live:
        compared = poet.compare(make, live=True, live_steps=options.live_steps, **asked)
    else:
        step, batch = make()
        compared = poet.compare(step, *batch, **asked)
    told = json.loads(compared.to_json())
    budget = told["rows"][0]["ram_budget_bytes"]
    cell = {
        "step": name,
        "share_percent": share,
        "ram_budget_bytes": budget,
        "limit_s": options.seconds,
        "paging": options.paging,
        "live": options.live,
        "repeats": options.repeats,
        "plain": told["plain"],
        **context(),
        "build": build(),
        "rows": [_short_row(row) for row in told["rows"]],
    }
    if not live:
        return cell
    _train_again(make, cell, options, page_dir)
    first = told["plain_live"]
    return cell | {
        "plain_live_medians": [*before, first["step_seconds"], *_plain_medians(make, options)],
        "plain_results": first["results"][:12],
    }


def _plain_medians(make: Callable[[], Any], options: argparse.Namespace) -> list[float]:
    """Of plain training, in half of its processes beside poet.compare's own."""
    found = [measure_plain(make, options.live_steps) for _ in range(options.repeats)]
    return [each.step_seconds for each in found if not each.error]


def _train_again(
    make: Callable[[], Any], cell: Cell, options: argparse.Namespace, page_dir: str | None
) -> None:
    """Further medians of each method that has trained, in rounds over all of them."""
    wrapped: dict[str, Any] = {
        "ram_budget": cell["ram_budget_bytes"],
        "time_limit_s": options.seconds,
        "minimize": "time",
        "page_dir": page_dir,
        "paging": page_dir is not None,
    }
    trained = [row for row in cell["rows"] if row.get("live_medians")]
    for row in trained * (options.repeats - 1):
        again = measure_wrapped(make, options.live_steps, wrapped | {"method": row["method"]})
        if not again.error:
            row["live_medians"].append(again.step_seconds)
            row["live_planned"].append(again.planned_share)


def _short_row(row: dict[str, Any]) -> dict[str, Any]:
    live = row.pop("live")
    if live is not None:
        row["live_medians"] = [live["step_seconds"]] if not live["error"] else None
        row["live_planned"] = [live["planned_share"]] if not live["error"] else None
        row["live_peak_bytes"] = live["peak_bytes"] if not live["error"] else None
        row["live_results"] = live["results"][:12]
        row["live_error"] = live["error"][:200]
    return {
        key: value
        for key, value in row.items()
        if value not in (None, "") and key != "ram_budget_bytes"
    }


def noise(seconds: Sequence[float]) -> float:
    """How far medians of the same step lie apart, to their median; 0 of one or none."""
    if not seconds:
        return 0.0
    return (max(seconds) - min(seconds)) / statistics.median(seconds)


def lost(cell: Cell) -> list[str]:
    """The methods whose plans are cheaper than poet's; all with a plan where poet has none."""
    costs = {row["method"]: row["makespan_seconds"] for row in _planned(cell)}
    ours = costs.pop(_OURS, float("inf"))
    return [method for method, seconds in costs.items() if seconds < ours * (1 - _TIE)]


def pairs(cell: Cell) -> list[tuple[str, str]]:
    """Of methods with plans that were measured live and differ: the faster by the simulator first.

    What returned other bits than plain training is not counted as trained.
    """
    other_bits = differing(cell)
    plain = cell.get("plain", {}).get("makespan_seconds", 1.0)
    trained = [
        row for row in _planned(cell) if row.get("live_medians") and row["method"] not in other_bits
    ]
    found = []
    for one, other in itertools.combinations(trained, 2):
        fast, slow = sorted((one, other), key=lambda row: trained_with(row, plain))
        if trained_with(fast, plain) < trained_with(slow, plain) * (1 - _TIE):
            found.append((fast["method"], slow["method"]))
    return found


def told_apart(cell: Cell) -> list[tuple[str, str]]:
    """The pairs whose live medians differ by more than the noise, in whichever order."""
    live = {row["method"]: row.get("live_medians") for row in cell["rows"]}
    plain = noise(cell.get("plain_live_medians", ()))

    def differ(fast: str, slow: str) -> bool:
        medians = [float(statistics.median(live[method])) for method in (fast, slow)]
        return max(medians) > min(medians) * (1 + max(plain, noise(live[fast]), noise(live[slow])))

    return [pair for pair in pairs(cell) if differ(*pair)]


def against(cell: Cell) -> list[tuple[str, str]]:
    """The pairs whose order is another one live, by more than the noise."""
    live = {row["method"]: row.get("live_medians") for row in cell["rows"]}
    return [
        (fast, slow)
        for fast, slow in told_apart(cell)
        if statistics.median(live[fast]) > statistics.median(live[slow])
    ]


def trained_with(row: dict[str, Any], plain_seconds: float) -> float:
    """Seconds, by the simulator, of the plans that trained; of the cell's own without such."""
    shares = row.get("live_planned", ())
    own = statistics.median(shares) * plain_seconds if any(shares) else row["makespan_seconds"]
    return float(own)


def by_policy(method: str) -> bool:
    """Whether it trains without a plan: the simulated figure is that of its policy's plan."""
    return poet.methods()[method].live


def differing(cell: Cell) -> list[str]:
    """Methods that trained to other bits than plain training."""
    return [
        row["method"]
        for row in _planned(cell)
        if row.get("live_medians") and row["live_results"] != cell["plain_results"]
    ]


def _planned(cell: Cell) -> list[dict[str, Any]]:
    return [row for row in cell["rows"] if "makespan_seconds" in row]


def values(cells: list[Cell]) -> dict[str, float]:
    """What bounds.toml limits."""
    # A pair that noise hides cannot be against the order: it is no evidence for it either.
    told = sum(len(told_apart(cell)) for cell in cells)
    contrary = sum(len(against(cell)) for cell in cells)
    found: dict[str, float] = {LOST: sum(bool(lost(cell)) for cell in cells)}
    if told:
        found[AGAINST] = contrary / told
    return found


def line(cell: Cell) -> str:
    """One cell for a terminal."""
    ours = next((row for row in _planned(cell) if row["method"] == _OURS), None)
    plain = cell["plain"]["makespan_seconds"]
    told = "no plan"
    if ours is not None:
        told = f"{100 * (ours['makespan_seconds'] / plain - 1):+.2f} %"
    steady = 100 * noise(cell.get("plain_live_medians", ()))
    contrary = [f"{fast} before {slow}" for fast, slow in against(cell)]
    return (
        f"{cell['step']:9} {cell['share_percent']:3} % poet {told:9} plans {len(_planned(cell)):2} "
        f"lost to {', '.join(lost(cell)) or 'none'}; pairs {len(pairs(cell))}, against the order "
        f"{len(contrary)} (plain's noise {steady:.1f} %) {', '.join(contrary)}"
    ).rstrip()


def page(cells: list[Cell]) -> str:
    """A Markdown table of the cells, with what they come to above it."""
    found = values(cells)
    count = sum(len(told_apart(cell)) for cell in cells)
    loads = [cell["load_1min"] for cell in cells]
    told = f"{found[LOST]:g} of {len(cells)} cells have a plan that is cheaper than poet's"
    if AGAINST in found:
        told += (
            f"; {100 * found[AGAINST]:.0f} % of {count} pairs that live medians tell apart are "
            "against the order"
        )
        contrary = [pair for cell in cells for pair in against(cell)]
        told += (
            f". In {sum(by_policy(fast) for fast, _ in contrary)} of these {len(contrary)} the one "
            "that should be faster trains live by its policy, whose own time no plan has"
        )
    asked = {row["method"] for cell in cells for row in cell["rows"]}
    without = asked - {row["method"] for cell in cells for row in _planned(cell)}
    later = {
        f"{cell['step']} at {cell['share_percent']} %": missing
        for cell in cells
        if (missing := asked - {row["method"] for row in cell["rows"]})
    }
    lines = [
        f"{told}. Load of the machine meanwhile: {min(loads):.0f} to {max(loads):.0f}. "
        f"In no cell has a plan: {_named(without) or 'none'}.",
        *(f"Not asked for {cell}: {_named(missing)}." for cell, missing in later.items()),
        "",
        "| step | budget | poet, time | next best | lost to | plans | pairs | against the order |",
        "|" + "---|" * 8,
    ]
    return "\n".join([*lines, *map(_page_line, cells)])


def _named(methods: set[str]) -> str:
    return ", ".join(f"`{method}`" for method in sorted(methods))


def _page_line(cell: Cell) -> str:
    plain = cell["plain"]["makespan_seconds"]
    costs = {row["method"]: row["makespan_seconds"] / plain for row in _planned(cell)}
    ours = costs.pop(_OURS, None)
    poet_time = "no plan" if ours is None else f"{100 * (ours - 1):+.2f} %"
    best = min(costs, key=lambda method: costs[method], default=None)
    other = "none" if best is None else f"`{best}` {100 * (costs[best] - 1):+.2f} %"
    order = ["not measured", ""]
    if "plain_live_medians" in cell:
        steady = 100 * noise(cell["plain_live_medians"])
        contrary = "".join(f", `{fast}` before `{slow}`" for fast, slow in against(cell))
        against_it = f"{len(against(cell))}{contrary} (noise of plain {steady:.0f} %)"
        order = [f"{len(pairs(cell))}, {len(told_apart(cell))} told apart", against_it]
    names = ", ".join(f"`{method}`" for method in lost(cell)) or "none"
    return (
        f"| {cell['step']} | {cell['share_percent']} % | {poet_time} | {other} | {names} "
        f"| {len(_planned(cell))} | {' | '.join(order)} |"
    )


def write_page(cells: list[Cell]) -> None:
    """Puts the table into docs/methods.md."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{page(cells)}\n{END}{after}", encoding="utf-8")


def known_cells() -> list[Cell]:
    """The cells in the data file."""
    cells: list[Cell] = load(FILE)["cells"] if measured(FILE) else []
    return cells


def keep(cell: Cell) -> None:
    """Puts a cell into the data file, in place of the one of the same step and budget."""

    def key(one: Cell) -> tuple[int, int]:
        return NAMES.index(one["step"]), -one["share_percent"]

    cells = {key(one): one for one in [*known_cells(), cell]}
    save(FILE, {"cells": [cells[each] for each in sorted(cells)]})


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The options of a command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--budgets", nargs="+", type=int, default=list(SHARES), metavar="PERCENT")
    parser.add_argument("--methods", nargs="+", default=executing(), choices=executing())
    parser.add_argument("--seconds", type=float, default=10, help="time limit of each search")
    parser.add_argument("--live-steps", type=int, default=6, help="of each process")
    parser.add_argument("--repeats", type=int, default=2, help="processes of each method")
    parser.add_argument("--paging", choices=["on", "off"], default="on")
    parser.add_argument("--live", choices=["on", "off"], default="on", help="off: plans alone")
    parser.add_argument("--resume", action="store_true", help="leave out cells that are there")
    parser.add_argument(
        "--count", action="store_true", help="count what is in the data, and write the page"
    )
    return parser.parse_args(words)


def main() -> None:
    """Measures what is asked for."""
    options = parse()
    same = {"build": build(), "limit_s": options.seconds, "paging": options.paging}
    same |= {"live": options.live, "repeats": options.repeats}
    there = {
        (cell["step"], cell["share_percent"])
        for cell in known_cells()
        if all(cell.get(key) == value for key, value in same.items())
    }
    asked = [] if options.count else list(itertools.product(options.only, options.budgets))
    for name, share in asked:
        if options.resume and (name, share) in there:
            continue
        with tempfile.TemporaryDirectory() as folder:
            cell = measure(name, share, options, folder if options.paging == "on" else None)
        keep(cell)
        print(line(cell), flush=True)
    if options.count:
        print(*map(line, known_cells()), sep="\n")
        write_page(known_cells())
    print(json.dumps({"values": values(known_cells())}))


if __name__ == "__main__":
    main()
