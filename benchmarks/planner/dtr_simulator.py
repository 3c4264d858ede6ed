"""poet's `dtr` beside the simulator that DTR's authors published, on the same graphs.

    DTR_SIMULATOR=FOLDER [POET_INSTANCES=FOLDER] python benchmarks/planner/dtr_simulator.py [--save]
    python benchmarks/planner/dtr_simulator.py --count     # of what is in the data: no run, and
                                                           # docs/dtr.md is written again

The simulator (`simrd`) is no part of poet: $DTR_SIMULATOR names the folder of DTR's repository
(github.com/uwsampl/dtr-prototype) that holds the package of that name; it needs attrs. Its runtime
is that of the paper's figures (RuntimeV2EagerOptimized: values go when the program lets go of
them), with each of its three scores, which poet has as `dtr`, `dtr_eq` and `dtr_local`. A score is
taken over every value that may go, in both.

Chains of n equal layers are those of its authors (one unit a value, one second an op, forward and
backward). With $POET_INSTANCES the graphs of peers.py follow. Both sides run the same operators in
the same order and let go of the same values after the same operators. What is compared is the time
of what runs again, of the plain step's. Of values with one score theirs evicts the last of its
pool, poet the one that was made first: theirs runs once as published, and once in poet's order.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import math
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import peers

import poet
from _data import build, context, load, measured

DATA = "dtr_simulator"
MEDIAN, UNLIKE = "dtr_to_its_simulator", "dtr_unlike_its_simulator"  # of bounds.toml
SCORES = {"dtr": "DTR", "dtr_eq": "DTREqClass", "dtr_local": "DTRLocal"}
LENGTHS = (16, 32, 64, 128)
CHAIN_BUDGETS: dict[str, Callable[[int], int]] = {
    "2√n": lambda n: math.ceil(2 * math.sqrt(n)),
    "log2 n + 2": lambda n: math.ceil(math.log2(n)) + 2,
    "n/2": lambda n: n // 2,
}
SHARES = (90, 80, 70, 60, 50)
GRAPHS = ("VGG16", "VGG19", "U-Net", "FCN8", "SegNet", "MobileNet", "ResNet50", "RL100")
SIDES = ("theirs", "ours")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "dtr.md"
_UNIT = 1 << 20  # bytes
_SAME = 1e-3  # of the plain step
_MOST = 100.0  # of the plain step: a run that takes so much longer is given up


def chain(layers: int) -> peers.Instance:
    """Forward ops, each of the one before, then as many backward ops, each of that and a value."""
    inputs: list[tuple[int, ...]] = [(i - 1,) if i else () for i in range(layers)]
    inputs.append(())  # the first gradient, of nothing
    for back in range(1, layers):
        of = layers - back - 1
        inputs.append((of - 1, layers + back - 1) if of > 0 else (layers + back - 1,))
    count = 2 * layers
    return peers.Instance(
        name=f"chain of {layers}",
        labels=tuple(f"op {i}" for i in range(count)),
        sizes=(_UNIT,) * count,
        costs=(1.0,) * count,
        inputs=tuple(tuple(sorted(each)) for each in inputs),
        backward=tuple(i >= layers for i in range(count)),
    )


def theirs(
    instance: peers.Instance, budget: int, score: str, *, first_of_equals: bool = False
) -> float | None:
    """Time that their simulator computes again, of the plain step's; None where memory runs out.

    `first_of_equals`: of values with one score the one that was made first goes.
    """
    tensor = importlib.import_module("simrd.tensor")
    runtime = importlib.import_module("simrd.runtime")
    heuristic = getattr(importlib.import_module("simrd.heuristic"), SCORES[score])()
    if first_of_equals:
        heuristic.choose = functools.partial(_first, heuristic)
    total = sum(instance.costs)
    rt = runtime.RuntimeV2EagerOptimized(budget, heuristic=heuristic, remat_limit=_MOST * total)
    dying: dict[int, list[int]] = {}
    for node, death in enumerate(instance.deaths()):
        dying.setdefault(death, []).append(node)
    made: list[Any] = []
    try:
        for node, sources in enumerate(instance.inputs):
            op = tensor.Operator(
                instance.costs[node], (instance.sizes[node],), (-1,), instance.labels[node]
            )
            made += rt.compute([made[source] for source in sources], op)
            for dead in dying.get(node, ()):
                rt.release(made[dead])
    except (MemoryError, runtime.RematExceededError):
        return None
    return float(rt.telemetry.summary["remat_compute"]) / total


def _first(heuristic: Any, pool: list[Any], rt: Any, **words: Any) -> list[Any]:
    """What goes: in place of the method of that name."""
    return [min(pool, key=lambda s: (heuristic.evaluate(s, rt, **words), s.root_id))]


def ours(
    instance: peers.Instance, graph: poet.Graph, budget: int, score: str
) -> tuple[float | None, int | None]:
    """The same of poet's plan and None; None and its least budget where it has none there.

    Operators take their first time, as in the simulator: not the few percent more of a replay.
    """
    schedule = poet.solve(
        graph=graph, ram_budget=budget, method=score, paging=False, cache_dir=None
    )
    if not schedule.has_plan:
        return None, schedule.least_ram_budget
    again = sum(instance.costs[op] for action in schedule.actions for op in action.ops)
    return again / sum(instance.costs), None


def instances() -> list[tuple[peers.Instance, dict[str, int]]]:
    """What is run, with its budgets by name."""
    found = [
        (chain(n), {name: _UNIT * budget(n) for name, budget in CHAIN_BUDGETS.items()})
        for n in LENGTHS
    ]
    folder = os.environ.get("POET_INSTANCES")
    for name in GRAPHS if folder else ():
        instance = peers.read(name, Path(str(folder)))
        found.append((instance, {f"{s} %": instance.peak() * s // 100 for s in SHARES}))
    return found


def measure(instance: peers.Instance, budgets: dict[str, int]) -> list[dict[str, Any]]:
    """Every budget with every score."""
    graph = poet.Graph.from_json(json.dumps(instance.graph()))
    rows = []
    for name, budget in budgets.items():
        for score in SCORES:
            again, least = ours(instance, graph, budget, score)
            rows.append(
                {
                    "graph": instance.name,
                    "ops": len(instance.sizes),
                    "budget": name,
                    "budget_bytes": budget,
                    "score": score,
                    "theirs": theirs(instance, budget, score),
                    "theirs_first": theirs(instance, budget, score, first_of_equals=True),
                    "ours": again,
                    "least_budget": least,
                }
            )
    return rows


def values(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The bounds' values.

    In the cells in which both have a plan: by how much ours computes more or less again, in percent
    of the plain step's time, the median. And in how many cells both differ, or one alone comes to
    its end, where equals go in one order.
    """
    apart = [
        100 * abs(row["ours"] - row["theirs"])
        for row in rows
        if row["ours"] is not None and row["theirs"] is not None
    ]
    unlike = sum(not _same(row["ours"], row["theirs_first"]) for row in rows)
    return {MEDIAN: statistics.median(apart), UNLIKE: unlike} if apart else {}


