"""A second simulator: slow, plain, written from the Note in csrc/schedule/schedule.h alone.

It imports nothing of poet and reads the JSON of a graph and of a schedule. Two dictionaries do the
work: which version of each value the program has reached, and which version lies in memory.
A third one holds the versions in the store, and a clock runs beside them: it jumps from one moment
to the next at which somebody has to wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]


class RefusedError(Exception):
    """The schedule cannot be carried out."""


class NaiveSimulator:
    """Replays one step. Sizes in bytes, times in seconds; `device` is a DeviceProfile's figures."""

    def __init__(
        self,
        graph: Json,
        actions: list[Json],
        device: dict[str, float],
        away: Iterable[int] = (),
    ) -> None:
        self.ops, self.values, self.actions = graph["ops"], graph["values"], actions
        self.away = set(away)
        self.device = device
        self.end = len(self.ops)
        self.steady = graph["base_bytes"]  # what never leaves; generator states join it
        self.reached = {v: 0 for v in range(len(self.values)) if self.producer(v) < 0}
        self.memory = {v: 0 for v in self.reached if self.death(v) >= 0}
        self.store = dict.fromkeys(self.away, 0)
        for v in self.away:
            self.leave(v)
        self.retained: set[int] = set()
        replayed = {op for action in actions for op in action.get("ops", [])}
        self.keeps_generator = {op for op in replayed if self.ops[op].get("random")}
        self.peak = self.peak_op = -1
        self.resident: list[int] = []
        self.seconds = self.recompute_seconds = 0.0
        self.recomputed_ops = 0
        self.clock = 0.0
        self.arrivals: dict[int, float] = {}  # when the last page_in of a value is done
        self.departures: dict[int, float] = {}  # when its last page_out is done
        self.channels = [0.0] * int(device.get("dma_channels", 0))
        self.transfer_seconds = 0.0
        self.moved = {"page_out": [0, 0], "page_in": [0, 0]}  # transfers, bytes
        self.awake: set[int] = set()  # gaps between ops in which a transfer is asked for

    def run(self) -> NaiveSimulator:
        for k, op in enumerate(self.ops):
            self.act(k, "before")
            self.run_op(k, op)
            self.act(k, "after")
            for v in [v for v in self.memory if self.death(v) == k and v not in self.retained]:
                self.wait(v, self.arrivals, self.departures)
                self.leave(v)
        self.act(self.end, "before")
        self.note(self.end, [], 0)  # counts where there is no op at all
        for v in range(len(self.values)):
            if self.death(v) != self.end or self.memory.get(v) == self.reached[v]:
                continue
            if v not in self.away or self.store.get(v) != self.reached[v]:
                raise RefusedError(f"value {v} is missing at the end")
        self.clock = max([self.clock, *self.channels])
        return self

    def joules(self) -> float:
        """As the power model of csrc/device/profile.h says."""
        watts = self.device
        return (
            watts["compute_watts"] * (self.seconds + self.recompute_seconds)
            + (watts["idle_watts"] + watts["memory_watts"]) * self.clock
            + watts["store_watts"] * self.transfer_seconds
            + watts["wake_joules"] * len(self.awake)
        )

    def leave(self, v: int) -> None:
        del self.memory[v]

    def wait(self, v: int, *moments: dict[int, float]) -> None:
        self.clock = max([self.clock, *(moment.get(v, 0.0) for moment in moments)])

    def transfer(self, v: int, what: str, ops_run: int) -> float:
        """Starts one transfer; returns when it is done."""
        if not self.device.get("store_read_rate"):
            raise RefusedError("there is no store")
        size = self.values[v]["bytes"]
        way = "write" if what == "page_out" else "read"
        seconds = self.device[f"store_{way}_latency_seconds"]
        seconds += size / self.device[f"store_{way}_rate"]
        self.transfer_seconds += seconds
        self.awake.add(ops_run)
        self.moved[what][0] += 1
        self.moved[what][1] += size
        if not self.channels:
            self.clock += seconds
            return self.clock
        self.channels.sort()
        self.channels[0] = max(self.channels[0], self.clock) + seconds
        return self.channels[0]

    def producer(self, v: int) -> int:
        return int(self.values[v].get("producer", -1))

    def death(self, v: int) -> int:
        return int(self.values[v].get("death", -1))

    def made_by(self, k: int) -> list[int]:
        return [v for v in range(len(self.values)) if self.producer(v) == k]

    def touched(self, op: Json) -> set[int]:
        """Values whose bytes the op needs: what it reads and what it writes into."""
        raw = op["name"].split(".")[0] in ("aten::detach", "aten::alias")
        silent = op.get("reads_no_data") or (op.get("metadata_only") and not raw)
        return {*([] if silent else op.get("inputs", [])), *op.get("mutates", [])}

    def last_shown(self, v: int) -> int:
        fields = ("inputs", "outputs", "mutates")
        shows = (k for k, op in enumerate(self.ops) if any(v in op.get(f, []) for f in fields))
        return max(shows, default=0)

    def version_before(self, v: int, k: int) -> int:
        return sum(v in op.get("mutates", []) for op in self.ops[:k])

    def note(self, op: int, values: Iterable[int], workspace: int) -> int:
        """Adds up what lies in memory beside `values`; keeps the first highest sum."""
        sizes = [self.values[v]["bytes"] for v in (*self.memory, *values)]
        total: int = self.steady + sum(sizes) + workspace
        if total > self.peak:
            self.peak, self.peak_op = total, op
        return total

    def run_op(self, k: int, op: Json) -> None:
        for v in self.touched(op):
            if self.memory.get(v) != self.reached[v]:
                raise RefusedError(f"op {k} touches value {v}, which is not there")
            self.wait(v, self.arrivals)
        for v in self.made_by(k):
            self.reached[v] = self.memory[v] = 0
        for v in op.get("mutates", []):
            self.wait(v, self.departures)
            self.reached[v] += 1
            self.memory[v] += 1
        if k in self.keeps_generator:
            self.steady += int(self.device["generator_state_bytes"])
        self.resident.append(self.note(k, [], op.get("workspace_bytes", 0)))
        seconds = op.get("seconds", 0.0) + op.get("host_seconds", 0.0)
        self.seconds += seconds
        self.clock += seconds

    def act(self, at: int, when: str) -> None:
        for action in self.actions:
            if (action["at"], action["when"]) != (at, when):
                continue
            if action["do"] == "recompute":
                self.recompute(at, at + (when == "after"), action["ops"])
                continue
            v = action["value"]
            if action["do"] == "page_in":
                self.page_in(v, at, at + (when == "after"))
                continue
            if v not in self.memory:
                raise RefusedError(f"{action} of a value that is not in memory")
            if action["do"] != "retain" and not self.values[v].get("evictable", True):
                raise RefusedError(f"{action} of memory that is not the framework's")
            if action["do"] == "free":
                self.wait(v, self.arrivals, self.departures)
                self.leave(v)
                self.retained.discard(v)
            elif action["do"] == "page_out":
                self.wait(v, self.arrivals)
                self.note(at, [], 0)
                self.departures[v] = self.transfer(v, "page_out", at + (when == "after"))
                self.store[v] = self.memory[v]
            elif when == "after" and at == self.last_shown(v):
                self.retained.add(v)
            else:
                raise RefusedError(f"{action} elsewhere than after the last op that shows it")

    def page_in(self, v: int, at: int, ops_run: int) -> None:
        if v in self.memory or self.store.get(v) is None:
            raise RefusedError(f"value {v} cannot be paged in at op {at}")
        if self.store[v] != self.reached[v]:
            raise RefusedError(f"the store holds an old version of value {v} at op {at}")
        self.wait(v, self.departures)
        self.memory[v] = self.store[v]
        self.note(at, [], 0)
        self.arrivals[v] = self.transfer(v, "page_in", ops_run)
        if ops_run > self.last_shown(v):
            self.retained.add(v)

    def recompute(self, at: int, ops_run: int, chain: list[int]) -> None:  # noqa: PLR0912
        fresh = dict.fromkeys(self.made_by(chain[0]), 0)
        if not fresh:
            raise RefusedError(f"op {chain[0]} makes nothing")
        for k in chain:
            op = self.ops[k]
            statistics = {*op.get("statistics", [])}
            writes = {*op.get("mutates", [])} - statistics
            if k >= ops_run or not op.get("replayable", True):
                raise RefusedError(f"op {k} cannot run again at op {at}")
            if k != chain[0] and (self.made_by(k) or statistics or not writes):
                raise RefusedError(f"op {k} does not just write into what op {chain[0]} makes")
            if writes - fresh.keys():
                raise RefusedError(f"op {k} would write into {writes} a second time")
            for v in self.touched(op) - statistics:
                if (fresh if v in fresh else self.memory).get(v) != self.version_before(v, k):
                    raise RefusedError(f"op {k} would not find value {v} as it first was")
                if v not in fresh:
                    self.wait(v, self.arrivals)
            for v in writes:
                fresh[v] += 1
            again = self.device["replay_factor"] * op.get("seconds", 0.0)
            self.recompute_seconds += again + self.device["replay_fixed_seconds"]
            self.clock += again + self.device["replay_fixed_seconds"]
        for v in fresh:
            if self.version_before(v, len(self.ops)) != self.version_before(v, ops_run):
                raise RefusedError(f"a later op writes into value {v}, which comes back whole only")
        self.recomputed_ops += len(chain)
        self.note(at, fresh, max(self.ops[k].get("workspace_bytes", 0) for k in chain))
        for v in fresh:
            if fresh[v] != self.reached[v]:
                raise RefusedError(f"value {v} would come back without a write into it")
            if v in self.memory:
                continue
            if not self.values[v].get("evictable", True):
                raise RefusedError(f"value {v} needs memory that is not the framework's")
            self.memory[v] = fresh[v]
            if ops_run > self.last_shown(v):
                self.retained.add(v)
