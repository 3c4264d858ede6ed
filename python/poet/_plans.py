"""Plans that last: profiles of steps and schedules in the cache, checked before they are used."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
import time
from pathlib import Path
from typing import Any, TypeGuard

import torch

from poet import _C
from poet._budgets import ByteBudget, TimeBudget, parse_bytes, parse_runtime
from poet._cache import Cache, digest
from poet._enums import Status
from poet._errors import PoetError

# Of each op, what a profile keeps.
_FIGURES = ("seconds", "host_seconds", "workspace_bytes")
# A profile is measured anew after this time: machines and loads change.
_STALE_SECONDS = 30 * 86400.0
# What a process holds beside the step may differ by this share of the budget: a plan made for the
# one does for the other, if the simulator agrees.
_PEAK_TOLERANCE = 0.01
_LAST_MOMENT = 1e12  # seconds since 1970
# Rounding of a sum of seconds; the simulator is the same on both sides.
_SECONDS_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True)
class PlanRequest:
    """What a plan is asked for.

    Attributes:
        device: profile of the device, its store included.
        ram_budget: as the user gave it.
        runtime_budget: as the user gave it.
        minimize: the objective.
        recompute: plans may recompute.
        paging: plans may page.
        away_between_steps: optimizer state and parameters may stay in the store between steps.
        time_limit_s: seconds that the search may take.
        method: what plans.
        step_seconds: that a deadline of the whole training leaves for the step; None: none.
    """

    device: _C.DeviceProfile
    ram_budget: ByteBudget
    runtime_budget: TimeBudget | None
    minimize: str
    recompute: bool
    paging: bool
    away_between_steps: bool
    time_limit_s: float
    method: str = "poet"
    step_seconds: float | None = None

    def key(self) -> dict[str, Any]:
        """What two requests must share to have the same plans."""
        budgets: tuple[object, ...] = (_plain(self.ram_budget), _plain(self.runtime_budget))
        if self.step_seconds is not None:
            budgets += (self.step_seconds,)
        return {
            "device": _profile_figures(self.device),
            "budgets": budgets,
            "minimize": self.minimize,
            "method": self.method,
            "switches": (self.recompute, self.paging, self.away_between_steps),
        }


class PlanCache:
    """Profiles and plans of steps in a cache.

    A step is known by its structure: ops, shapes, storages and lifetimes, not by its times. Its
    profile is the times of the first run; plans are made for a profile, and later runs take over
    both.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def profiled(self, graph: _C.Graph) -> _C.Graph | None:
        """The step with the times that an earlier run measured; None where none did.

        Workspaces are the greater ones of both runs, everything else is the graph's own.
        """
        step = json.loads(graph.to_json())
        key = _trace_key(step)
        payload = self._cache.get("trace", key)
        if payload is None:
            return None
        measured, ops = payload.get("measured_at"), payload.get("ops")
        if not _is_moment(measured) or not _are_figures(ops, len(step["ops"])):
            self._cache.drop("trace", key, "it holds no times of this step")
            return None
        if not 0 <= time.time() - measured < _STALE_SECONDS:
            return None
        assert isinstance(ops, list)
        for op, (seconds, host_seconds, workspace) in zip(step["ops"], ops, strict=True):
            op["seconds"], op["host_seconds"] = seconds, host_seconds
            op["workspace_bytes"] = max(op.get("workspace_bytes", 0), workspace)
        try:
            return _C.Graph.from_json(json.dumps(step))
        except PoetError:
            self._cache.drop("trace", key, "it holds figures that no step has")
            return None

    def keep_profile(self, graph: _C.Graph) -> None:
        """Keeps the step's times for later runs."""
        step = json.loads(graph.to_json())
        ops = [tuple(op.get(figure, 0) for figure in _FIGURES) for op in step["ops"]]
        self._cache.put("trace", _trace_key(step), {"measured_at": time.time(), "ops": ops})

    def find(
        self, graph: _C.Graph, request: PlanRequest, ram_budget_bytes: int
    ) -> _C.Schedule | None:
        """A plan for this request, simulated on this graph; None where there is none.

        Args:
            graph: what `profiled` gave.
            request: what is asked for.
            ram_budget_bytes: its budget for this graph.
        """
        key = _plan_key(graph, request)
        payload = self._cache.get("plan", key)
        if payload is None:
            return None
        schedule = self._sound(payload, key, graph, request)
        if schedule is None or not self._will_do(payload, schedule, graph, request):
            return None
        simulated = _C.simulate(graph, schedule, request.device)
        if simulated.peak_bytes > ram_budget_bytes:
            return None
        difference = abs(payload["plain_peak_bytes"] - graph.plain_peak_bytes())
        if difference > _PEAK_TOLERANCE * ram_budget_bytes:
            return None  # with that much more room, or less, another plan may be better
        vars(schedule).update(_graph=graph, _device=request.device)
        return schedule

    def keep(self, graph: _C.Graph, request: PlanRequest, schedule: _C.Schedule) -> None:
        """Keeps a plan for later runs; a schedule without one is not kept."""
        if schedule.status not in (Status.OPTIMAL, Status.FEASIBLE):
            return
        payload = {
            "schedule": schedule.to_json(),
            "plain_peak_bytes": graph.plain_peak_bytes(),
            "time_limit_s": request.time_limit_s,
        }
        self._cache.put("plan", _plan_key(graph, request), payload)

    def _sound(
        self, payload: dict[str, Any], key: dict[str, Any], graph: _C.Graph, request: PlanRequest
    ) -> _C.Schedule | None:
        """The schedule of an entry that is what it says; any other entry is dropped."""
        text = payload.get("schedule")
        numbers = (payload.get("plain_peak_bytes"), payload.get("time_limit_s"))
        if not isinstance(text, str) or not all(type(n) in (int, float) for n in numbers):
            self._cache.drop("plan", key, "it holds no plan")
            return None
        try:
            schedule = _C.Schedule.from_json(text)
            schedule.check_against(graph)
            simulated = _C.simulate(graph, schedule, request.device)
        except PoetError as error:
            self._cache.drop("plan", key, f"its plan cannot be carried out: {error}")
            return None
        stated = schedule.makespan_seconds
        if (
            schedule.status not in (Status.OPTIMAL, Status.FEASIBLE)
            or abs(stated - simulated.makespan_seconds) > _SECONDS_TOLERANCE * stated
        ):
            self._cache.drop("plan", key, "its figures are not those of its plan")
            return None
        return schedule

    def _will_do(
        self,
        payload: dict[str, Any],
        schedule: _C.Schedule,
        graph: _C.Graph,
        request: PlanRequest,
    ) -> bool:
        """Whether a new search is not worth while."""
        if schedule.status is not Status.OPTIMAL and payload["time_limit_s"] < request.time_limit_s:
            return False  # the longer search may find a better one
        deadline = deadline_seconds(request, graph.plain_seconds)
        if deadline is None:
            return True
        return schedule.makespan_seconds <= deadline * (1 + _SECONDS_TOLERANCE)


