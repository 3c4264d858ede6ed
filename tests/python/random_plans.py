"""Random valid schedules for real graphs: whatever a planner may ever ask of the executor."""

from __future__ import annotations

import json
import random

import poet
from poet import _C


class _Planner:
    """Walks the step once and frees, retains and recomputes as the dice fall."""

    def __init__(self, graph: poet.Graph, seed: int, eagerness: float) -> None:
        self.graph = graph
        self.dice = random.Random(seed)
        self.eagerness = eagerness
        self.n = len(graph.ops)
        self.recipes = _C.recipes_of(graph)
        self.recipe_of = {v: r for r, recipe in enumerate(self.recipes) for v in recipe["outputs"]}
        self.resident: set[int] = set()
        self.retained: set[int] = set()
        self.actions: list[dict[str, object]] = []
        self._tables()

    def _tables(self) -> None:
        ops, values = self.graph.ops, self.graph.values
        self.made: dict[int, list[int]] = {}
        self.dies: dict[int, list[int]] = {}
        self.uses: dict[int, list[int]] = {}
        self.shown = {v.index: v.producer or 0 for v in values}
        self.written = {v.index: -1 for v in values}
        for v in values:
            if v.producer is not None:
                self.made.setdefault(v.producer, []).append(v.index)
            if v.death is not None:
                self.dies.setdefault(v.death, []).append(v.index)
        for op in ops:
            for v in {*op.inputs, *op.outputs}:
                self.shown[v] = op.index
            for v in op.mutates:
                self.written[v] = op.index
            for v in self._needs(op):
                self.uses.setdefault(v, []).append(op.index)
        self.until = self._deep_validity()

    def _needs(self, op: poet.Op) -> set[int]:
        raw = op.name.split(".")[0] in ("aten::detach", "aten::alias")
        if (op.metadata_only and not raw) or _C.reads_no_data(self.graph, op.index):
            return set()
        return set(op.inputs)

    def _deep_validity(self) -> list[int]:
        until = [recipe["valid_until"] for recipe in self.recipes]
        changed = True
        while changed:
            changed = False
            for r, recipe in enumerate(self.recipes):
                for u in recipe["inputs"]:
                    if u in self.recipe_of and until[self.recipe_of[u]] < until[r]:
                        until[r] = until[self.recipe_of[u]]
                        changed = True
        return until

    def _may_leave(self, v: int, at: int) -> bool:
        """Whether v, freed at `at`, can be brought back whenever it is needed or reachable."""
        r = self.recipe_of.get(v)
        if r is None or at <= max(self.recipes[r]["ops"][-1], self.written[v]):
            return False
        death = self.graph.values[v].death
        last = max([u for u in self.uses.get(v, []) if u >= at], default=at)
        last = self.n if death is None else max(last, min(death, self.n))
        return self.until[r] >= last

    def _do(self, at: int, do: str, **what: object) -> None:
        self.actions.append(
            {"at": at, "when": "after" if do == "retain" else "before", "do": do, **what}
        )

    def _free(self, v: int, at: int) -> None:
        self.resident.discard(v)
        self.retained.discard(v)
        self._do(at, "free", value=v)

    def _recompute(self, v: int, at: int) -> None:
        recipe = self.recipes[self.recipe_of[v]]
        for u in recipe["inputs"]:
            if self.graph.values[u].producer is not None and u not in self.resident:
                self._recompute(u, at)
        self._do(at, "recompute", ops=list(recipe["ops"]))
        for u in recipe["outputs"]:
            self.resident.add(u)
            if at > self.shown[u]:
                self.retained.add(u)

    def _before(self, at: int) -> None:
        needed = self._needs(self.graph.ops[at]) if at < self.n else set()
        if at == self.n:
            needed = {
                v.index for v in self.graph.values if v.death is None and v.producer is not None
            }
        for v in sorted(needed):
            if self.graph.values[v].producer is not None and v not in self.resident:
                self._recompute(v, at)
        for v in sorted(self.resident - needed):
            if self.dice.random() < self.eagerness and self._may_leave(v, at):
                self._free(v, at)

    def plan(self) -> poet.Schedule:
        for k in range(self.n):
            self._before(k)
            self.resident.update(self.made.get(k, []))
            for v in sorted(self.resident):
                if (
                    self.shown[v] == k
                    and self.graph.values[v].death is not None
                    and self.dice.random() < 0.1
                ):
                    self._do(k, "retain", value=v)
                    self.retained.add(v)
            self.resident.difference_update(set(self.dies.get(k, [])) - self.retained)
        self._before(self.n)
        document = json.loads(poet.solve(graph=self.graph, ram_budget=2**62).to_json())
        document["actions"] = self.actions
        document["status"] = "feasible"
        document["gap"] = 1.0
        schedule = poet.Schedule.from_json(json.dumps(document))
        poet.simulate(self.graph, schedule)  # refuses what cannot be carried out
        return schedule


def random_plan(graph: poet.Graph, seed: int, eagerness: float = 0.2) -> poet.Schedule:
    """A schedule that the simulator accepts; `eagerness`: chance of a free, per value and op."""
    return _Planner(graph, seed, eagerness).plan()
