"""poet beside the dense program and Moccasin, on the instances that those were published with.

    POET_INSTANCES=FOLDER python benchmarks/planner/peers.py [--only RL100 FCN8] [--shares 90 80]
    python benchmarks/planner/peers.py --page docs/peers.md    # of what is in the data; no solve
    python benchmarks/planner/peers.py --merge OTHER.json      # rows of another run; the newer stay
    python benchmarks/planner/peers.py --count                 # the bounds, of what is in the data

The instances are data of others and no part of poet: random layered graphs of the Moccasin
repository (github.com/haoming-codes/moccasin, folder of its computation graphs, networkx node-link
JSON) and graphs of Checkmate's artifact in the same form. $POET_INSTANCES names the folder that
holds the files, or one above a folder `moccasin` that does. The graphs of Checkmate are training
steps (names ending in -inference: forward passes). Times are shares of the plain step,
which is stated to last a second; nothing is paged, and there is no deadline. One value a node,
freed after its last use. Random layered graphs run in the order that their files give, the others
in the order of their nodes.

Every solve is a process of `poet-solver` ($POET_SOLVER or the search path) on one thread, with the
same time limit. Moccasin needs ortools in the interpreter that runs this script. Moccasin's paper
used 16 threads and 1,800 seconds, 3,600 for RL500 and RL1000.

Time to solution: poet's search tells each better plan when it finds it (the schedule's history).
The others hand theirs over when they end, so their first plan and their best one come then.
`checkmate` is the dense program without paging, with its own rounding of the relaxation;
`poet_paper` is it with paging. A row without `build` is of before these times were kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import _peers_page
import _solver

from _data import build, context

BOUND = "planner_peers_cheaper"  # of bounds.toml
_POETS_SECONDS = 60.0
_SAME_PERCENT = 1e-4  # of the plain step: last digits of a plan's seconds

FILES = {
    "RL100": "random_layered_n100_w0.27_nlv0.75_ed0.2_scd0.14.json",
    "RL250": "random_layered_n250_w0.43_nlv0.75_ed0.2_scd0.14.json",
    "RL500": "random_layered_n500_w0.36_nlv0.75_ed0.2_scd0.14.json",
    "RL1000": "random_layered_n1000_w0.31_nlv0.75_ed0.2_scd0.14.json",
    "VGG16": "VGG16 (MLSys)_256_(224, 224, 3)_train_nx.json",
    "VGG19": "VGG19 (MLSys)_256_(224, 224, 3)_train_nx.json",
    "U-Net": "vgg_unet (MLSys)_32_(416, 608, 3)_train_nx.json",
    "FCN8": "fcn_8_vgg (MLSys)_32_(416, 608, 3)_train_nx.json",
    "SegNet": "segnet (MLSys)_32_(416, 608, 3)_train_nx.json",
    "MobileNet": "MobileNet (MLSys)_512_(224, 224, 3)_train_nx.json",
    "ResNet50": "ResNet50 (MLSys)_256_(224, 224, 3)_train_nx.json",
}
FILES |= {
    f"{name}-inference": file.replace("_train_", "_test_")
    for name, file in FILES.items()
    if "_train_" in file
}
TRAINING = tuple(name for name in FILES if not name.endswith("-inference"))
METHODS = ("poet", "poet_paper", "checkmate", "moccasin")
SHARES = (90, 80, 70, 60)
_SAME_VALUE = 1e-9  # of the objective: plans that cost the same
DATA = Path(__file__).resolve().parent.parent / "data" / "planner_peers.json"

# The plain step lasts one second and costs one joule.
PROFILE = {"format": "poet-profile", "version": 1, "name": "peers", "compute_watts": 1.0}


@dataclass(frozen=True)
class Instance:
    """A published computation graph, in running order.

    Attributes:
        name: the short one.
        labels: of the nodes.
        sizes: bytes of each node's output.
        costs: time of each node, in the file's unit.
        inputs: the nodes that each one reads.
        backward: of which nodes the file says so.
    """

    name: str
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    costs: tuple[float, ...]
    inputs: tuple[tuple[int, ...], ...]
    backward: tuple[bool, ...]

    def deaths(self) -> list[int]:
        """The last node that reads each one's output; a node that none reads: itself."""
        last = list(range(len(self.sizes)))
        for node, sources in enumerate(self.inputs):
            for source in sources:
                last[source] = max(last[source], node)
        return last

    def peak(self) -> int:
        """Bytes with every value kept up to its last use."""
        change = [0] * (len(self.sizes) + 1)
        for node, death in enumerate(self.deaths()):
            change[node] += self.sizes[node]
            change[death + 1] -= self.sizes[node]
        held = peak = 0
        for difference in change:
            held += difference
            peak = max(peak, held)
        return peak

    def largest_op(self) -> int:
        """Bytes of the node that needs most with what it reads: no budget below can be met."""
        return max(
            self.sizes[node] + sum(self.sizes[source] for source in sources)
            for node, sources in enumerate(self.inputs)
        )

    def graph(self) -> dict[str, Any]:
        """As a graph file of poet."""
        total = sum(self.costs)
        ops = [
            {
                "name": self.labels[node],
                "phase": "backward" if self.backward[node] else "forward",
                "seconds": self.costs[node] / total,
                "inputs": list(sources),
                "outputs": [node],
            }
            for node, sources in enumerate(self.inputs)
        ]
        values = [
            {"bytes": size, "producer": node, "death": death}
            for node, (size, death) in enumerate(zip(self.sizes, self.deaths(), strict=True))
        ]
        return {
            "format": "poet-graph",
            "version": 1,
            "signature": "0" * 16,  # poet's own, of the structure
            "base_bytes": 0,
            "ops": ops,
            "values": values,
        }