def _same(a: float | None, b: float | None) -> bool:
    """Whether neither is there, or both are as good as equal."""
    return a is b if a is None or b is None else abs(a - b) < _SAME


def page(rows: list[dict[str, Any]]) -> str:
    """docs/dtr.md."""
    found = values(rows)
    both = [row for row in rows if row["ours"] is not None and row["theirs"] is not None]
    equal = sum(_same(row["ours"], row["theirs"]) for row in both)
    alone = {side: sum(row[side] is not None for row in rows) - len(both) for side in SIDES}
    return "\n".join(
        (
            "# DTR beside its authors' simulator",
            "",
            "Written by `benchmarks/planner/dtr_simulator.py` from `benchmarks/data/"
            "dtr_simulator.json`; its docstring says what is run.",
            "",
            f"Of {len(rows)} cells (a graph, a budget, a score) {len(both)} come to their end on "
            f"both sides; in {alone['theirs']} theirs alone does, in {alone['ours']} poet's.",
            f"In {equal} both compute as much again, to a thousandth of the plain step; the "
            f"median difference is {found[MEDIAN]:.2g} % of it.",
            "Of values with one score theirs evicts the last of its pool, poet the one that was "
            "made first.",
            f"Where theirs does so too, all cells but {found[UNLIKE]:g} agree.",
            "",
            table(rows),
            "",
        )
    )


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table, a line for each graph and score: theirs, then ours, at each budget."""

    def figure(row: dict[str, Any]) -> str:
        each = ("none" if x is None else f"{100 * x:.1f}" for x in (row["theirs"], row["ours"]))
        return " / ".join(each)

    lines = ["| graph | score | time computed again, in % of the plain step: theirs / ours |"]
    lines.append("|---|---|---|")
    places = list(dict.fromkeys((row["graph"], row["score"]) for row in rows))
    for graph, score in places:
        cells = [row for row in rows if (row["graph"], row["score"]) == (graph, score)]
        told = "; ".join(f"{row['budget']}: {figure(row)}" for row in cells)
        lines.append(f"| {graph} | `{score}` | {told} |")
    return "\n".join(lines)


def main() -> None:
    """Runs both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--save", action="store_true", help=f"write data/{DATA}.json")
    parser.add_argument("--count", action="store_true", help=f"print the bounds, write {PAGE.name}")
    options = parser.parse_args()
    if options.count:
        rows = load(DATA)["rows"] if measured(DATA) else []
    else:
        folder = os.environ.get("DTR_SIMULATOR")
        if not folder or not (Path(folder) / "simrd").is_dir():
            sys.exit(
                "dtr_simulator.py: DTR's simulator is no part of poet; name the folder that holds "
                "its package simrd in the environment variable DTR_SIMULATOR (the docstring says "
                f"where it comes from), got {folder!r}"
            )
        sys.path.insert(0, folder)
        rows = []
        for instance, budgets in instances():
            rows += measure(instance, budgets)
            print(table(rows[-len(budgets) * len(SCORES) :]), file=sys.stderr, flush=True)
    if options.save:
        path = Path(__file__).resolve().parent.parent / "data" / f"{DATA}.json"
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        head = json.dumps({**context(), "build": build()})[1:-1]
        path.write_text(f'{{{head}, "rows": [\n  {lines}\n]}}\n', encoding="utf-8")
    if options.count:
        PAGE.write_text(page(rows), encoding="utf-8")
    print(json.dumps({"values": values(rows)}))


if __name__ == "__main__":
    main()
