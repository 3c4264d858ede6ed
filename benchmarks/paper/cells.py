"""One plan of one layer graph on one device: Figures 3 to 5 and Table 3 are made of these.

Searches of poet are deterministic: their seconds are of work, and the plans are the same on every
machine. A search of poet begins with the plans that poet itself has found for the same graph and
device with less (a tighter budget or deadline, recomputing or paging alone), never with another
method's.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import poet
from paper.store import Row, Store
from poet._paper import paper_graph
from poet._solve import choose_device, on_device

KIND = "plan"
TOGETHER, RECOMPUTE, PAGE = "poet", "recompute alone", "paging alone"
# poet's own program, whole and with half of its columns: what the paper's ablation compares.
OWN = {TOGETHER: {}, RECOMPUTE: {"paging": False}, PAGE: {"recompute": False}}
# Other methods that find their plan at once.
OTHERS = (
    "page_all",
    "chen_sqrt",
    "chen_greedy",
    "revolve",
    "rotor",
    "pofo",
    "twremat",
    "dtr",
    "dtr_eq",
    "dtr_local",
    "dtr_banish",
    "dtr_placed",
    "capuchin",
    "coop",
)
# The dense programs, which take all of their time.
DENSE = ("checkmate", "poet_paper")

MODELS = ("vgg16_cifar", "resnet18_cifar", "bert")
PLATFORMS = ("m0", "m4", "a72", "jetsontx2")
SHARES = (20, 30, 50, 70, 90)
RUNTIME = 1.5
DEADLINES = (1.05, 1.1, 1.2, 1.5, 2.0, 3.0)
TIGHT = 20  # percent of the plain peak, of Figure 4
SWEEP = (20, 30, 40, 50, 60, 70, 80, 90)
POFO_SHARES = (40, 50, 60, 70, 80, 90)
LESS_MEMORY = 0.083
# A search may take so many times the seconds that are asked for.
LONGER = {"bert": 2.0}
_MOST_STARTS = 4


@dataclass(frozen=True)
class Cell:
    """What is asked for.

    Attributes:
        model: a layer graph.
        platform: a device.
        ram: percent of the plain peak; above 100, bytes.
        runtime: the deadline as a ratio to the plain step; None for none.
        method: a key of OWN, or of poet.methods().
        minimize: "energy" or "time".
        cost_model: "paper" or "device".
    """

    model: str
    platform: str
    ram: int
    runtime: float | None
    method: str
    minimize: str = "energy"
    cost_model: str = "paper"

    @property
    def key(self) -> dict[str, Any]:
        """What its row is found by."""
        return dataclasses.asdict(self)


@functools.cache
def device_of(platform: str, cost_model: str) -> poet.DeviceProfile:
    """The device with those costs."""
    return choose_device(platform, cost_model, True)


@functools.cache
def step_of(model: str, platform: str, cost_model: str) -> tuple[poet.Graph, poet.Simulation]:
    """The layer graph with the device's seconds, and what it costs without a plan."""
    device = device_of(platform, cost_model)
    graph = on_device(paper_graph(model), device, None, True)
    return graph, poet._C.simulate(graph, None, device)


def ram_bytes(cell: Cell) -> int:
    """Its budget."""
    _, plain = step_of(cell.model, cell.platform, cell.cost_model)
    return cell.ram if cell.ram > 100 else plain.peak_bytes * cell.ram // 100


def plan(cell: Cell, seconds: float, starts: tuple[poet.Schedule, ...] = ()) -> poet.Schedule:
    """Searches for it."""
    graph, _ = step_of(cell.model, cell.platform, cell.cost_model)
    own = cell.method in OWN
    words: dict[str, Any] = OWN[cell.method] if own else {"method": cell.method}
    return poet.solve(
        graph=graph,
        platform=cell.platform,
        cost_model=cell.cost_model,
        ram_budget=ram_bytes(cell),
        runtime_budget=cell.runtime,
        minimize=cell.minimize,
        time_limit_s=seconds * LONGER.get(cell.model, 1.0),
        deterministic=own,
        starts=starts,
        cache_dir=None,
        **words,
    )


def measure(cell: Cell, seconds: float, store: Store) -> Row:
    """Its row: the plan, and what the simulator says of it."""
    graph, plain = step_of(cell.model, cell.platform, cell.cost_model)
    schedule = plan(cell, seconds, tuple(starts_of(cell, store)))
    row: Row = {
        "status": str(schedule.status),
        "ram_bytes": ram_bytes(cell),
        "plain_joules": plain.energy_joules,
        "plain_seconds": plain.makespan_seconds,
        "plain_peak_bytes": plain.peak_bytes,
        "solve_seconds": schedule.solve_seconds,
    }
    if not schedule.has_plan:
        return row | {"message": schedule.message, "least_bytes": schedule.least_ram_budget}
    cost = poet._C.simulate(graph, schedule, device_of(cell.platform, cell.cost_model))
    data = schedule.to_bytes(graph)
    row |= {
        "peak_bytes": cost.peak_bytes,
        "joules": cost.energy_joules,
        "seconds": cost.makespan_seconds,
        "gap": schedule.gap,
        "recomputed_ops": cost.recomputed_ops,
        "page_outs": cost.page_outs,
        "plan_bytes": len(data),
    }
    # Other methods find theirs again in no time.
    return row | {"plan": base64.b64encode(data).decode()} if cell.method in OWN else row


