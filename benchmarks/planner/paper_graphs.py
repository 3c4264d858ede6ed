"""The layer graphs and devices of POET's paper (Patil et al., ICML 2022), for poet-solver.

    python benchmarks/planner/paper_graphs.py --out FOLDER [NAME ...]

writes FOLDER/NAME.graph.json and FOLDER/PLATFORM.profile.json. The numbers are those of the
original's code (tests/data/poet_reference/README.md); nothing here needs torch.

What is carried over: forward nodes, then backward nodes, in the order of the original's lists; one
value a node; seconds = flops / flop rate, joules = flops / flop per joule, paging joules =
(latency + bytes / rate) * memory power; values are freed after their last use. The input is a node
of zero flops, so it recomputes for free; parameters, their gradients and optimizer state are not
counted. Both are the original's, and kept so that its optima can be compared with.

What is counted otherwise, because the simulator counts it: a value that is paged in takes memory
from the start of its transfer, and transfers take time (they block), so the deadline bounds them
too. The original forgets both.

A DeviceProfile says the same as the cost formulae: compute watts are the flop rate over the flop
per joule, store watts are the memory power, and nothing is drawn otherwise. So the joules of a step
are the joules of every executed node and of every transfer.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
REFERENCE = REPOSITORY / "tests" / "data" / "poet_reference"

NAMES = (
    "linear",
    "transformer",
    "vgg16_cifar",
    "vgg16",
    "resnet18",
    "resnet18_cifar",
    "bert",
    "resnet50",
)


@dataclass(frozen=True)
class Platform:
    """A device of the original's chipsets.py, at commit 6e63098.

    Attributes:
        name: as the original calls it.
        flops: flop a second.
        flops_per_joule: flop for a joule of computation.
        read_latency_s: of a page-in, in seconds.
        read_rate: of a page-in, in bytes a second.
        write_latency_s: of a page-out, in seconds.
        write_rate: of a page-out, in bytes a second.
        memory_watts: drawn while something is paged.
    """

    name: str
    flops: float
    flops_per_joule: float
    read_latency_s: float
    read_rate: float
    write_latency_s: float
    write_rate: float
    memory_watts: float

    def page_in_joules(self, size: int) -> float:
        """Joules of reading so many bytes back."""
        return (self.read_latency_s + size / self.read_rate) * self.memory_watts

    def page_out_joules(self, size: int) -> float:
        """Joules of writing so many bytes out."""
        return (self.write_latency_s + size / self.write_rate) * self.memory_watts

    def profile(self) -> dict[str, Any]:
        """As a profile file of poet-solver."""
        return {
            "format": "poet-profile",
            "version": 1,
            "name": self.name,
            "compute_watts": self.flops / self.flops_per_joule,
            "store_watts": self.memory_watts,
            "store_read_rate": self.read_rate,
            "store_write_rate": self.write_rate,
            "store_read_latency_seconds": self.read_latency_s,
            "store_write_latency_seconds": self.write_latency_s,
            "energy_source": "POET's chipsets.py, commit 6e63098",
            "store_source": "POET's chipsets.py, commit 6e63098",
        }


# Flop rates and efficiencies to the digits that the original's quotients of measurements have.
_A72 = 40_115_792.06701158
PLATFORMS = {
    platform.name: platform
    for platform in (
        Platform("m0", 1e6 / 6, 1e6 / 0.396, 1.09e-4, 4_616_510, 1.13e-4, 4.44e6, 0.33),
        Platform(
            "m4",
            6_369_910.145264306,
            580_010_757.690879,
            1.09e-4,
            4_616_510,
            1.13e-4,
            4.44e6,
            0.33,
        ),
        Platform("a72", 2e9, _A72, 5.09561e-6, 45.5e6, 1.85314e-5, 24.5e6, 0.15),
        Platform(
            "a72nocache",
            120_347_376.20103475,
            _A72,
            5.09561e-6,
            45.5e6,
            4.23532e-3,
            17.1e6,
            0.15,
        ),
    )
}


@dataclass(frozen=True)
class LayerGraph:
    """One of the original's graphs.

    Attributes:
        name: of the model.
        layers: the kind of each node.
        sizes: bytes of each node's output.
        flops: of each node.
        inputs: the nodes that each one reads, repetitions kept.
        forward: how many of the nodes are the forward pass.
        keep_all_peak: bytes, every value kept up to its last use.
        least: bytes of the largest node with what it reads.
    """

    name: str
    layers: tuple[str, ...]
    sizes: tuple[int, ...]
    flops: tuple[float, ...]
    inputs: tuple[tuple[int, ...], ...]
    forward: int
    keep_all_peak: int
    least: int

    def seconds(self, platform: Platform) -> float:
        """Of one step in which everything runs once."""
        return sum(self.flops) / platform.flops

    def joules(self, platform: Platform) -> float:
        """Likewise, of computation."""
        return sum(self.flops) / platform.flops_per_joule

    def deaths(self) -> list[int]:
        """The last node that reads each one's output; a node that none reads: itself."""
        last = list(range(len(self.sizes)))
        for node, inputs in enumerate(self.inputs):
            for source in inputs:
                last[source] = max(last[source], node)
        return last

    def graph(self, platform: Platform) -> dict[str, Any]:
        """As a graph file of poet, with the platform's seconds."""
        deaths = self.deaths()
        return {
            "format": "poet-graph",
            "version": 1,
            "signature": "0" * 16,  # poet's own, of the structure
            "base_bytes": 0,
            "ops": [
                {
                    "name": layer,
                    "phase": "forward" if node < self.forward else "backward",
                    "seconds": flops / platform.flops,
                    "flops": flops,
                    "inputs": list(inputs),
                    "outputs": [node],
                }
                for node, (layer, flops, inputs) in enumerate(
                    zip(self.layers, self.flops, self.inputs, strict=True)
                )
            ],
            "values": [
                {"bytes": size, "kind": "activation", "producer": node, "death": deaths[node]}
                for node, size in enumerate(self.sizes)
            ],
        }