def budget_bytes(request: PlanRequest, plain_peak_bytes: int) -> int:
    """The request's memory budget for a step of that plain peak, in bytes."""
    return parse_bytes(request.ram_budget, plain_peak_bytes=plain_peak_bytes)


def deadline_seconds(request: PlanRequest, plain_seconds: float) -> float | None:
    """What a step of that plain time may take, in seconds; None: no limit."""
    if request.runtime_budget is None:
        return request.step_seconds
    seconds = parse_runtime(request.runtime_budget, plain_seconds=plain_seconds)
    return seconds if request.step_seconds is None else min(seconds, request.step_seconds)


def _trace_key(step: dict[str, Any]) -> dict[str, Any]:
    return {"structure": _structure(step), "environment": _environment()}


def _plan_key(graph: _C.Graph, request: PlanRequest) -> dict[str, Any]:
    step = json.loads(graph.to_json())
    times = digest([(op.get("seconds", 0), op.get("host_seconds", 0)) for op in step["ops"]])
    return _trace_key(step) | {"times": times} | request.key()


def _structure(step: dict[str, Any]) -> str:
    """A hash of everything but what is measured or depends on what else the process holds."""
    measured = {*_FIGURES, "flops"}
    ops = [{k: v for k, v in op.items() if k not in measured} for op in step["ops"]]
    rest = {k: v for k, v in step.items() if k not in ("ops", "base_bytes")}
    return digest([rest, ops])


def _environment() -> dict[str, Any]:
    """What a profile depends on beside the step."""
    return {
        "poet": _C.version,
        "build": _build(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
    }


@functools.cache
def _build() -> list[tuple[str, int, int]]:
    """Tells builds of one version apart, so that a changed planner finds no older plan."""
    native = Path(_C.__file__)
    folders = (native.parent / "bin", native.parent / "lib")
    files = [native, *(file for folder in folders if folder.is_dir() for file in folder.iterdir())]
    return sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file())


@functools.cache
def cpu_model() -> str:
    """The processor's name as Linux gives it."""
    names = ("model name", "CPU implementer", "CPU part", "Hardware")
    found = dict.fromkeys(names, "")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if found.get(name.strip(), "taken") == "":
            found[name.strip()] = value.strip()
    return found["model name"] or " ".join(filter(None, [platform.machine(), *found.values()]))


def _profile_figures(device: _C.DeviceProfile) -> dict[str, Any]:
    return {
        "name": device.name,
        "watts": (device.compute_watts, device.idle_watts, device.memory_watts, device.store_watts),
        "replay": (device.replay_factor, device.replay_fixed_seconds, device.generator_state_bytes),
        "store_rates": (device.store_read_rate, device.store_write_rate),
        "store_latencies": (device.store_read_latency_seconds, device.store_write_latency_seconds),
        "store_rest": (device.wake_joules, device.dma_channels),
    }


def _plain(budget: object) -> object:
    """A budget as JSON can write it; NumPy's numbers are numbers too."""
    if budget is None or isinstance(budget, str):
        return budget
    return float(budget) if not isinstance(budget, int) else budget  # type: ignore[arg-type]


def _is_moment(measured: object) -> TypeGuard[float]:
    """Whether this may be what time.time() gave."""
    return (
        isinstance(measured, int | float)
        and not isinstance(measured, bool)
        and abs(measured) < _LAST_MOMENT
    )


def _are_figures(ops: object, count: int) -> bool:
    """Whether these are the `_FIGURES` of so many ops."""
    if not isinstance(ops, list) or len(ops) != count:
        return False
    takes_time = any(isinstance(op, list) and op and op[0] != 0 for op in ops)
    return takes_time and all(
        isinstance(op, list)
        and len(op) == len(_FIGURES)
        and all(type(seconds) in (int, float) and seconds >= 0 for seconds in op[:2])
        and type(op[2]) is int
        and 0 <= op[2] < 1 << 62
        for op in ops
    )


__all__ = ["PlanCache", "PlanRequest", "budget_bytes", "cpu_model", "deadline_seconds"]
