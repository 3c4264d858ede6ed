"""Random training steps and random schedules for them, as hypothesis strategies.

They are plain dictionaries and lists: what the JSON of a `poet.Graph` and of a `poet.Schedule`
holds. Most schedules can be carried out; those that cannot are part of the point.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

JsonObject = dict[str, Any]


def graph_text(graph: JsonObject, **fields: Any) -> str:
    """The JSON text that `poet.Graph.from_json` takes; a signature of 0 asks for a hash."""
    head = {"format": "poet-graph", "version": 1, "signature": "0" * 16}
    return json.dumps(head | graph | fields)


def schedule_text(signature: str, num_ops: int, actions: list[JsonObject], **fields: Any) -> str:
    """The JSON text that `poet.Schedule.from_json` takes, for a plan that nobody has simulated."""
    head = {
        "format": "poet-schedule",
        "version": 1,
        "graph_signature": signature,
        "num_ops": num_ops,
        "method": "test",
        "status": "feasible",
        "objective": "energy",
        "peak_bytes": 0,
        "peak_op": -1,
        "makespan_seconds": 0.0,
        "energy_joules": 0.0,
        "bound_scope": "",
        "believed_peak_bytes": 0,
        "believed_seconds": 0.0,
        "solve_seconds": 0.0,
        "least_ram_op": -1,
        "message": "",
        "actions": actions,
    }
    return json.dumps(head | fields)


def make_op(name: str, inputs: list[int], outputs: list[int], **traits: Any) -> JsonObject:
    """An op with the defaults of the format."""
    return {"name": name, "inputs": inputs, "outputs": outputs, "seconds": 0.0} | traits


def make_value(size: int, producer: int = -1, **traits: Any) -> JsonObject:
    """A value with the defaults of the format; `close_lifetimes` adds its death."""
    return {"bytes": size, "producer": producer} | traits


def close_lifetimes(ops: list[JsonObject], values: list[JsonObject], outlive: set[int]) -> None:
    """Gives every value the earliest death, or the end of the step for those in `outlive`."""
    for index, value in enumerate(values):
        shown = [k for k, op in enumerate(ops) if index in op["inputs"] or index in op["outputs"]]
        last = max(shown, default=max(value["producer"], 0))
        value.setdefault("death", len(ops) if index in outlive else last)


@dataclass
class _Builder:
    """Draws a step op by op."""

    draw: st.DrawFn
    ops: list[JsonObject] = field(default_factory=list)
    values: list[JsonObject] = field(default_factory=list)

    def value(self, **traits: Any) -> int:
        size = self.draw(st.one_of(st.integers(0, 9), st.integers(100, 5000)))
        producer = len(self.ops) if traits.pop("made", True) else -1
        self.values.append(make_value(size, producer, **traits))
        return len(self.values) - 1

    def some(self, least: int, most: int) -> list[int]:
        known = st.integers(0, len(self.values) - 1)
        recent = st.integers(max(0, len(self.values) - 4), len(self.values) - 1)
        return self.draw(st.lists(st.one_of(known, recent), min_size=least, max_size=most))

    def op(self) -> None:
        kinds = (
            ["compute"] * 6 + ["inplace"] * 2 + ["view", "detach", "like", "dropout", "norm", "out"]
        )
        kind = self.draw(st.sampled_from(kinds))
        common = {
            "seconds": self.draw(st.integers(0, 1000)) / 1024,
            "host_seconds": self.draw(st.sampled_from((0, 0, 1, 300))) / 1024,
            "workspace_bytes": self.draw(st.sampled_from([0, 0, 0, 700, 3000])),
            "phase": self.draw(st.sampled_from(["forward", "backward", "optimizer", "other"])),
        }
        if self.draw(st.integers(0, 15)) == 0:
            common["replayable"] = False
        self.ops.append(getattr(self, "_" + kind)(common))

    def _compute(self, common: JsonObject) -> JsonObject:
        inputs = self.some(0, 3)
        count = self.draw(st.sampled_from([1, 1, 1, 2, 3]))
        outputs = [self.value(evictable=self.draw(st.integers(0, 9)) != 0) for _ in range(count)]
        return make_op("aten::compute", inputs, outputs, **common)

    def _inplace(self, common: JsonObject) -> JsonObject:
        target, *others = self.some(1, 2)
        random = self.draw(st.integers(0, 3)) == 0
        return make_op(
            "aten::add_", [target, *others], [target], mutates=[target], random=random, **common
        )

    def _view(self, common: JsonObject) -> JsonObject:
        (source,) = self.some(1, 1)
        return make_op("aten::view", [source], [source], metadata_only=True, **common)

    def _detach(self, common: JsonObject) -> JsonObject:
        (source,) = self.some(1, 1)
        name = self.draw(
            st.sampled_from(
                ["aten::detach", "aten::alias", "aten::detach.special", "aten::detach_copy"]
            )
        )
        return make_op(name, [source], [source], metadata_only=True, **common)

    def _like(self, common: JsonObject) -> JsonObject:
        inputs = self.some(1, 1)
        return make_op("aten::empty_like", inputs, [self.value()], reads_no_data=True, **common)

    def _dropout(self, common: JsonObject) -> JsonObject:
        inputs = self.some(1, 1)
        return make_op(
            "aten::native_dropout", inputs, [self.value(), self.value()], random=True, **common
        )

    def _norm(self, common: JsonObject) -> JsonObject:
        source, running = self.some(2, 2)
        return make_op(
            "aten::native_batch_norm",
            [source, running],
            [self.value()],
            mutates=[running],
            statistics=[running],
            **common,
        )

    def _out(self, common: JsonObject) -> JsonObject:
        """Writes into values that it may or may not read, and may make one besides."""
        targets, inputs = sorted(set(self.some(1, 2))), self.some(0, 2)
        made = [self.value()] if self.draw(st.booleans()) else []
        return make_op("aten::fill.out", inputs, [*targets, *made], mutates=targets, **common)


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 14) -> JsonObject:
    """A step with views, in-place chains, several outputs, statistics and random ops."""
    step = _Builder(draw)
    for kind in draw(
        st.lists(st.sampled_from(["input", "parameter", "buffer"]), min_size=1, max_size=3)
    ):
        step.value(made=False, kind=kind)
    for _ in range(draw(st.integers(0 if draw(st.integers(0, 20)) == 0 else 3, max_ops))):
        step.op()
    count = len(step.ops)
    outlive = {v for v in range(len(step.values)) if draw(st.integers(0, 3)) == 0}
    close_lifetimes(step.ops, step.values, outlive)
    for value in step.values:  # autograd frees late: some deaths lag behind the last use
        value["death"] = min(count, value["death"] + draw(st.sampled_from([0, 0, 0, 1, 3])))
    return {"base_bytes": draw(st.sampled_from([0, 1000])), "ops": step.ops, "values": step.values}


class _Walk:
    """Goes through a step once and draws actions; brings back what the next op needs."""

    def __init__(self, draw: st.DrawFn, graph: JsonObject) -> None:
        self.draw, self.ops, self.values = draw, graph["ops"], graph["values"]
        self.resident = {v for v, value in enumerate(self.values) if value["producer"] < 0}
        self.retained: set[int] = set()
        self.actions: list[JsonObject] = []

    def emit(self, at: int, when: str, what: str, **arg: Any) -> None:
        self.actions.append({"at": at, "when": when, "do": what} | arg)

    def rarely(self, one_in: int) -> bool:
        # Neither bound: hypothesis likes those, and nothing is what it should shrink to.
        return self.draw(st.integers(0, one_in)) == one_in // 2 + 1

    def last_shown(self, v: int) -> int:
        shows = [k for k, op in enumerate(self.ops) if v in op["inputs"] or v in op["outputs"]]
        return max(shows, default=0)

    def chain(self, v: int) -> list[int]:
        """What makes `v`, and what writes into anything made there."""
        first = self.values[v]["producer"]
        made = {w for w, value in enumerate(self.values) if value["producer"] == first}
        writers = [
            k
            for k, op in enumerate(self.ops)
            if made & (set(op.get("mutates", [])) - set(op.get("statistics", [])))
        ]
        return [first, *writers]

    def reads(self, k: int) -> set[int]:
        op = self.ops[k]
        detach = op["name"].split(".")[0] in ("aten::detach", "aten::alias")
        silent = op.get("reads_no_data") or (op.get("metadata_only") and not detach)
        return set(op.get("mutates", [])) | set([] if silent else op["inputs"])

    def sources(self, ops: list[int]) -> set[int]:
        """What a chain reads that it does not make itself."""
        own = {w for w, value in enumerate(self.values) if value["producer"] == ops[0]}
        read = [self.reads(k) - set(self.ops[k].get("statistics", [])) for k in ops]
        return set().union(*read) - own

    def may_run_again(self, ops: list[int], at: int) -> bool:
        """As far as one look at its ops can tell."""
        if ops[0] < 0 or ops[-1] >= at:
            return False
        first = self.ops[ops[0]]
        quiet = set(first.get("mutates", [])) == set(first.get("statistics", []))
        return quiet and all(self.ops[k].get("replayable", True) for k in ops)

    def can_return(self, v: int, at: int, depth: int = 0) -> bool:
        """May come back before any op from `at` on, by chains whose sources nobody writes into."""
        ops = self.chain(v)
        if ops[0] < 0:
            return self.values[v]["death"] == len(self.ops) and v in self.resident
        if depth > 6 or not self.may_run_again(ops, at):
            return False
        made = [value for value in self.values if value["producer"] == ops[0]]
        if not all(value.get("evictable", True) for value in made):
            return False
        late = {w for op in self.ops[ops[0] + 1 :] for w in op.get("mutates", [])}
        sources = self.sources(ops)
        return not sources & late and all(self.can_return(w, at, depth + 1) for w in sources)

    def bring_back(self, v: int, at: int, depth: int = 0) -> None:
        ops = self.chain(v)
        if depth > 20 or not self.may_run_again(ops, at):
            return
        made = {w for w, value in enumerate(self.values) if value["producer"] == ops[0]}
        for w in sorted(self.sources(ops)):
            if w not in self.resident:
                self.bring_back(w, at, depth + 1)
        self.emit(at, "before", "recompute", ops=ops)
        for w in sorted(made - self.resident):
            self.resident.add(w)
            if at > self.last_shown(w):
                self.retained.add(w)

    def may_go(self, v: int, at: int) -> bool:
        """Freeing `v` before op `at` can be made good later, or need not be."""
        if not self.values[v].get("evictable", True):
            return False
        read_later = any(v in self.reads(k) for k in range(at, len(self.ops)))
        gone_later = not read_later and self.values[v]["death"] < len(self.ops)
        return gone_later or (self.values[v]["producer"] >= 0 and self.can_return(v, at))

    def frees(self, at: int, keep: set[int]) -> None:
        for v in sorted(self.resident - keep):
            if self.rarely(3) and (self.may_go(v, at) or self.rarely(200)):
                self.emit(at, "before", "free", value=v)
                self.resident.discard(v)
                self.retained.discard(v)

    def run(self) -> None:
        for at, op in enumerate(self.ops):
            self.frees(at, set())
            for v in sorted(self.reads(at) - self.resident):
                self.bring_back(v, at)
            if at and self.rarely(8):
                v = self.draw(st.integers(0, len(self.values) - 1))
                if self.can_return(v, at) or self.rarely(20):
                    self.bring_back(v, at)
            self.frees(at, self.reads(at))
            self.resident |= {v for v in op["outputs"] if self.values[v]["producer"] == at}
            for v in sorted(self.resident):
                if self.last_shown(v) == at and self.rarely(4):
                    self.emit(at, "after", "retain", value=v)
                    self.retained.add(v)
            self.resident -= {
                v for v in self.resident - self.retained if self.values[v]["death"] == at
            }
        survivors = {v for v, value in enumerate(self.values) if value["death"] == len(self.ops)}
        self.frees(len(self.ops), survivors)
        for v in sorted(survivors - self.resident):
            self.bring_back(v, len(self.ops))


@st.composite
def plans(draw: st.DrawFn, graph: JsonObject) -> list[JsonObject]:
    """The list of actions of a schedule for `graph`."""
    walk = _Walk(draw, graph)
    walk.run()
    return walk.actions
