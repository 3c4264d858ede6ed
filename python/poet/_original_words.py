"""The words of POET's own `solve()` and of its script that have other names here.

Source: POET (Patil et al., ICML 2022), its `poet/solve.py`: `solve(model, platform, ram_budget,
runtime_budget, paging, remat, ...)`. What is named alike there and here is no business of this
module.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from poet import _C
from poet._errors import ArgumentError
from poet._names import unknown_argument

WORDS = ("remat", "mem_power_scale", "use_actual_gurobi", "print_power_costs", "print_graph_info")


@dataclass(frozen=True, slots=True)
class OriginalWords:
    """What they ask for.

    Attributes:
        recompute: plans may run ops again.
        gurobi: Gurobi is to solve the program.
        print_power_costs: the joules of each op are to be printed.
        print_graph_info: seconds and bytes of the step are to be printed.
    """

    recompute: bool = True
    gurobi: bool = False
    print_power_costs: bool = False
    print_graph_info: bool = False

    def tell(self, graph: _C.Graph, device: _C.DeviceProfile) -> None:
        """Prints what was asked for: what the step takes on the device, and each of its ops.

        To standard error: what a command prints may be JSON.
        """
        out = sys.stderr
        if self.print_graph_info:
            plain = _C.simulate(graph, None, device)
            took = f"{plain.makespan_seconds:.6g} s, {plain.energy_joules:.6g} J"
            print(
                f"The plain step on {device.name}: {took}, {plain.peak_bytes} bytes at most",
                file=out,
            )
        if self.print_power_costs:
            watts = device.compute_watts + device.idle_watts + device.memory_watts
            for op in graph.ops:
                print(
                    f"{op.index:6} {op.name:40.40} {op.seconds:.6g} s {watts * op.seconds:.6g} J",
                    file=out,
                )


def read_original_words(words: dict[str, object], known: list[str]) -> OriginalWords:
    """Checks them.

    Args:
        words: keyword arguments that `poet.solve` has no parameter for.
        known: its parameters, for the question "did you mean".

    Raises:
        UnknownArgumentError: neither program has a word.
        ArgumentError: it has no such value, or this program cannot do it.
    """
    for name in words:
        if name not in WORDS:
            raise unknown_argument("solve", name, [*known, *WORDS])
    scale = words.get("mem_power_scale", 1.0)
    if not isinstance(scale, int | float) or scale != 1:
        raise ArgumentError(
            f"mem_power_scale: expected 1; got {scale!r}. Other watts go into a device file "
            "(platform='my_device.toml', profiles/README.md)."
        )
    return OriginalWords(
        recompute=as_flag(words.get("remat", True), "remat"),
        gurobi=as_flag(words.get("use_actual_gurobi", False), "use_actual_gurobi"),
        print_power_costs=as_flag(words.get("print_power_costs", False), "print_power_costs"),
        print_graph_info=as_flag(words.get("print_graph_info", False), "print_graph_info"),
    )


def as_flag(value: object, name: str) -> bool:
    """True or False; 1 and 0, which POET's own program takes for them, are as good."""
    if isinstance(value, bool) or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise ArgumentError(f"{name}: expected True or False; got {value!r}.")


__all__ = ["OriginalWords", "as_flag", "read_original_words"]
