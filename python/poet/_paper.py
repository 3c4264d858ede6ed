"""The layer graphs of POET's own code, for `poet.solve(model=name, graph="paper")`.

Forward nodes, then backward nodes, in the order of the original's lists; one value a node, freed
after its last use; no parameters, gradients of parameters or optimizer state. Source: POET (Patil
et al., ICML 2022), its code at commit 6e63098; tests/data/poet_reference/README.md.
"""

from __future__ import annotations

import json
from typing import Any

from poet import _C
from poet._devices import data_folder
from poet._names import unknown_name


def paper_names() -> list[str]:
    """Models of which there is a layer graph."""
    return sorted(path.stem for path in _folder().glob("*.json") if path.stem != "results")


def paper_graph(model: str, *, batch_size: int = 1) -> _C.Graph:
    """The original's layer graph, without seconds (`_C.on_device` fills them in).

    Args:
        model: one of `paper_names()`.
        batch_size: bytes and flops are those of this many inputs. (The original ignores it for
            linear, transformer and bert.)

    Raises:
        ArgumentError: there is none of that name.
    """
    if model not in paper_names():
        raise unknown_name(
            "model", "a model that POET's code has", model, paper_names(), 'with graph="paper"'
        )
    record = json.loads((_folder() / f"{model}.json").read_text(encoding="utf-8"))
    nodes = record["nodes"]
    deaths = list(range(len(nodes)))
    for node, (_, _, _, inputs) in enumerate(nodes):
        for source in inputs:
            deaths[source] = max(deaths[source], node)
    graph: dict[str, Any] = {
        "format": "poet-graph",
        "version": 1,
        "signature": "0" * 16,  # poet's own, of the structure
        "base_bytes": 0,
        "ops": [
            {
                "name": layer,
                "phase": "forward" if node < record["forward_nodes"] else "backward",
                "flops": float(flops) * batch_size,
                "inputs": inputs,
                "outputs": [node],
            }
            for node, (layer, _, flops, inputs) in enumerate(nodes)
        ],
        "values": [
            {
                "bytes": size * batch_size,
                "kind": "activation",
                "producer": node,
                "death": deaths[node],
            }
            for node, (_, size, _, _) in enumerate(nodes)
        ],
    }
    return _C.Graph.from_json(json.dumps(graph))


def _folder() -> Any:
    return data_folder("paper_graphs", "tests/data/poet_reference")


__all__ = ["paper_graph", "paper_names"]
