"""Random valid schedules for real graphs: whatever a planner may ever ask of the executor."""

from __future__ import annotations

import json
import random

import poet
from poet import _C

STORE_DEVICE = _C.DeviceProfile.by_name("host").with_store(
    read_rate=1e9,
    write_rate=1e9,
    read_latency_seconds=0.0,
    write_latency_seconds=0.0,
    dma_channels=0,
    wake_joules=0.0,
    source="a test",
)


class _Planner:
    """Walks the step once and frees, retains, recomputes and pages as the dice fall."""

    def __init__(
        self, graph: poet.Graph, seed: int, eagerness: float, paging: float, away_between: bool
    ) -> None:
        self.graph = graph
        self.dice = random.Random(seed)
        self.eagerness = eagerness
        self.paging = paging
        self.n = len(graph.ops)
        self.recipes = _C.recipes_of(graph)
        self.recipe_of = {v: r for r, recipe in enumerate(self.recipes) for v in recipe["outputs"]}
        self.resident: set[int] = set()
        self.retained: set[int] = set()
        self.stored: set[int] = set()  # with a copy of the version that the program has reached
        self.actions: list[dict[str, object]] = []
        self._tables()
        self.away: list[int] = []
        if away_between:
            self.away = [v.index for v in graph.values if self._may_be_away_between(v)]
            self.away = [v for v in self.away if self.dice.random() < 0.7]
        self.stored.update(self.away)
        self.resident -= set(self.away)

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
            elif v.death != -1:
                self.resident.add(v.index)
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
        self.since = self._deep_start()

    def _needs(self, op: poet.Op) -> set[int]:
        raw = op.name.split(".")[0] in ("aten::detach", "aten::alias")
        if (op.metadata_only and not raw) or _C.reads_no_data(self.graph, op.index):
            return set()
        return set(op.inputs)

    def _may_be_away_between(self, v: poet.Value) -> bool:
        return v.producer is None and v.death is None and v.evictable and v.index in self.uses

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

    def _deep_start(self) -> list[int]:
        """Of each recipe the last op that must have run, those of its inputs' recipes included.

        With a gradient that is scaled in place later (clipping) the other results of the op that
        made it come back only after that; they may die, and be wanted for others, long before.
        """
        since = [recipe["ops"][-1] for recipe in self.recipes]
        changed = True
        while changed:
            changed = False
            for r, recipe in enumerate(self.recipes):
                for u in recipe["inputs"]:
                    if u in self.recipe_of and since[self.recipe_of[u]] > since[r]:
                        since[r] = since[self.recipe_of[u]]
                        changed = True
        return since

    def _may_leave(self, v: int, at: int) -> bool:
        """Whether v, freed at `at`, can be brought back whenever it is needed or reachable."""
        if v in self.stored:
            return True
        r = self.recipe_of.get(v)
        if r is None or at <= max(self.since[r], self.written[v]):
            return False
        if v in self.recipes[r]["must_end_resident"]:  # Note [Recoverability] in graph/recipes.h
            return False
        death = self.graph.values[v].death
        last = max([u for u in self.uses.get(v, []) if u >= at], default=at)
        last = self.n if death is None else max(last, min(death, self.n))
        return self.until[r] >= last

    def _do(self, at: int, do: str, when: str = "before", **what: object) -> None:
        self.actions.append({"at": at, "when": when, "do": do, **what})

    def _free(self, v: int, at: int) -> None:
        self.resident.discard(v)
        self.retained.discard(v)
        self._do(at, "free", value=v)

    def _page_out(self, v: int, at: int, when: str = "before") -> None:
        self._do(at, "page_out", when, value=v)
        self.stored.add(v)

    def _come(self, v: int, at: int) -> None:
        self.resident.add(v)
        if at > self.shown[v]:
            self.retained.add(v)

    def _can_recompute(self, v: int, at: int) -> bool:
        r = self.recipe_of.get(v)
        return (
            r is not None
            and max(self.recipes[r]["ops"][-1], self.written[v]) < at <= self.until[r]
            and all(
                u in self.resident or u in self.stored or self._can_recompute(u, at)
                for u in self.recipes[r]["inputs"]
            )
        )

    def _bring_back(self, v: int, at: int) -> None:
        if v in self.stored and (self.dice.random() < 0.7 or not self._can_recompute(v, at)):
            self._do(at, "page_in", value=v)
            self._come(v, at)
            return
        recipe = self.recipes[self.recipe_of[v]]
        for u in recipe["inputs"]:
            if u not in self.resident:
                self._bring_back(u, at)
        self._do(at, "recompute", ops=list(recipe["ops"]))
        for u in recipe["outputs"]:
            if u not in self.resident:
                self._come(u, at)

    def _needed_at(self, at: int) -> set[int]:
        if at < self.n:
            return self._needs(self.graph.ops[at])
        return {v.index for v in self.graph.values if v.death is None} - set(self.away)

    def _before(self, at: int) -> None:
        needed = self._needed_at(at)
        for v in sorted(needed):
            if v not in self.resident:
                self._bring_back(v, at)
        for v in sorted(self.resident - needed):
            if self.graph.values[v].evictable and self.dice.random() < self.paging:
                self._page_out(v, at)
        for v in sorted(self.resident - needed):
            outside = self.graph.values[v].producer is None
            if outside and v not in self.stored:
                continue
            if self.dice.random() < self.eagerness and self._may_leave(v, at):
                self._free(v, at)

    def _after(self, k: int) -> None:
        """Values that no longer are shown are kept in memory, or in the store, beyond death."""
        for v in sorted(self.resident):
            value = self.graph.values[v]
            if self.shown[v] != k or value.death is None:
                continue
            if value.evictable and self.paging and self.dice.random() < 0.1:
                self._page_out(v, k, "after")
            if self.dice.random() < 0.1:
                self._do(k, "retain", "after", value=v)
                self.retained.add(v)

    def _end(self) -> None:
        self._before(self.n)
        for v in self.away:
            if v in self.resident:
                if v not in self.stored:
                    self._page_out(v, self.n)
                self._free(v, self.n)
            elif v not in self.stored:
                raise AssertionError(f"value {v} is lost")

    def plan(self) -> poet.Schedule:
        for k in range(self.n):
            self._before(k)
            self.resident.update(self.made.get(k, []))
            self.stored -= set(self.graph.ops[k].mutates)
            self._after(k)
            self.resident.difference_update(set(self.dies.get(k, [])) - self.retained)
        self._end()
        schedule = poet.Schedule.from_json(json.dumps(self._document()))
        _C.simulate(self.graph, schedule, STORE_DEVICE)  # refuses what cannot be carried out
        return schedule

    def _document(self) -> dict[str, object]:
        document: dict[str, object] = {
            "format": "poet-schedule",
            "version": 1,
            "graph_signature": self.graph.signature,
            "num_ops": self.n,
            "method": "random",
            "status": "feasible",
            "objective": "energy",
            "peak_bytes": 0,
            "peak_op": -1,
            "makespan_seconds": 0.0,
            "energy_joules": 0.0,
            "gap": 1.0,
            "bound_scope": "",
            "believed_peak_bytes": 0,
            "believed_seconds": 0.0,
            "solve_seconds": 0.0,
            "least_ram_op": -1,
            "message": "",
            "actions": self.actions,
        }
        if self.away:
            document["away_between_steps"] = self.away
        return document


def random_plan(
    graph: poet.Graph,
    seed: int,
    eagerness: float = 0.2,
    *,
    paging: float = 0.0,
    away_between: bool = False,
) -> poet.Schedule:
    """A schedule that the simulator accepts.

    Args:
        graph: the recorded step.
        seed: of the dice.
        eagerness: chance of a free, per value and op.
        paging: chance of a copy to the store, per value and op.
        away_between: whether values from before the step may be in the store between steps.
    """
    return _Planner(graph, seed, eagerness, paging, away_between).plan()
