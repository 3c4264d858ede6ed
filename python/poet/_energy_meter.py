"""What this machine draws: its energy counters, through the package zeus."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from poet import _C

_WINDOW = "poet"


@dataclasses.dataclass(frozen=True)
class Watts:
    """What a machine draws, as `poet.DeviceProfile` has it.

    Attributes:
        compute: above idle, while it computes.
        idle: always.
        memory: always, for memory.
        source: where these come from, for people.
    """

    compute: float
    idle: float
    memory: float
    source: str


class EnergyMeter:
    """The machine's energy counters: RAPL of its processors, NVML of its GPUs.

    The counters are read by `ZeusMonitor` of zeus (You, Chung, Chowdhury, NSDI 2023).
    """

    def __init__(self, monitor: Any) -> None:
        self._monitor = monitor
        self.has_cpu = bool(monitor.cpu_indices)
        self.num_gpus = len(monitor.gpu_indices)

    def measure(self, work: Callable[[], object]) -> tuple[float, dict[str, float]]:
        """Seconds of the work, and joules of "cpu", "dram" and "gpu", where they are counted."""
        self._monitor.begin_window(_WINDOW, sync_execution=False)
        try:
            work()
        except BaseException:
            self._monitor.end_window(_WINDOW, sync_execution=False, cancel=True)
            raise
        found = self._monitor.end_window(_WINDOW, sync_execution=False)
        parts = {"cpu": found.cpu_energy, "dram": found.dram_energy, "gpu": found.gpu_energy}
        return found.time, {name: sum(part.values()) for name, part in parts.items() if part}


def open_meter() -> tuple[EnergyMeter | None, str]:
    """The machine's meter; without one, why there is none and what to do."""
    try:
        from zeus.monitor import ZeusMonitor  # noqa: PLC0415  optional
    except ImportError:
        return None, "the package zeus is not installed (pip install zeus)"
    try:
        meter = EnergyMeter(ZeusMonitor())
    except Exception as error:  # whatever a driver says
        return None, f"zeus cannot read this machine's counters: {error}"
    if not meter.has_cpu:
        return None, (
            "this machine does not let zeus read its processors' counters (RAPL needs "
            "/sys/class/powercap/intel-rapl and the right to read it)"
        )
    return meter, ""


def measure_watts(busy: Callable[[], object], seconds: float) -> Watts:
    """What the processors draw idle and busy; the stated power model where nothing measures it.

    Args:
        busy: keeps the machine computing for about `seconds`.
        seconds: of each of the two windows.
    """
    stated = _C.DeviceProfile.by_name("host")
    meter, why_not = open_meter()
    if meter is None:
        return Watts(
            stated.compute_watts,
            stated.idle_watts,
            stated.memory_watts,
            f"{stated.energy_source}: {why_not}",
        )
    idle_time, idle = meter.measure(lambda: time.sleep(seconds))
    busy_time, loaded = meter.measure(busy)
    idle_watts = idle["cpu"] / idle_time
    source = (
        "measured by zeus: RAPL of the processor packages, idle and computing"
        if "dram" in loaded
        else "measured by zeus: RAPL of the processor packages, idle and computing; memory stated "
        f"({stated.memory_watts:g} W)"
    )
    memory = loaded["dram"] / busy_time if "dram" in loaded else stated.memory_watts
    return Watts(max(0.0, loaded["cpu"] / busy_time - idle_watts), idle_watts, memory, source)


def gpu_watts(seconds: float) -> float | None:
    """What the GPUs draw meanwhile, by NVML through zeus; None where there is none."""
    with contextlib.suppress(Exception):
        from zeus.monitor import ZeusMonitor  # noqa: PLC0415  optional

        meter = EnergyMeter(ZeusMonitor(cpu_indices=[]))
        if meter.num_gpus > 0:
            passed, joules = meter.measure(lambda: time.sleep(seconds))
            return joules["gpu"] / passed
    return None


__all__ = ["EnergyMeter", "Watts", "gpu_watts", "measure_watts", "open_meter"]