def layer_graph(name: str) -> LayerGraph:
    """Reads the graph of that name.

    Raises:
        FileNotFoundError: there is none.
    """
    record = json.loads((REFERENCE / f"{name}.json").read_text(encoding="utf-8"))
    layers, sizes, flops, inputs = zip(*record["nodes"], strict=True)
    return LayerGraph(
        name=name,
        layers=layers,
        sizes=sizes,
        flops=flops,
        inputs=tuple(tuple(sources) for sources in inputs),
        forward=record["forward_nodes"],
        keep_all_peak=record["keep_all_peak_bytes"],
        least=record["least_bytes"],
    )


def verified_optimum(
    model: str, platform: str, ram_budget_bytes: int, runtime_multiplier: float
) -> dict[str, Any] | None:
    """What is known of the original's program there: its record in results.json, or None."""
    for record in json.loads((REFERENCE / "results.json").read_text(encoding="utf-8"))["optima"]:
        key = (record["model"], record["platform"], record["ram_budget_bytes"])
        asked = (model, platform, ram_budget_bytes)
        if key == asked and record["runtime_multiplier"] == runtime_multiplier:
            found: dict[str, Any] = record
            return found
    return None


def write(folder: Path, model: LayerGraph, platform: Platform) -> tuple[Path, Path]:
    """Writes graph and profile for poet-solver; returns where."""
    folder.mkdir(parents=True, exist_ok=True)
    graph = folder / f"{model.name}.{platform.name}.graph.json"
    profile = folder / f"{platform.name}.profile.json"
    graph.write_text(json.dumps(model.graph(platform)), encoding="utf-8")
    profile.write_text(json.dumps(platform.profile(), indent=2) + "\n", encoding="utf-8")
    return graph, profile


def main() -> None:
    """Writes what is named, or everything, for every platform."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="NAME")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(NAMES)}")
    for name in options.names:
        model = layer_graph(name)
        for platform in PLATFORMS.values():
            graph, profile = write(options.out, model, platform)
            print(f"{graph}  {profile}")


if __name__ == "__main__":
    main()
