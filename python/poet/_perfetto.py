"""Schedule.to_perfetto: a schedule as a trace for ui.perfetto.dev."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from poet import _C
from poet._enums import NodeKind
from poet._outputs import check_output
from poet._timeline import Span, Timeline, timeline

# One row of the viewer for each; transfers beside ops overlap with the rows of ops.
_ROWS = {
    NodeKind.OP: (1, "compute"),
    NodeKind.RECOMPUTE: (2, "recompute"),
    NodeKind.PAGE_OUT: (3, "page-out"),
    NodeKind.PAGE_IN: (4, "page-in"),
}
_PROCESS = 1
_MICROSECONDS = 1e6


def to_perfetto(
    schedule: _C.Schedule,
    path: str | os.PathLike[str] | None = None,
    graph: _C.Graph | None = None,
    device: _C.DeviceProfile | None = None,
) -> str:
    """The schedule in the Trace Event Format: JSON that Perfetto and chrome://tracing open.

    Args:
        schedule: with a plan, or without one for the plain step.
        path: file to write; None for none.
        graph: the step it was made for; None for the one that it knows.
        device: what it runs on; None for the one that it knows.

    Returns:
        The JSON text.

    Raises:
        ArgumentError: no file can be written to `path`.

    Source of the format: "Trace Event Format", Google; events of type X (spans), C (counters) and
    M (names).
    """
    if path is not None:
        check_output(path, "path")
    line = timeline(schedule, graph, device)
    events = _names(line)
    for span in line.spans:
        if span.kind in _ROWS and span.seconds > 0:
            events.append(_event(span))
    events += _memory(line)
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def _names(line: Timeline) -> list[dict[str, Any]]:
    title = f"training step on {line.device.name}"
    events = [_name("process_name", 0, title)]
    events += [_name("thread_name", row, name) for row, name in _ROWS.values()]
    return events


def _name(what: str, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": row, "args": {"name": name}}


def _event(span: Span) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.name,
        "cat": str(span.phase),
        "pid": _PROCESS,
        "tid": _ROWS[span.kind][0],
        "ts": span.start * _MICROSECONDS,
        "dur": span.seconds * _MICROSECONDS,
        "args": {
            "op": span.op,
            "phase": str(span.phase),
            "resident_bytes": span.resident_bytes,
            "waited_us": span.waited * _MICROSECONDS,
        },
    }


def _memory(line: Timeline) -> list[dict[str, Any]]:
    events = []
    last: int | None = None
    for span in line.spans:
        if span.resident_bytes == last:
            continue
        last = span.resident_bytes
        at = span.start * _MICROSECONDS
        event = {"ph": "C", "name": "resident bytes", "pid": _PROCESS, "ts": at}
        events.append(event | {"args": {"bytes": span.resident_bytes}})
    return events


__all__ = ["to_perfetto"]