def read(name: str, folder: Path) -> Instance:
    """Reads one instance.

    Raises:
        FileNotFoundError: its file is not there.
        ValueError: its nodes are not in running order.
    """
    path = next(
        (
            path
            for path in (folder / FILES[name], folder / "moccasin" / FILES[name])
            if path.is_file()
        ),
        folder / FILES[name],
    )
    return parse(name, json.loads(path.read_text(encoding="utf-8")))


def parse(name: str, document: dict[str, Any]) -> Instance:
    """The instance in a node-link document of either kind.

    Raises:
        ValueError: its nodes are not in running order.
    """
    nodes = document["nodes"]
    random_layered = "out_cost" in nodes[0]
    key, size, cost = ("name", "out_cost", "duration")
    begin, end = ("0", "1")
    if not random_layered:
        key, size, cost = ("id", "cost_ram", "cost_cpu")
        begin, end = ("source", "target")
    by_key = {node[key]: node for node in nodes}
    order = document["graph"]["order"] if random_layered else [node[key] for node in nodes]
    position = {each: index for index, each in enumerate(order)}
    inputs: list[list[int]] = [[] for _ in order]
    for link in document["links"]:
        source, target = position[link[begin]], position[link[end]]
        if source >= target:
            raise ValueError(f"{name}: node {link[end]} runs before its input {link[begin]}")
        inputs[target].append(source)
    return Instance(
        name=name,
        labels=tuple(str(by_key[each]["name"]) for each in order),
        sizes=tuple(int(by_key[each][size]) for each in order),
        costs=tuple(float(by_key[each][cost]) for each in order),
        inputs=tuple(tuple(sorted(sources)) for sources in inputs),
        backward=tuple(bool(by_key[each].get("backward", False)) for each in order),
    )


