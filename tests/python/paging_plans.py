"""Random schedules with transfers, as the JSON of a schedule holds them; most can be carried out.

Whatever leaves memory has a good copy in the store. What is needed comes back from there, or by a
recompute where its sources lie in memory.
"""

from __future__ import annotations

import random
from typing import Any

from naive_simulator import NaiveSimulator

JsonObject = dict[str, Any]


class _Walk:
    """Goes through a step once; the dice say what leaves."""

    def __init__(self, graph: JsonObject, seed: int, eagerness: float) -> None:
        self.step = NaiveSimulator(graph, [], {})  # for its tables; nothing is simulated
        self.ops, self.values = graph["ops"], graph["values"]
        self.dice, self.eagerness = random.Random(seed), eagerness
        self.end = len(self.ops)
        self.version = dict.fromkeys(range(len(self.values)), 0)
        self.store: dict[int, int] = {}
        self.retained: set[int] = set()
        self.actions: list[JsonObject] = []
        start = [v for v in self.version if self.step.producer(v) < 0 <= self.step.death(v)]
        self.away = [
            v
            for v in start
            if self.evictable(v) and self.step.death(v) == self.end and self.dice.random() < 0.6
        ]
        self.store.update(dict.fromkeys(self.away, 0))
        self.resident = set(start) - set(self.away)

    def evictable(self, v: int) -> bool:
        return bool(self.values[v].get("evictable", True))

    def emit(self, at: int, do: str, v: int, when: str = "before") -> None:
        self.actions.append({"at": at, "when": when, "do": do, "value": v})
        if do == "page_out":
            self.store[v] = self.version[v]

    def bring_back(self, v: int, at: int) -> None:
        made = self.step.made_by(self.step.producer(v))
        writers = {k for k, op in enumerate(self.ops) if {*op.get("mutates", [])} & {*made}}
        chain = sorted({self.step.producer(v), *writers})
        read: set[int] = set()
        for k in chain if chain[0] >= 0 else []:
            read |= self.step.touched(self.ops[k]) - {*self.ops[k].get("statistics", [])}
        if chain[0] >= 0 and chain[-1] < at and read - {*made} <= self.resident:
            late = {w for op in self.ops[chain[0] :] for w in op.get("mutates", [])} - {*made}
            again = all(self.ops[k].get("replayable", True) for k in chain)
            if again and not late & read and self.dice.random() < 0.8:
                self.actions.append({"at": at, "when": "before", "do": "recompute", "ops": chain})
                for w in made:
                    self.enter(w, at)
                return
        self.emit(at, "page_in", v)
        self.enter(v, at)

    def enter(self, v: int, at: int) -> None:
        if v not in self.resident and at > self.step.last_shown(v):
            self.retained.add(v)
        self.resident.add(v)

    def before(self, at: int) -> None:
        survivors = {v for v in self.version if self.step.death(v) == self.end}
        needed = self.step.touched(self.ops[at]) if at < self.end else survivors
        for v in sorted(self.resident - needed):
            if not self.evictable(v) or self.dice.random() >= self.eagerness:
                continue
            if self.store.get(v) != self.version[v] and self.dice.random() < 0.99:
                self.emit(at, "page_out", v)
            self.emit(at, "free", v)
            self.resident.discard(v)
            self.retained.discard(v)
        for v in sorted(needed - self.resident):
            stored = self.store.get(v) == self.version[v]
            if at == self.end and v in self.away and stored and self.dice.random() < 0.7:
                continue
            self.bring_back(v, at)

    def run(self) -> None:
        for at, op in enumerate(self.ops):
            self.before(at)
            for v in op.get("mutates", []):
                self.version[v] += 1
            self.resident |= set(self.step.made_by(at))
            for v in sorted(self.resident):
                if self.evictable(v) and self.dice.random() < self.eagerness / 4:
                    self.emit(at, "page_out", v, "after")
            self.resident -= {v for v in self.resident - self.retained if self.step.death(v) == at}
        self.before(self.end)


def paging_plan(
    graph: JsonObject, seed: int, eagerness: float = 0.25
) -> tuple[list[JsonObject], list[int]]:
    """The actions and away_between_steps of a schedule for `graph`.

    Args:
        graph: what the JSON of a `poet.Graph` holds.
        seed: the same one gives the same schedule.
        eagerness: chance that a value leaves, per value and op.
    """
    walk = _Walk(graph, seed, eagerness)
    walk.run()
    return walk.actions, walk.away
