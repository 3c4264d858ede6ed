"""Traces the steps of the planner's benchmarks into graph files.

    python benchmarks/planner/graphs.py [--folder build/planner-graphs] [NAME ...]

A graph is traced once and kept: NAME.graph.json beside NAME.meta.json, which holds S (steps.py,
`fixed_bytes`). NAME is an architecture, or one with "+adamw" for the whole optimizer step.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from _architectures import ARCHITECTURES, MICRO_BATCHES
from _coop_networks import COOP_NETWORKS
from torch import Tensor

import poet
import steps

FOLDER = Path(__file__).resolve().parent.parent.parent / "build" / "planner-graphs"
TRACED = {name: steps.ARCHITECTURES[name] for name in ("resnet18", "gpt2", "bert")}
TRACED |= ARCHITECTURES | COOP_NETWORKS
WITH_OPTIMIZER = ("resnet18+adamw", "gpt2+adamw", "bert+adamw")
NAMES = (*TRACED, *WITH_OPTIMIZER)
_WARM_UP = 2


@dataclass(frozen=True)
class TracedStep:
    """A graph file and what its budgets are counted from.

    Attributes:
        name: of the architecture, "+adamw" with the optimizer's step.
        path: of the graph file.
        fixed_bytes: S.
        graph: the recorded step.
    """

    name: str
    path: Path
    fixed_bytes: int
    graph: poet.Graph

    def budget(self, slack: float) -> int:
        """The budget in bytes at a slack."""
        return steps.budget_at(slack, self.fixed_bytes, self.graph.plain_peak_bytes())


def traced(name: str, folder: Path = FOLDER) -> TracedStep:
    """The step of that name: from its file where there is one, else traced now."""
    path = folder / f"{name}.graph.json"
    meta = folder / f"{name}.meta.json"
    if not path.is_file() or not meta.is_file():
        _trace(name, path, meta)
    fixed_bytes: int = json.loads(meta.read_text(encoding="utf-8"))["fixed_bytes"]
    return TracedStep(name, path, fixed_bytes, poet.Graph.load(str(path)))


def _trace(name: str, path: Path, meta: Path) -> None:
    architecture, _, optimizer = name.partition("+")
    torch.set_num_threads(1)
    parts = TRACED[architecture]
    training = steps.Training(parts, optimizer=optimizer or None)
    count = MICRO_BATCHES.get(architecture, 1)
    batch = next(parts.batches(torch.Generator().manual_seed(1)))

    def step(*tensors: Tensor) -> Tensor:
        if count == 1:
            return training.step(*tensors)
        training.model.zero_grad(set_to_none=True)
        total = torch.zeros(())
        for chunk in zip(*(tensor.chunk(count) for tensor in tensors), strict=True):
            loss = parts.loss(training.model, *chunk) / count
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    for _ in range(_WARM_UP):  # threads, caches, lazily made buffers: none of that is the step's
        step(*batch)
    graph = poet.trace(step, *batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    graph.save(str(path))
    fixed = steps.fixed_bytes(training) if optimizer else steps.resident_bytes(training.state())
    meta.write_text(json.dumps({"fixed_bytes": fixed}), encoding="utf-8")


def main() -> None:
    """Traces what is named, or everything."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="NAME")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(NAMES)}")
    for name in options.names:
        step = traced(name, options.folder)
        graph = step.graph
        peak = graph.plain_peak_bytes()
        print(
            f"{name:16} {len(graph.ops):6} ops  plain peak {peak / 2**20:8.1f} MiB"
            f"  S {step.fixed_bytes / 2**20:7.1f} MiB  {1e3 * graph.plain_seconds:8.1f} ms"
        )


if __name__ == "__main__":
    main()