def schedule_of(row: Row) -> poet.Schedule:
    """The plan that a row holds."""
    key = row["key"]
    graph, _ = step_of(key["model"], key["platform"], key["cost_model"])
    return poet.Schedule.from_bytes(base64.b64decode(row["plan"]), graph)


def starts_of(cell: Cell, store: Store) -> Iterator[poet.Schedule]:
    """Plans of poet itself that keep the budgets and use nothing that it may not, best first."""
    if cell.method not in OWN:
        return
    ram = ram_bytes(cell)
    _, plain = step_of(cell.model, cell.platform, cell.cost_model)
    limit = float("inf") if cell.runtime is None else cell.runtime * plain.makespan_seconds
    name = "seconds" if cell.minimize == "time" else "joules"
    same = ("model", "platform", "cost_model", "minimize")
    found = [
        row
        for row in store.of_kind(KIND)
        if all(row["key"][each] == getattr(cell, each) for each in same)
        and row["key"]["method"] in OWN
        and cell.method in (TOGETHER, row["key"]["method"])
        and "joules" in row
        and store.find(KIND, row["key"]) is not None
        and row["peak_bytes"] <= ram
        and row["seconds"] <= limit
    ]
    for row in sorted(found, key=lambda row: row[name])[:_MOST_STARTS]:
        yield schedule_of(row)


def figure3(quick: bool = False) -> list[Cell]:
    """Energy against memory, on every device."""
    models, platforms = (MODELS[1:2], PLATFORMS[1:2]) if quick else (MODELS, PLATFORMS)
    methods = (RECOMPUTE, PAGE, TOGETHER, *OTHERS)
    cells = [
        Cell(model, platform, share, RUNTIME, method)
        for model in models
        for platform in platforms
        for share in SHARES
        for method in methods
    ]
    dense = [Cell(model, "m4", 50, RUNTIME, method) for model in models for method in DENSE]
    return cells + dense


def figure4(quick: bool = False) -> list[Cell]:
    """Energy within deadlines, together and each alone."""
    models, platforms = (MODELS[1:2], ("m4",)) if quick else (MODELS[1:], ("m4", "a72"))
    return [
        Cell(model, platform, TIGHT, deadline, method)
        for model in models
        for platform in platforms
        for deadline in DEADLINES
        for method in (RECOMPUTE, PAGE, TOGETHER)
    ]


def figure5(quick: bool = False) -> list[Cell]:
    """Both poet and Capuchin: the network of the authors' example, and ResNet-18 on ImageNet."""
    return [
        Cell(model, "a72", share, RUNTIME, method, cost_model=cost_model)
        for cost_model in ("paper", "device")
        for model in (MODELS[1:2] if quick else (MODELS[1], "resnet18"))
        for share in SWEEP
        for method in (TOGETHER, "capuchin")
    ]


def figure2() -> Cell:
    """The plan that is drawn op by op: it recomputes and pages."""
    return Cell("resnet18_cifar", "a72", 50, RUNTIME, TOGETHER)


def pofo_cells(quick: bool = False) -> list[Cell]:
    """POFO's plans of least time."""
    shares = POFO_SHARES[1:2] if quick else POFO_SHARES
    return [Cell("resnet18", "jetsontx2", share, None, "pofo", "time") for share in shares]


def beside_pofo(pofo: Row) -> tuple[Cell, Cell] | None:
    """What poet is asked: 8.3 % below POFO's peak, and at it; None where POFO has no plan."""
    if "joules" not in pofo:
        return None
    key = pofo["key"]
    less = int(pofo["peak_bytes"] * (1 - LESS_MEMORY))
    tight, same = (
        Cell(key["model"], key["platform"], ram, None, TOGETHER, "time")
        for ram in (less, pofo["peak_bytes"])
    )
    return tight, same


def line(row: Row) -> str:
    """One row for a terminal."""
    key: dict[str, Any] = row["key"]
    runtime = "" if key["runtime"] is None else f" x{key['runtime']:g}"
    ram = f"{key['ram']} %" if key["ram"] <= 100 else f"{key['ram']} B"
    text = f"{key['model']} on {key['platform']} at {ram}{runtime}, {key['method']}: "
    text += str(row["status"])
    if "joules" in row:
        text += f", {extra(row):+.2%} energy, {row['seconds'] / row['plain_seconds']:.3f} x time"
    return text


def extra(row: Row, name: str = "joules") -> float:
    """How much more than plain training it takes."""
    return float(row[name] / row[f"plain_{name}"] - 1)
