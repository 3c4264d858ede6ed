"""How the energy of recomputing grows as memory shrinks, on chains of equal layers.

A chain of n layers: n forward ops, a loss of no cost, n backward ops of twice the flops, every
value of one unit. Planned by poet and by revolve, which is optimal where layers are alike. One
chain also trains: n times (matrix product, tanh), its weights frozen, so that there is nothing in
memory but what forward leaves to backward; its replays are timed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import poet
from paper.store import Row
from poet._solve import choose_device, on_device

KIND, LIVE = "chain", "live chain"
LENGTHS = (8, 16, 32, 64, 128)
UNITS = (3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
METHODS = ("revolve", "poet")
UNIT_BYTES = 1 << 20
PLATFORM = "m4"
LIVE_LAYERS = 32
LIVE_SPARE = (1, 2, 3, 5, 9, 17)  # units above the least budget that was found
_TIE = 1e-9  # of the step's energy
_WIDTH, _ROWS = 128, 2048  # float32: one unit a value
_WARM_UP, _STEPS = 5, 7


def chain(layers: int) -> poet.Graph:
    """The graph, one flop a byte forward."""
    flops = float(UNIT_BYTES)
    ops: list[dict[str, Any]] = []
    values: list[dict[str, Any]] = [{"bytes": UNIT_BYTES, "kind": "input"}]

    def add(name: str, phase: str, cost: float, inputs: list[int]) -> None:
        kind = "gradient" if phase == "backward" else "activation"
        values.append({"bytes": UNIT_BYTES, "kind": kind, "producer": len(ops)})
        done = {"inputs": inputs, "outputs": [len(values) - 1]}
        ops.append({"name": name, "phase": phase, "flops": cost, **done})

    for layer in range(layers):
        add(f"layer {layer}", "forward", flops, [layer])
    add("loss", "forward", 0.0, [layers])
    for layer in reversed(range(layers)):
        add(f"gradient {layer}", "backward", 2 * flops, [len(values) - 1, layer])
    for index, op in enumerate(ops):
        for value in op["inputs"] + op["outputs"]:
            values[value]["death"] = index
    graph = {"format": "poet-graph", "version": 1, "signature": "0" * 16, "base_bytes": 0}
    return poet.Graph.from_json(json.dumps(graph | {"ops": ops, "values": values}))


def keys() -> list[dict[str, Any]]:
    """What is planned; with a unit a layer and one for the input nothing has to run again."""
    return [
        {"layers": layers, "units": units, "method": method}
        for layers in LENGTHS
        for units in UNITS
        if units <= layers
        for method in METHODS
    ]


def measure(layers: int, units: int, method: str, seconds: float) -> Row:
    """One plan."""
    device = choose_device(PLATFORM, "paper", False)
    graph = on_device(chain(layers), device, "activations")
    schedule = poet.solve(
        graph=graph,
        platform=PLATFORM,
        cost_model="paper",
        count="activations",
        ram_budget=units * UNIT_BYTES,
        paging=False,
        method=method,
        time_limit_s=seconds,
        cache_dir=None,
    )
    row: Row = {"status": str(schedule.status), "solve_seconds": schedule.solve_seconds}
    if not schedule.has_plan:
        return row
    plain = poet._C.simulate(graph, None, device)
    cost = poet._C.simulate(graph, schedule, device)
    return row | {
        "recomputed_ops": cost.recomputed_ops,
        "extra": cost.energy_joules / plain.energy_joules - 1,
        "joules": cost.energy_joules - plain.energy_joules,
        "gap": schedule.gap,
        "plan_bytes": len(schedule.to_bytes(graph)),
    }


def least_found(rows: list[Row]) -> dict[tuple[int, int], Row]:
    """For each length and budget the plan that recomputes least, whoever found it."""
    best: dict[tuple[int, int], Row] = {}
    for row in rows:
        place = row["key"]["layers"], row["key"]["units"]
        if "extra" in row and (place not in best or row["extra"] < best[place]["extra"]):
            best[place] = row
    return best


def beaten(rows: list[Row]) -> list[tuple[Row, Row]]:
    """Poet's row and revolve's better one, of those budgets for which it has one."""
    by = {(row["key"]["layers"], row["key"]["units"], row["key"]["method"]): row for row in rows}
    found = []
    for (layers, units, method), row in by.items():
        ours = by.get((layers, units, "poet"))
        if method == "poet" or ours is None or "extra" not in row:
            continue
        if "extra" not in ours or row["extra"] < ours["extra"] - _TIE:
            found.append((ours, row))
    return found


def series(best: dict[tuple[int, int], Row], units_of: Callable[[int], int]) -> list[Row]:
    """A plan a length, at the budget that the function gives for it."""
    places = [(layers, units_of(layers)) for layers in LENGTHS]
    return [best[place] for place in places if place in best]


SERIES: dict[str, Callable[[int], int]] = {
    "3 units, the least possible": lambda _: 3,
    "4 units": lambda _: 4,
    "5 units": lambda _: 5,
    "6 units": lambda _: 6,
    "half of the layers": lambda layers: layers // 2,
}


def exponent(rows: list[Row]) -> float:
    """The p of joules = a * layers ** p of what is recomputed, by least squares of logarithms."""
    x = [math.log(row["key"]["layers"]) for row in rows]
    y = [math.log(row["joules"]) for row in rows]
    return float(np.polyfit(x, y, 1)[0])


def last_exponent(rows: list[Row]) -> float:
    """The same of the two longest chains alone."""
    return exponent(rows[-2:])


# ---- a chain that trains -----------------------------------------------------------------------


def live_step(layers: int) -> Callable[[], None]:
    """Forward and backward of a chain, the same at each call."""
    torch.manual_seed(0)
    parts = [m for _ in range(layers) for m in (nn.Linear(_WIDTH, _WIDTH, bias=False), nn.Tanh())]
    net = nn.Sequential(*parts).requires_grad_(False)
    x = torch.randn(_ROWS, _WIDTH, requires_grad=True)

    def step() -> None:
        x.grad = None
        net(x).square().mean().backward()

    return step


def live_keys() -> list[dict[str, Any]]:
    """What is trained."""
    return [{"layers": LIVE_LAYERS, "spare_units": spare} for spare in LIVE_SPARE]


def measure_live(layers: int, spare_units: int, seconds: float) -> Row:
    """One budget: what steps replay, how long it takes, and the most that they hold."""
    torch.set_num_threads(1)
    graph = poet.trace(live_step(layers))
    nothing = poet.solve(
        graph=graph, ram_budget=1, time_limit_s=seconds, paging=False, cache_dir=None
    )
    assert nothing.least_ram_budget is not None
    budget = nothing.least_ram_budget + spare_units * UNIT_BYTES
    step = poet.wrap(
        live_step(layers),
        ram_budget=budget,
        paging=False,
        background=False,
        time_limit_s=seconds,
        cache_dir=None,
    )
    for _ in range(_WARM_UP):
        step()
    before = step.stats
    for _ in range(_STEPS):
        step()
    after = step.stats
    steps = after.followed_steps - before.followed_steps
    assert step.schedule is not None
    return {
        "ram_bytes": budget,
        "plain_peak_bytes": graph.plain_peak_bytes(),
        "plain_seconds": graph.plain_seconds,
        "arena_peak_bytes": after.arena_peak_bytes,
        "planned_ops": len([op for a in step.schedule.actions for op in a.ops]),
        "followed_steps": steps,
        "replayed_ops": (after.replayed_ops - before.replayed_ops) / max(steps, 1),
        "replay_seconds": (after.replay_seconds - before.replay_seconds) / max(steps, 1),
    }
