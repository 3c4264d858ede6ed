"""poet.profile: what this machine takes for operators, transfers and watts."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import time
from typing import Any

import torch

from poet import _C
from poet._budgets import format_seconds
from poet._cache import Cache, open_cache
from poet._devices import HOST
from poet._energy_meter import Watts, gpu_watts, measure_watts
from poet._errors import ArgumentError, PoetError
from poet._op_times import ClassFit, OpTime, fill_in, fit, measure_ops
from poet._plans import cpu_model
from poet._progress import RoundsBar
from poet._store import StoreSpeed, machine_name, page_folder, store_speed

_STALE_SECONDS = 30 * 86400.0
_REPEATS = 5
_WATT_SECONDS = 1.0
_KIND = "profile"
_known: dict[str, HostProfile] = {}


@dataclasses.dataclass(frozen=True)
class HostProfile:
    """What was measured of this machine.

    Attributes:
        machine: processor, cores, threads of PyTorch, versions.
        ops: operators as they ran, by class and size.
        fits: the cost models fitted on them, with their held-out errors.
        watts: what the machine draws, and where that comes from.
        gpu_watts: what its GPUs draw meanwhile, by NVML; None: not known.
        store: the folder for paged values; None where no folder takes them.
        measured_at: seconds since 1970.
    """

    machine: dict[str, Any]
    ops: tuple[OpTime, ...]
    fits: tuple[ClassFit, ...]
    watts: Watts
    gpu_watts: float | None
    store: StoreSpeed | None
    measured_at: float

    @property
    def energy_source(self) -> str:
        """Where the watts come from."""
        return self.watts.source

    @property
    def device(self) -> _C.DeviceProfile:
        """The profile that `platform="host"` has with these figures."""
        device = self.on(_C.DeviceProfile.by_name(HOST))
        return device if self.store is None else self.store.on(device)

    def on(self, device: _C.DeviceProfile) -> _C.DeviceProfile:
        """The device with these watts."""
        record = json.loads(device.to_json())
        record["compute_watts"] = self.watts.compute
        record["idle_watts"] = self.watts.idle
        record["memory_watts"] = self.watts.memory
        record["energy_source"] = self.watts.source
        return _C.DeviceProfile.from_json(json.dumps(record))

    def fill_in(self, graph: _C.Graph) -> tuple[_C.Graph, int]:
        """The step with predicted seconds for ops that were never run, and how many these are."""
        return fill_in(graph, {each.op_class: each for each in self.fits})

    def as_record(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return dataclasses.asdict(self) | {"energy_source": self.energy_source}

    def __str__(self) -> str:
        lines = [
            f"{self.machine['cpu']}, {self.machine['cores']} cores, PyTorch on "
            f"{self.machine['threads']} threads"
        ]
        lines += [_line(each) for each in self.fits]
        if self.store is not None:
            lines.append(
                f"  store {self.store.directory}: reads {self.store.read_rate:.3g} bytes/s, writes "
                f"{self.store.write_rate:.3g} bytes/s"
            )
        watts = self.watts
        lines.append(
            f"  {watts.compute:.3g} W computing, {watts.idle:.3g} W idle, {watts.memory:.3g} W "
            f"memory: {watts.source}"
        )
        if self.gpu_watts is not None:
            lines.append(f"  GPUs meanwhile: {self.gpu_watts:.3g} W, by NVML")
        return "\n".join(lines)


def _line(each: ClassFit) -> str:
    rate = f"{1 / each.seconds_per_flop:.3g} flop/s" if each.seconds_per_flop else "-"
    traffic = f"{1 / each.seconds_per_byte:.3g} bytes/s" if each.seconds_per_byte else "-"
    return (
        f"  {each.op_class:12} {each.points:4} ops: {format_seconds(each.overhead_seconds)} to "
        f"start, {rate}, {traffic}; error of the {each.held_out_points} held out: median "
        f"{100 * each.median_error:.0f} %, worst {100 * each.worst_error:.0f} %"
    )


def profile(
    *,
    device: str = HOST,
    page_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | bool | None = True,
    remeasure: bool = False,
    verbose: bool = False,
) -> HostProfile:
    """Measures this machine: seconds of operators by class and size, its store, its watts.

    Takes some seconds, once for each machine, number of threads and version of PyTorch; the result
    is kept in `cache_dir` for 30 days. `poet.solve` and `poet.wrap` use the measured watts from
    then on, and `poet.solve` the cost model for ops of a graph that were never run. Times of ops
    that did run stay those that were recorded.

    Watts come from the processors' own counters (RAPL) through the package zeus, where both are
    there (`pip install zeus`); else from the stated power model.
    `HostProfile.energy_source` says which, as `Schedule.device.energy_source` does.

    Args:
        device: "host". Other devices are described by files.
        page_dir: the folder for paged values; None for the system's.
        cache_dir: as for `poet.solve`.
        remeasure: measure although it is known.
        verbose: shows a progress bar.

    Raises:
        ArgumentError: `device` is another one, or `page_dir` takes no page file.
    """
    if device != HOST:
        raise ArgumentError(
            f'device: expected "host", the machine that poet runs on; got {device!r}. Other '
            "devices are described by files: poet show devices lists them, profiles/README.md says "
            "how to write one."
        )
    cache = open_cache(cache_dir)
    known = None if remeasure else known_profile(cache)
    if known is not None:
        return known
    with RoundsBar(_REPEATS + 2, "poet: measuring", shown=verbose) as bar:
        ops = measure_ops(_REPEATS, lambda _: bar.advance())
        watts = measure_watts(lambda: _busy(_WATT_SECONDS), _WATT_SECONDS)
        gpus = gpu_watts(_WATT_SECONDS)
        bar.advance()
        store = _store(page_dir, cache, remeasure)
        bar.advance()
    found = HostProfile(
        machine=_machine(),
        ops=ops,
        fits=fit(ops),
        watts=watts,
        gpu_watts=gpus,
        store=store,
        measured_at=time.time(),
    )
    _keep(found, cache)
    return found


def known_profile(cache: Cache | None) -> HostProfile | None:
    """What was measured of this machine within 30 days; None for nothing."""
    key = _key()
    name = json.dumps(key, sort_keys=True)
    if name not in _known and cache is not None:
        payload = cache.get(_KIND, key)
        if payload is not None:
            try:
                _known[name] = _read(payload)
            except (TypeError, ValueError, KeyError, PoetError):
                cache.drop(_KIND, key, "it holds no profile of a machine")
    found = _known.get(name)
    fresh = found is not None and 0 <= time.time() - found.measured_at < _STALE_SECONDS
    return found if fresh else None


def with_known_watts(device: _C.DeviceProfile, cache: Cache | None) -> _C.DeviceProfile:
    """The host with the watts that `profile` found, where it has run; any device otherwise."""
    known = known_profile(cache) if device.name == HOST else None
    return device if known is None else known.on(device)


def with_known_times(graph: _C.Graph, cache: Cache | None) -> tuple[_C.Graph, str]:
    """A step of the host with seconds for ops that were never run, where `profile` has run.

    Returns:
        The step, and a note for people; "" where nothing was filled in.
    """
    if all(op.seconds > 0 or op.flops == 0 for op in graph.ops):
        return graph, ""
    known = known_profile(cache)
    filled, count = (graph, 0) if known is None else known.fill_in(graph)
    note = f"the times of {count} ops that were never run come from the cost model" if count else ""
    return filled, note


def _keep(found: HostProfile, cache: Cache | None) -> None:
    key = _key()
    _known[json.dumps(key, sort_keys=True)] = found
    if cache is not None:
        cache.put(_KIND, key, dataclasses.asdict(found))


def _read(payload: dict[str, Any]) -> HostProfile:
    found = HostProfile(
        machine=dict(payload["machine"]),
        ops=tuple(OpTime(**each) for each in payload["ops"]),
        fits=tuple(ClassFit(**each) for each in payload["fits"]),
        watts=Watts(**payload["watts"]),
        gpu_watts=payload["gpu_watts"],
        store=None if payload["store"] is None else StoreSpeed(**payload["store"]),
        measured_at=payload["measured_at"],
    )
    figures = [found.measured_at]
    for each in found.fits:
        figures += [each.overhead_seconds, each.seconds_per_flop, each.seconds_per_byte]
    if not all(type(f) in (int, float) and math.isfinite(f) and f >= 0 for f in figures):
        raise ValueError("figures that no machine has")
    _ = found.device  # checks watts and rates
    return found


def _store(page_dir: object, cache: Cache | None, remeasure: bool) -> StoreSpeed | None:
    try:
        folder = page_folder(page_dir)
    except ArgumentError:
        if page_dir is not None:
            raise
        return None
    return store_speed(folder, cache, remeasure=remeasure)


def _busy(seconds: float) -> None:
    x = torch.randn(256, 256)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        x @ x


def _machine() -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "poet": _C.version,
    }


def _key() -> dict[str, Any]:
    return _machine() | {"machine": machine_name(), "kernel": platform.release()}


__all__ = ["HostProfile", "known_profile", "profile", "with_known_times", "with_known_watts"]