def measure(
    instance: Instance, share: int, method: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Solves one cell."""
    folder = Path(options.folder)
    graph, profile = folder / f"{instance.name}.graph.json", folder / "peers.profile.json"
    graph.write_text(json.dumps(instance.graph()), encoding="utf-8")
    profile.write_text(json.dumps(PROFILE), encoding="utf-8")
    asked = {
        "ram-budget": instance.peak() * share // 100,
        "minimize": "time",
        "time-limit": options.seconds,
        "method": method,
        "python": sys.executable,
        "intervals": options.intervals,
    }
    before = _processor_seconds()
    solve = _solver.run(graph, profile, folder / "schedule.json", asked)
    record: dict[str, Any] = {
        "instance": instance.name,
        "nodes": len(instance.sizes),
        "share_percent": share,
        "ram_budget_bytes": asked["ram-budget"],
        "largest_op_bytes": instance.largest_op(),
        "method": method,
        "limit_s": options.seconds,
        "seconds": solve.seconds,
        "processor_s": _processor_seconds() - before,
        "status": "failed" if solve.schedule is None else solve.schedule["status"],
        **context(),
        "build": build(),
    }
    if solve.schedule is None:
        return record | {"message": solve.failure}
    schedule = solve.schedule
    if schedule["status"] in ("optimal", "feasible"):
        return record | {
            "extra_percent": 100 * (schedule["makespan_seconds"] - 1),
            "bound_extra_percent": 100 * (schedule["bound"] - 1),
            "bound_scope": schedule["bound_scope"],
            "peak_bytes": schedule["peak_bytes"],
            "message": schedule["message"],
            **plan_times(schedule),
        }
    return record | {"message": schedule["message"]}


def _processor_seconds() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def plan_times(schedule: dict[str, Any]) -> dict[str, Any]:
    """Seconds from the start of the search to its first plan and to its best one."""
    told = [point for point in schedule.get("history", ()) if point.get("value") is not None]
    if not told:
        end = schedule["solve_seconds"]
        return {"first_plan_s": end, "best_plan_s": end, "plans_told": "at the end"}
    best = told[-1]["value"] * (1 + _SAME_VALUE)
    return {
        "first_plan_s": told[0]["seconds"],
        "best_plan_s": next(point["seconds"] for point in told if point["value"] <= best),
        "plans_told": "when found",
    }


def line(record: dict[str, Any]) -> str:
    """One cell for a terminal."""
    head = (
        f"{record['instance']:10} {record['nodes']:5} {record['share_percent']:3} % "
        f"{record['method']:10} {record['status']:10} {record['seconds']:7.1f} s"
    )
    if "extra_percent" not in record:
        return f"{head}  {record['message']}"
    return (
        f"{head}  +{record['extra_percent']:.3f} % (bound +{record['bound_extra_percent']:.3f} %, "
        f"{record['bound_scope']})"
    )


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The cells in a data file; none where there is no file."""
    if not path.is_file():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def merged(known: list[dict[str, Any]], more: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both, in order; of two rows of one cell the one that was measured later.

    A row of before times to solution were kept (one without `build`) is a cell of its own: its plan
    may be a quieter machine's. Of two such rows that of `more` stays. One whose limit went by while
    others had the processor takes no other's place.
    """
    cells: dict[tuple[int, int, int, float, bool], dict[str, Any]] = {}
    for row in [*known, *more]:
        instance, method = list(FILES).index(row["instance"]), METHODS.index(row["method"])
        cell = instance, -row["share_percent"], method, row["limit_s"], "build" in row
        known_row = cells.get(cell, row)
        newer = row.get("date", "") >= known_row.get("date", "")
        counts, counted = (not _peers_page.starved(each) for each in (row, known_row))
        if cell not in cells or counts > counted or (newer and counts == counted):
            cells[cell] = row
    return [cells[cell] for cell in sorted(cells)]


def save(records: list[dict[str, Any]]) -> None:
    """Puts the cells into data/planner_peers.json, in place of those of the same name."""

    def short(value: Any) -> Any:
        return float(f"{value:.6g}") if isinstance(value, float) else value

    rows = [
        json.dumps({name: short(value) for name, value in row.items()})
        for row in merged(rows_of(DATA), records)
    ]
    DATA.write_text('{"rows": [\n  ' + ",\n  ".join(rows) + "\n]}\n", encoding="utf-8")


def dearer(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Cells in which another method's plan, whatever its time, is cheaper than poet's newest.

    A plan where poet has none counts. Of poet rows within a minute count, of runs that had a
    processor to themselves.
    """
    ours: dict[tuple[str, int], dict[str, Any]] = {}
    theirs: dict[tuple[str, int], float] = {}
    for row in rows:
        cell = row["instance"], row["share_percent"]
        extra = row.get("extra_percent", math.inf)
        if row["method"] != "poet":
            theirs[cell] = min(theirs.get(cell, math.inf), extra)
        elif row["limit_s"] <= _POETS_SECONDS and not _peers_page.starved(row):
            newest = ours.get(cell, row)
            ours[cell] = row if row.get("date", "") >= newest.get("date", "") else newest
    return [
        cell
        for cell, row in ours.items()
        if row.get("extra_percent", math.inf) > theirs.get(cell, math.inf) + _SAME_PERCENT
    ]


def main() -> None:
    """Measures what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(TRAINING), choices=list(FILES))
    parser.add_argument("--shares", nargs="+", type=int, default=list(SHARES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seconds", type=float, default=60, help="time limit of each solve")
    parser.add_argument("--intervals", type=int, default=2, help="Moccasin's C")
    parser.add_argument("--save", action="store_true", help=f"put them into {DATA.name}")
    parser.add_argument("--merge", type=Path, help=f"put the rows of a file into {DATA.name}")
    parser.add_argument("--page", type=Path, help=f"write the page about {DATA.name}")
    parser.add_argument("--count", action="store_true", help=f"print the bounds, of {DATA.name}")
    options = parser.parse_args()
    if options.count:
        lost = dearer(rows_of(DATA))
        for name, share in lost:
            print(f"{name} at {share} %: another method's plan is cheaper", file=sys.stderr)
        print(json.dumps({"values": {BOUND: len(lost)}}))
        return
    if options.merge or options.page:
        if options.merge:
            save(rows_of(options.merge))
        rows = rows_of(DATA)
        if options.page:
            options.page.write_text(_peers_page.page(rows, options.seconds), encoding="utf-8")
        print(_peers_page.time_to_solution(rows, options.seconds))
        return
    folder = os.environ.get("POET_INSTANCES")
    if not folder:
        sys.exit(
            "peers.py: the instances are no part of poet; name the folder that holds them in the "
            "environment variable POET_INSTANCES (the docstring says where they come from)"
        )
    with tempfile.TemporaryDirectory() as scratch:
        options.folder = scratch
        records = []
        for name in options.only:
            try:
                instance = read(name, Path(folder))
            except FileNotFoundError as error:
                sys.exit(f"peers.py: $POET_INSTANCES has no {error.filename}")
            for share in options.shares:
                for method in options.methods:
                    records.append(measure(instance, share, method, options))
                    print(line(records[-1]), file=sys.stderr, flush=True)
                    if options.save:
                        save(records)
    print(json.dumps({"cells": len(records)}))


if __name__ == "__main__":
    main()
