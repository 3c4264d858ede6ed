"""Seconds of a step's ops: as they were recorded, or as steps in a plan took them since."""

from __future__ import annotations

import json
from collections.abc import Sequence

from poet import _C
from poet._plans import PlanCache

# Note [Times from a busy machine]
# The seconds of each op are those of one or two recorded calls, and they last: a profile serves all
# runs of the next month. Where something else used the machine during those calls, every plan
# believes in a step that takes longer than it does, and deadlines in seconds, batteries and the
# choice between a page and a recompute rest on that. So the first steps in a plan are timed too, op
# by op, and where the least times are far below the recorded ones they take their place, in the
# profile too, and a plan is made again. Steps that take longer are left alone: they are slow for as
# long as whatever else runs, and nobody knows how long that is.
_FAR_LESS = 0.7  # of what was recorded


class OpTimes:
    """The best times that are known of the steps of one session. Not thread-safe."""

    def __init__(self, session: _C.Session, cached: PlanCache | None) -> None:
        self._session = session
        self._cached = cached
        self._looked_at: set[int] = set()  # variants whose steps in a plan were timed
        # And what took the place of recorded times.
        self._seen: dict[int, tuple[list[float], list[float]]] = {}

    def best(self, variant: int, graph: _C.Graph) -> _C.Graph:
        """The step with the best times that are known; they are kept for later runs."""
        known = None if self._cached is None else self._cached.profiled(graph)
        if known is not None:
            return known
        timed = with_times_seen(graph, *self._seen.get(variant, ((), ()))) or graph
        if self._cached is not None:
            self._cached.keep_profile(timed)
        return timed

    def correct(self, variant: int) -> tuple[float, float] | None:
        """Looks at the times of the variant's steps in a plan, once there are enough of them.

        Returns:
            Seconds of a plain step as plans have believed them, and as `best` has them from now on;
            None where nothing changes.
        """
        if variant in self._looked_at:
            return None
        seen, graph = self._session.op_seconds(variant), self._session.graph_of(variant)
        if not seen[0] or graph is None:
            return None
        self._looked_at.add(variant)
        believed = self.best(variant, graph)
        timed = with_times_seen(believed, *seen)
        if timed is None:
            return None
        self._seen[variant] = seen
        if self._cached is not None:
            self._cached.keep_profile(timed)
        return believed.plain_seconds, timed.plain_seconds


def with_times_seen(
    graph: _C.Graph, op_seconds: Sequence[float], host_seconds: Sequence[float]
) -> _C.Graph | None:
    """The step with the seconds that its ops took beside a plan; None where the recorded ones do.

    Args:
        graph: the step with the seconds that plans were made with.
        op_seconds: what each op took at least.
        host_seconds: what the program took before it at least.
    """
    if not len(op_seconds) == len(host_seconds) == len(graph.ops):
        return None
    if sum(op_seconds) + sum(host_seconds) >= _FAR_LESS * graph.plain_seconds:
        return None
    step = json.loads(graph.to_json())
    for op, seconds, host in zip(step["ops"], op_seconds, host_seconds, strict=True):
        op["seconds"] = min(op.get("seconds", 0.0), seconds)
        op["host_seconds"] = min(op.get("host_seconds", 0.0), host)
    return _C.Graph.from_json(json.dumps(step))


__all__ = ["OpTimes", "with_times_seen"]
