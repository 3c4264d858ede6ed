"""Secondary storage: the folder that paged values go to, and what has been measured of it."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import platform
import time
from pathlib import Path

from poet import _C
from poet._cache import Cache
from poet._errors import ArgumentError, StoreWarning
from poet._methods import Method
from poet._warn import warn

MEASURE_SECONDS = 1.0
_STALE_SECONDS = 30 * 86400.0
_CLOCK_SKEW_SECONDS = 86400.0
_RATES = (1e3, 1e13)  # bytes a second: from a modem to what no store reaches
_LATENCIES = (0.0, 60.0)
_measured: dict[str, StoreSpeed] = {}


@dataclasses.dataclass(frozen=True)
class StoreSpeed:
    """What was measured of a folder.

    Attributes:
        directory: the folder.
        read_rate: bytes a second.
        write_rate: bytes a second.
        read_latency_seconds: time of the shortest read.
        write_latency_seconds: time of the shortest write.
        measured_at: seconds since 1970.
    """

    directory: str
    read_rate: float
    write_rate: float
    read_latency_seconds: float
    write_latency_seconds: float
    measured_at: float

    def on(self, device: _C.DeviceProfile) -> _C.DeviceProfile:
        """The device with this store."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self.measured_at))
        return device.with_store(
            self.read_rate,
            self.write_rate,
            self.read_latency_seconds,
            self.write_latency_seconds,
            dma_channels=1,  # the thread that transfers beside the step
            source=f"measured in {self.directory} on {day}",
        )


def page_folder(page_dir: object) -> str:
    """The folder that paged values go to.

    Args:
        page_dir: a folder, or None for the system's: $TMPDIR, else /var/tmp, else /tmp.

    Returns:
        Its absolute path.

    Raises:
        ArgumentError: it takes no page file, for the message's reason (it lies in RAM, say).
    """
    if page_dir is None:
        return os.path.realpath(_C.page_folder())
    try:
        name = os.fsencode(page_dir) if isinstance(page_dir, str | os.PathLike) else b""
    except UnicodeEncodeError:  # half of a surrogate pair
        name = b""
    if not name or b"\0" in name:
        raise ArgumentError(
            "page_dir: expected a folder on a disk, or None for the system's folder for temporary "
            f"files; got {page_dir!r}."
        )
    try:
        folder = Path(os.fsdecode(name)).expanduser()
    except RuntimeError as error:
        raise ArgumentError(f"page_dir: expected a folder, got {page_dir!r}: {error}") from error
    return os.path.realpath(_C.page_folder(folder))


def _folder_for_pages(
    recompute: bool, paging: bool, page_dir: str | os.PathLike[str] | None
) -> str | None:
    """The folder for paged values; None where nothing is to be paged."""
    if not paging:
        if page_dir is not None:
            raise ArgumentError(
                f"page_dir: expected None beside paging=False; got {page_dir!r}. Leave one of "
                "them out."
            )
        if not recompute:
            raise ArgumentError(
                "recompute, paging: expected at least one of them to be on; with both off nothing "
                "could make room. Leave one of them out."
            )
        return None
    try:
        return page_folder(page_dir)
    except ArgumentError as error:
        if page_dir is not None:
            raise
        if not recompute:
            raise ArgumentError(
                f"recompute=False: expected a folder for paged values then. {error}"
            ) from error
        _warn_of_no_folder(str(error))
        return None


@functools.cache  # once for each reason
def _warn_of_no_folder(why: str) -> None:
    warn(
        f"poet pages nothing to secondary storage, it only recomputes: {why} Pass page_dir= a "
        "folder on a disk, or paging=False to say that this is fine.",
        StoreWarning,
    )


def folder_for_method(
    can: Method, recompute: bool, paging: bool, page_dir: str | os.PathLike[str] | None
) -> str | None:
    """As `_folder_for_pages`, for a method that may not page, or do nothing else."""
    if can.recomputes and not can.pages and not recompute:
        raise ArgumentError(
            f"recompute=False: the method {can.name!r} makes room by recomputing. Leave it out, or "
            "choose another method."
        )
    if can.pages or page_dir is not None:
        return _folder_for_pages(recompute and can.recomputes, paging, page_dir)
    return None


def known_speed(directory: str, cache: Cache | None) -> StoreSpeed | None:
    """What was measured of the folder on this machine within 30 days; None for nothing."""
    if directory not in _measured and cache is not None:
        kept = _kept_speed(directory, cache)
        if kept is not None:
            _measured[directory] = kept
    return _measured.get(directory)


def _kept_speed(directory: str, cache: Cache) -> StoreSpeed | None:
    key = _key(directory)
    payload = cache.get("store", key)
    if payload is None:
        return None
    try:
        speed = StoreSpeed(directory=directory, **payload)
    except TypeError:
        cache.drop("store", key, "it holds no speeds")
        return None
    if not _is_sound(speed):
        cache.drop("store", key, "it holds speeds that no store has")
        return None
    fresh = -_CLOCK_SKEW_SECONDS < time.time() - speed.measured_at < _STALE_SECONDS
    return speed if fresh else None


def store_speed(directory: str, cache: Cache | None, *, remeasure: bool = False) -> StoreSpeed:
    """The folder's speed; measured, which takes about a second, where it is not known.

    Args:
        directory: what `page_folder` gave.
        cache: where speeds are kept between runs; None for this process only.
        remeasure: measure although the speed is known.

    Raises:
        ArgumentError: the folder takes no page file.
        StoreError: it is full, or a transfer failed.
    """
    known = None if remeasure else known_speed(directory, cache)
    if known is not None:
        return known
    figures = _C.measure_store(directory, MEASURE_SECONDS)
    speed = StoreSpeed(directory=directory, measured_at=time.time(), **figures)
    _measured[directory] = speed
    if cache is not None:
        kept = dataclasses.asdict(speed)
        del kept["directory"]
        cache.put("store", _key(directory), kept)
    return speed


def host_speed(device: str) -> StoreSpeed:
    """Of the host's pinned memory, to which an accelerator's values are paged; measured at once."""
    figures = _C.measure_host_transfers(device)
    return StoreSpeed(directory=f"pinned memory for {device}", measured_at=time.time(), **figures)


def _key(directory: str) -> dict[str, object]:
    return {
        "directory": directory,
        "device": os.stat(directory).st_dev,
        "machine": machine_name(),
        "kernel": platform.release(),
        "poet": _C.version,
    }


def machine_name() -> str:
    """What tells this machine from another one that shares the cache's folder."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if text:
            return text
    return platform.node()


def _is_sound(speed: StoreSpeed) -> bool:
    figures = dataclasses.asdict(speed)
    del figures["directory"]
    if not all(type(f) in (int, float) and math.isfinite(f) for f in figures.values()):
        return False
    rates = (speed.read_rate, speed.write_rate)
    latencies = (speed.read_latency_seconds, speed.write_latency_seconds)
    return all(_RATES[0] <= rate <= _RATES[1] for rate in rates) and all(
        _LATENCIES[0] <= latency <= _LATENCIES[1] for latency in latencies
    )


__all__ = [
    "MEASURE_SECONDS",
    "StoreSpeed",
    "host_speed",
    "known_speed",
    "machine_name",
    "page_folder",
    "store_speed",
]
