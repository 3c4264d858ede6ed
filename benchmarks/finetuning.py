"""Fine-tuning ResNet-18 and BERT on microcontrollers: what each way takes at the least.

    python benchmarks/finetuning.py --out benchmarks/data/finetuning.json [--only resnet18]

Four ways to fine-tune: the last layer; biases and the last layer; low-rank adapters (LoRA) and the
last layer; everything. SGD, batch size 1. For each on each board: the least RAM that a plan was
found for, what its store (flash or card) must hold, joules and seconds of that step, and beside it
what keeping everything in RAM takes. A step is recorded once. Whether a way also learns as much is
not asked here. A row that this build of poet has in the file is not measured again. Prints, as JSON
in the last line, how many rows have no plan.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import poet
from _adapters import add_adapters
from _data import build
from poet._budgets import format_bytes
from poet._models import ModelRequest
from poet._presets import find_preset
from poet._solve import choose_device, on_device

BOUND = "finetuning_without_plan"  # of bounds.toml
WAYS = ("last layer", "biases", "adapters", "whole")
BOARDS = ("m4", "stm32h743")
RANK = 4
ROOM = (1.0, 1.01, 1.05, 1.2)  # budgets that are tried, in parts of the least that a search finds
# Layers that get adapters: () for all convolutions; queries and values, as in the LoRA paper.
_ADAPTED = {"resnet18": (), "bert": ("query", "value")}
_HEAD = "classifier.*"


def recorded(model: str, way: str) -> poet.Graph:
    """A fine-tuning step, forward, backward and update."""
    if way != "adapters":
        trainable = {"last layer": "last", "biases": "bias", "whole": None}[way]
        return ModelRequest(model, optimizer="sgd", trainable=trainable).graph(None)
    preset = find_preset(model)
    torch.manual_seed(0)
    module = preset.build()
    assert isinstance(module, nn.Module)
    add_adapters(module, RANK, _ADAPTED[model])
    batch = preset.batch(1, torch.Generator().manual_seed(0))
    if model == "bert":
        inputs: Any = {"input_ids": batch[0], "labels": batch[1]}
        loss = None
    else:
        inputs = batch[0]

        def loss(output: Any) -> torch.Tensor:
            return F.cross_entropy(output.logits, batch[1])

    return ModelRequest(
        module, inputs, loss, optimizer="sgd", trainable=["*.adapter_*", _HEAD]
    ).graph(None)


def measure(graph: poet.Graph, model: str, way: str, board: str, seconds: float) -> dict[str, Any]:
    """One row: the least RAM on a board."""
    device = choose_device(board, None, False)
    plain = poet._C.simulate(on_device(graph, device, None), None, device)
    asked: dict[str, Any] = {"graph": graph, "platform": board, "cache_dir": None}
    least = poet.solve(**asked, minimize="memory", time_limit_s=seconds)
    floor = least.peak_bytes if least.has_plan else least.least_ram_budget or plain.peak_bytes
    best = least
    for room in ROOM:  # as little as it takes to find a plan within the time
        best = poet.solve(**asked, ram_budget=int(floor * room), time_limit_s=seconds)
        if best.has_plan:
            break
    planned = best.has_plan
    flash = device.flash_bytes or None  # 0: unknown
    stored = store_bytes(best) if planned else None
    return {
        "model": model,
        "way": way,
        "board": board,
        "ram_of_the_board": device.ram_bytes,
        "flash_of_the_board": flash,
        "weight_bytes": weight_bytes(graph, model),
        "keep_everything": {
            "ram_bytes": plain.peak_bytes,
            "joules": plain.energy_joules,
            "seconds": plain.makespan_seconds,
        },
        "least": {
            "ram_bytes": best.peak_bytes if planned else None,
            "store_bytes": stored,
            "joules": best.energy_joules if planned else None,
            "seconds": best.makespan_seconds if planned else None,
            "set_by": op_at(best),
        },
        "fits_in_ram": planned and best.peak_bytes <= device.ram_bytes,
        # Else its store is a card or another chip.
        "fits_in_flash": None if flash is None or stored is None else stored <= flash,
        "message": best.message,
        "build": build(),
    }


def weight_bytes(graph: poet.Graph, model: str) -> int:
    """Weights and buffers, frozen ones too: what outlives the step, less the batch."""
    there = sum(v.bytes for v in graph.values if v.producer is None and v.death is None)
    batch = find_preset(model).batch(1, torch.Generator().manual_seed(0))
    return there + graph.base_bytes - sum(tensor.nbytes for tensor in batch)


def store_bytes(schedule: poet.Schedule) -> int:
    """What the store must hold: every value that is ever in it, once."""
    step = json.loads(schedule.graph().to_json())
    stored = {copy["value"]: copy["bytes"] for copy in step["copies"] if copy["in"] == "store"}
    return sum(stored.values())


def op_at(schedule: poet.Schedule) -> str:
    """The op that needs the most RAM."""
    at = schedule.peak_op if schedule.has_plan else schedule.least_ram_op
    graph = schedule.traced_graph
    return graph.ops[at].name if graph is not None and at is not None and at < len(graph) else ""


def line(row: dict[str, Any]) -> str:
    """One row for a terminal."""
    keep, least = row["keep_everything"], row["least"]
    text = (
        f"{row['model']:9} {row['way']:10} {row['board']:10} keep {keep['ram_bytes'] / 1e6:8.2f} MB"
    )
    text += f" {keep['joules']:9.4g} J {keep['seconds']:9.4g} s"
    if least["ram_bytes"] is None:
        return f"{text}  no plan: {row['message']}"
    return (
        f"{text}  least {least['ram_bytes'] / 1e6:8.3f} MB, "
        f"store {least['store_bytes'] / 1e6:8.2f} MB {least['joules']:9.4g} J "
        f"{least['seconds']:9.4g} s, set by {least['set_by']}"
    )


def page(rows: list[dict[str, Any]]) -> str:
    """The table, least RAM beside keeping everything."""
    fits = any(row["fits_in_ram"] or row["fits_in_flash"] for row in rows)
    lines = [
        "# Fine-tuning on microcontrollers",
        "",
        "Written by `benchmarks/finetuning.py` from `benchmarks/data/finetuning.json`. One step, "
        "batch size 1, SGD, everything counted:",
        "the least RAM that a plan was found for, what its store must hold meanwhile, energy and "
        "time, and beside it what keeping",
        "everything in RAM takes.",
        *([] if fits else ["None of them fits its board's RAM or flash: the store is a card."]),
        "",
        "| model | trained | board | weights | keep everything: RAM, J, s "
        "| least RAM | store | J | s | fits RAM |",
        "|---" * 10 + "|",
    ]
    for row in rows:
        keep, least = row["keep_everything"], row["least"]
        kept = f"{format_bytes(keep['ram_bytes'])}, {keep['joules']:.4g}, {keep['seconds']:.4g}"
        sizes = [format_bytes(least[name]) for name in ("ram_bytes", "store_bytes")]
        costs = [f"{least[name]:.4g}" for name in ("joules", "seconds")]
        weights = format_bytes(row["weight_bytes"])
        cells = [row["model"], row["way"], row["board"], weights, kept, *sizes, *costs]
        lines.append(f"| {' | '.join(cells)} | {'yes' if row['fits_in_ram'] else 'no'} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures what is asked for and not known yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--only", nargs="+", choices=tuple(_ADAPTED), default=list(_ADAPTED))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--boards", nargs="+", choices=poet.device_names(), default=list(BOARDS))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of two searches a row")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table there")
    options = parser.parse_args()
    rows = json.loads(options.out.read_text(encoding="utf-8")) if options.out.is_file() else []
    rows = [row for row in rows if row.get("build") == build()]
    known = {(row["model"], row["way"], row["board"]) for row in rows}
    for model in options.only:
        for way in options.ways:
            missing = [b for b in options.boards if (model, way, b) not in known]
            graph = recorded(model, way) if missing else None
            for board in missing:
                assert graph is not None
                rows.append(measure(graph, model, way, board, options.seconds))
                print(line(rows[-1]), file=sys.stderr, flush=True)
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    planned = [row for row in rows if row["least"]["ram_bytes"] is not None]
    if options.page:
        options.page.write_text(page(planned), encoding="utf-8")
    without = sum(row["least"]["ram_bytes"] is None for row in rows)
    print(json.dumps({"values": {BOUND: without}, "rows": len(rows)}))


if __name__ == "__main__":
    main()
