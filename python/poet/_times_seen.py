"""Whether a step takes as long as the times that it was recorded with say."""

from __future__ import annotations

import json
from collections.abc import Sequence

from poet import _C

# Note [Times from a busy machine]
# The seconds of each op are those of one or two recorded calls, and they last: a profile serves all
# runs of the next month. Where something else used the machine during those calls, every plan
# believes in a step that takes longer than it does, and deadlines in seconds, batteries and the
# choice between a page and a recompute rest on that. So the first steps in a plan are timed too, op
# by op, and where the least times are far below the recorded ones they take their place, in the
# profile too, and a plan is made again. Steps that take longer are left alone: they are slow for as
# long as whatever else runs, and nobody knows how long that is.
_FAR_LESS = 0.7  # of what was recorded


def with_times_seen(graph: _C.Graph, op_seconds: Sequence[float]) -> _C.Graph | None:
    """The step with the seconds that its ops took beside a plan; None where the recorded ones do.

    Args:
        graph: the step with the seconds that plans were made with.
        op_seconds: what each op took at least.
    """
    if len(op_seconds) != len(graph.ops) or sum(op_seconds) >= _FAR_LESS * graph.plain_seconds:
        return None
    step = json.loads(graph.to_json())
    for op, seconds in zip(step["ops"], op_seconds, strict=True):
        op["seconds"] = min(op.get("seconds", 0.0), seconds)
    return _C.Graph.from_json(json.dumps(step))


__all__ = ["with_times_seen"]
