"""The layer graphs and devices of POET's paper (Patil et al., ICML 2022), for poet-solver.

    python benchmarks/planner/paper_graphs.py --out FOLDER [NAME ...]

writes FOLDER/NAME.graph.json and FOLDER/PLATFORM.profile.json. The numbers are those of the
original's code (tests/data/poet_reference/README.md, and [paper] in profiles/*.toml); nothing here
needs torch.

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
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[2]
REFERENCE = REPOSITORY / "tests" / "data" / "poet_reference"
PROFILES = REPOSITORY / "profiles"

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


def _platform(name: str) -> Platform:
    """The constants in section [paper] of a device file."""
    with (PROFILES / f"{name}.toml").open("rb") as file:
        stated = {key: each["value"] for key, each in tomllib.load(file)["paper"].items()}
    return Platform(
        name=name,
        flops=stated["flop_rate"],
        flops_per_joule=stated["flops_per_joule"],
        read_latency_s=stated["read_latency_seconds"],
        read_rate=stated["read_rate"],
        write_latency_s=stated["write_latency_seconds"],
        write_rate=stated["write_rate"],
        memory_watts=stated["memory_watts"],
    )


# Those that the original can solve for: its JetsonTX2 has no flop rate.
PLATFORMS = {name: _platform(name) for name in ("m0", "m4", "a72", "a72nocache")}


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
