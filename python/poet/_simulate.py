"""poet.simulate: what a training step costs, with a schedule or without."""

from __future__ import annotations

import os

from poet import _C
from poet._cache import open_cache
from poet._devices import find_device
from poet._errors import ArgumentError
from poet._models import as_graph, graph_on
from poet._results import Simulation
from poet._solve import with_store


def simulate(
    graph: _C.Graph | str | os.PathLike[str],
    schedule: _C.Schedule | None = None,
    *,
    platform: str = "host",
    page_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | bool | None = True,
) -> Simulation:
    """Replays a schedule over a graph, op by op, and adds up what it costs.

    Args:
        graph: the recorded step, or the path of a file written by `Graph.save`.
        schedule: what to do between the ops; None, or a schedule without a plan, for plain
            training.
        platform: name of the device that the step runs on. A step that was recorded here has its
            times there, as `poet.solve` works them out.
        page_dir: for a schedule that pages, the folder whose speed counts, which is measured in a
            second if it is not known yet; None for the device that the schedule was solved for
            (a schedule from a file knows none).
        cache_dir: where measured speeds are kept, as for `poet.solve`.

    Returns:
        Peak (bytes), time (seconds) and energy (joules) of the step.

    Raises:
        ScheduleError: the schedule belongs to another graph or cannot be carried out; the message
            names the op and the value.
        ArgumentError: an argument makes no sense.
        FormatError: the file named by `graph` holds no graph.
        PoetRuntimeError: the file cannot be read.
    """
    if schedule is not None and not isinstance(schedule, _C.Schedule):
        raise ArgumentError(
            f"schedule: expected a poet.Schedule or None; got {type(schedule).__name__}. "
            "Read a saved one with poet.Schedule.load(path)."
        )
    device = find_device(platform).profile
    if page_dir is not None:
        device = with_store(device, True, page_dir, open_cache(cache_dir))
    elif schedule is not None and schedule.device is not None and schedule.device.has_store:
        device = schedule.device
    return _C.simulate(graph_on(as_graph(graph), device, schedule), schedule, device)
