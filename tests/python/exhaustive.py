"""The cheapest schedule of a tiny step by trying everything: Dijkstra over what lies in memory.

It holds to the contract of schedules (csrc/schedule/schedule.h) and takes the recipes as given
(csrc/graph/recipes.h). Exponential: for steps of a handful of ops.
"""

from __future__ import annotations

import heapq
import itertools
import json
from typing import Any, NamedTuple

from naive_simulator import NaiveSimulator

import poet
from poet import _C

HOST = poet.DeviceProfile.by_name("host")
DEVICE = {
    name: getattr(HOST, name)
    for name in ("replay_factor", "replay_fixed_seconds", "generator_state_bytes")
}

Json = dict[str, Any]


class State(NamedTuple):
    """Before op `at`: the values in memory, and those of them that do not die by themselves."""

    at: int
    memory: frozenset[int]
    retained: frozenset[int]


class Exhaustive:
    """All schedules of one step within `budget` bytes that replay chains, each as one unit.

    `device` is a DeviceProfile's figures. A value is freed at the earliest after its last write.
    """

    def __init__(
        self,
        graph: Json,
        recipes: list[Json],
        budget: int,
        device: dict[str, float],
    ) -> None:
        self.guarded = {v for recipe in recipes for v in recipe["must_end_resident"]}
        chains = [recipe["ops"] for recipe in recipes]
        # Note [Passing versions] in csrc/graph/recipes.h.
        self.may_run = [r["ops"] for r in recipes if r["valid_until"] > r["ops"][-1]]
        self.graph, self.budget, self.device = graph, budget, device
        self.facts = NaiveSimulator(graph, [], device)
        self.ops, self.values = graph["ops"], graph["values"]
        # Whatever has no recipe lives as in plain training.
        self.free_from = {
            v: max(k for k in range(len(self.ops)) if k == chain[0] or v in self.writes(k)) + 1
            for chain in chains
            for v in self.facts.made_by(chain[0])
        }

    def writes(self, k: int) -> list[int]:
        return [*self.ops[k].get("mutates", [])]

    def seconds(self, allowed_random: frozenset[int]) -> float | None:
        """The least extra seconds of any schedule that replays no random op but those."""
        chains = [
            chain
            for chain in self.may_run
            if all(not self.ops[k].get("random") or k in allowed_random for k in chain)
        ]
        start = State(0, frozenset(self.facts.memory), frozenset())
        queue: list[tuple[float, int, State]] = [(0.0, 0, start)]
        order = itertools.count(1)
        done: set[State] = set()
        while queue:
            cost, _, state = heapq.heappop(queue)
            if state in done:
                continue
            done.add(state)
            if state.at == len(self.ops):
                ends = {v for v in range(len(self.values)) if self.facts.death(v) == state.at}
                if ends <= state.memory:
                    return cost
            for extra, after in self.moves(state, chains, allowed_random):
                if after not in done:
                    heapq.heappush(queue, (cost + extra, next(order), after))
        return None

    def best(self) -> float | None:
        """The least extra seconds of any schedule; None where there is none within the budget."""
        random = sorted({k for chain in self.may_run for k in chain if self.ops[k].get("random")})
        found = [
            seconds
            for count in range(len(random) + 1)
            for allowed in itertools.combinations(random, count)
            if (seconds := self.seconds(frozenset(allowed))) is not None
        ]
        return min(found, default=None)

    def moves(
        self, state: State, chains: list[list[int]], kept: frozenset[int]
    ) -> list[tuple[float, State]]:
        found = [(0.0, free) for free in self.frees(state)]
        found += [step for chain in chains if (step := self.replay(state, chain, kept))]
        if state.at < len(self.ops):
            found += [(0.0, after) for after in self.run_op(state, kept)]
        return found

    def frees(self, state: State) -> list[State]:
        return [
            State(state.at, state.memory - {v}, state.retained - {v})
            for v in state.memory
            if state.at >= self.free_from.get(v, len(self.ops) + 1)
        ]

    def fits(self, op: int, values: list[int], workspace: int, kept: frozenset[int]) -> bool:
        states = sum(k <= op for k in kept) * int(self.device["generator_state_bytes"])
        total = self.graph["base_bytes"] + states + workspace
        return total + sum(self.values[v]["bytes"] for v in values) <= self.budget

    def replay(
        self, state: State, chain: list[int], kept: frozenset[int]
    ) -> tuple[float, State] | None:
        fresh = self.facts.made_by(chain[0])
        if chain[-1] >= state.at or state.memory.issuperset(fresh):
            return None
        for k in chain:
            op = self.ops[k]
            for v in self.facts.touched(op) - {*op.get("statistics", [])} - {*fresh}:
                now, then = (self.facts.version_before(v, at) for at in (state.at, k))
                if v not in state.memory or now != then:
                    return None
            for v in (self.facts.touched(op) - {*op.get("statistics", [])}) & {*fresh}:
                if self.facts.version_before(v, k) != sum(
                    v in self.ops[j].get("mutates", []) for j in chain if j < k
                ):
                    return None
        workspace = max(self.ops[k].get("workspace_bytes", 0) for k in chain)
        if not self.fits(state.at - 1, [*state.memory, *fresh], workspace, kept):
            return None
        back = set(fresh) - state.memory
        late = {v for v in back if state.at > self.facts.last_shown(v)}
        cost = sum(
            self.device["replay_factor"] * self.ops[k].get("seconds", 0.0)
            + self.device["replay_fixed_seconds"]
            for k in chain
        )
        return cost, State(state.at, state.memory | back, state.retained | late)

    def run_op(self, state: State, kept: frozenset[int]) -> list[State]:
        op, made = self.ops[state.at], self.facts.made_by(state.at)
        if not self.facts.touched(op) <= state.memory:
            return []
        # Note [Recoverability] in csrc/graph/recipes.h.
        there = {*state.memory, *made}  # what is made here may die here
        if any(self.facts.death(v) == state.at and v not in there for v in self.guarded):
            return []
        if not self.fits(state.at, [*state.memory, *made], op.get("workspace_bytes", 0), kept):
            return []
        memory = state.memory | set(made)
        dying = {v for v in memory if self.facts.death(v) == state.at} - state.retained
        # Retaining matters only for what would die; it is allowed where the value is last shown.
        may_stay = [v for v in sorted(memory) if self.facts.last_shown(v) == state.at]
        may_stay = [v for v in may_stay if v in self.free_from]
        results = []
        for count in range(len(may_stay) + 1):
            for stay in itertools.combinations(may_stay, count):
                kept_values = state.retained | set(stay)
                results.append(State(state.at + 1, memory - (dying - {*stay}), kept_values))
        return results


def extra_seconds(graph: poet.Graph, budget: int) -> float | None:
    """What the best schedule within the budget adds to the plain time; None where none is."""
    recipes = _C.recipes_of(graph)
    return Exhaustive(json.loads(graph.to_json()), recipes, budget, DEVICE).best()


def least_budget(graph: poet.Graph) -> int:
    """The least budget that has a schedule."""
    low, high = 0, graph.plain_peak_bytes()  # none within the one, plain training within the other
    while low + 1 < high:
        middle = (low + high) // 2
        if extra_seconds(graph, middle) is None:
            low = middle
        else:
            high = middle
    return high
