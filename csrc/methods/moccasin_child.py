"""The constraint program of Moccasin, solved with CP-SAT: the child process of moccasin.cpp.

Reads one request as JSON from stdin and writes one answer as JSON to stdout; moccasin.cpp says what
both hold. The source is built into the library and run with `python -c`, so it imports nothing but
the standard library and ortools.

Time is the event domain of a step: event `stage * width + place`, where places 0 .. width - 2 are
those of recipes in running order and place width - 1 is the stage's first execution. A retention
interval [begin, end) of a value holds its bytes at each event in it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

_BEGIN = time.monotonic()
_MISSING = 3  # exit status: no ortools

try:
    from ortools.sat.python import cp_model
except ImportError as error:
    sys.stderr.write(f"{sys.executable}: {error}")
    sys.exit(_MISSING)


class Program:
    """One model: either the capacity is a variable and the objective, or the costs are."""

    def __init__(self, request: dict[str, Any], *, find_capacity: bool) -> None:
        self.request = request
        self.model = cp_model.CpModel()
        self.width = request["width"]
        self.values = request["values"]
        self.recipes = request["recipes"]
        self.slots = range(1, request["intervals"])
        self.capacity: Any = request["capacity"]
        if find_capacity:
            most = max(request["plain_peak"], request["capacity"])
            self.capacity = self.model.new_int_var(request["capacity"], most, "capacity")
        self.active: dict[tuple[int, int], Any] = {}
        self.stage: dict[tuple[int, int], Any] = {}
        self.end: dict[tuple[int, int], Any] = {}
        self.demands: list[tuple[Any, int]] = []
        self._add_recomputes()
        self._add_retention()
        self._add_inputs()
        self._add_constants()
        intervals, bytes_held = zip(*self.demands, strict=True)
        self.model.add_cumulative(intervals, bytes_held, self.capacity)
        seconds = [
            self.recipes[recipe]["seconds"] * active for (recipe, _), active in self.active.items()
        ]
        if request["seconds_limit"] is not None:
            self.model.add(sum(seconds) <= request["seconds_limit"])
        cost = sum(
            self.recipes[recipe]["cost"] * active for (recipe, _), active in self.active.items()
        )
        self.model.minimize(self.capacity if find_capacity else cost)

    def execution(self, stage: int) -> int:
        """The event of a stage's first execution."""
        return stage * self.width + self.width - 1

    def begin(self, recipe: int, slot: int) -> Any:
        """The event with which a retention interval of a recipe's outputs begins."""
        if slot == 0:
            return self.execution(self.recipes[recipe]["made"])
        return self.stage[recipe, slot] * self.width + self.recipes[recipe]["place"]

    def slots_of(self, recipe: int) -> range:
        """The recomputes of a recipe; none where it can never run again."""
        return (
            self.slots
            if self.recipes[recipe]["first"] <= self.recipes[recipe]["last"]
            else range(0)
        )

    def _add_recomputes(self) -> None:
        for index, recipe in enumerate(self.recipes):
            for slot in self.slots_of(index):
                active = self.model.new_bool_var("")
                self.active[index, slot] = active
                self.stage[index, slot] = self.model.new_int_var(
                    recipe["first"], recipe["last"], ""
                )
                if slot > 1:
                    self.model.add_implication(active, self.active[index, slot - 1])
                    later = self.stage[index, slot] > self.stage[index, slot - 1]
                    self.model.add(later).only_enforce_if(active)
                if recipe["workspace"] > 0:
                    at = self.model.new_optional_fixed_size_interval_var(
                        self.begin(index, slot), 1, active, ""
                    )
                    self.demands.append((at, recipe["workspace"]))
                if slot == 1:
                    for stage in recipe["generators"]:
                        first = self.execution(stage)
                        kept = self.model.new_optional_fixed_size_interval_var(
                            first, self.horizon() - first, active, ""
                        )
                        self.demands.append((kept, self.request["generator"]))

    def horizon(self) -> int:
        """One past the last event."""
        return self.request["stages"] * self.width

    def _add_retention(self) -> None:
        for index, value in enumerate(self.values):
            recipe = value["recipe"]
            first = self.begin(recipe, 0)
            pinned = self.execution(value["pin"]) + 1
            for slot in (0, *self.slots_of(recipe)):
                least = max(first + 1, pinned) if slot == 0 else first + 2
                end = self.model.new_int_var(least, self.horizon(), "")
                self.end[index, slot] = end
                length = self.model.new_int_var(1, self.horizon(), "")
                begin = self.begin(recipe, slot)
                if slot == 0:
                    held = self.model.new_interval_var(begin, length, end, "")
                else:
                    active = self.active[recipe, slot]
                    held = self.model.new_optional_interval_var(begin, length, end, active, "")
                    self.model.add(begin >= self.end[index, slot - 1]).only_enforce_if(active)
                self.demands.append((held, value["bytes"]))

    def _add_inputs(self) -> None:
        for index, value in enumerate(self.values):
            for stage in value["uses"]:
                self._add_read(index, self.execution(stage), None)
        for (recipe, slot), active in self.active.items():
            for value in self.recipes[recipe]["inputs"]:
                self._add_read(value, self.begin(recipe, slot), active)

    def _add_read(self, value: int, event: Any, active: Any) -> None:
        """Some retention interval of the value holds it at the event, where that takes place."""
        recipe = self.values[value]["recipe"]
        ways = []
        for slot in (0, *self.slots_of(recipe)):
            way = self.model.new_bool_var("")
            self.model.add(self.begin(recipe, slot) < event).only_enforce_if(way)
            self.model.add(self.end[value, slot] > event).only_enforce_if(way)
            if slot > 0:
                self.model.add_implication(way, self.active[recipe, slot])
            ways.append(way)
        if active is not None:
            ways.append(active.negated())
        self.model.add_bool_or(ways)

    def _add_constants(self) -> None:
        for first, last, held in self.request["fixed"]:
            span = self.model.new_fixed_size_interval_var(first, last + 1 - first, "")
            self.demands.append((span, held))

    def hint_plain(self) -> None:
        """Starts from plain training: no recompute, every value kept up to its last use."""
        for active in self.active.values():
            self.model.add_hint(active, 0)
        for index, value in enumerate(self.values):
            last = max([value["pin"], self.recipes[value["recipe"]]["made"], *value["uses"]])
            self.model.add_hint(self.end[index, 0], self.execution(last) + 1)

    def hint(self, other: Program, solver: cp_model.CpSolver) -> None:
        """Starts from another program's solution."""
        for mine, theirs in (
            (self.active, other.active),
            (self.stage, other.stage),
            (self.end, other.end),
        ):
            for key, variable in mine.items():
                self.model.add_hint(variable, solver.value(theirs[key]))

    def solve(self, seconds: float) -> tuple[cp_model.CpSolver, str]:
        """Solves on as many threads as the request says."""
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = max(seconds, 0.01)
        solver.parameters.num_workers = self.request["threads"]
        solver.parameters.relative_gap_limit = 0.0
        return solver, solver.status_name(solver.solve(self.model))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Phase one looks for any plan within the capacity, phase two for the cheapest from there."""

    def left() -> float:
        return float(request["time_limit"]) - (time.monotonic() - _BEGIN)

    memory = Program(request, find_capacity=True)
    memory.hint_plain()
    solver, status = memory.solve(left())  # ends as soon as the capacity is reached
    found = status in ("OPTIMAL", "FEASIBLE")
    if not found or solver.value(memory.capacity) > request["capacity"]:
        proven = status in ("OPTIMAL", "INFEASIBLE")
        return {"status": "infeasible" if proven else "unknown"}
    costs = Program(request, find_capacity=False)
    costs.hint(memory, solver)
    cheaper, status = costs.solve(left())
    if status in ("OPTIMAL", "FEASIBLE"):
        return _solution(costs, cheaper, cheaper.best_objective_bound, "phase two")
    return _solution(memory, solver, 0.0, "phase one")


def _solution(
    program: Program, solver: cp_model.CpSolver, bound: float, phase: str
) -> dict[str, Any]:
    replays = [
        [solver.value(program.stage[key]), key[0]]
        for key, active in program.active.items()
        if solver.value(active)
    ]
    return {"status": "solved", "phase": phase, "bound": bound, "replays": replays}


json.dump(answer(json.load(sys.stdin)), sys.stdout)
