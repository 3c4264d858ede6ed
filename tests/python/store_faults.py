"""Faults of the page store, by the hooks of csrc/store/io_hooks.h that its own tests use."""

from __future__ import annotations

import ctypes
import enum
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from poet import _C


class Fault(enum.IntEnum):
    """As `poet::StoreFault`."""

    NONE = 0
    GROW_NO_SPACE = 1
    WRITE_NO_SPACE = 2
    WRITE_ERROR_ONCE = 3
    WRITE_ERROR = 4
    SHORT_WRITE = 5
    READ_ERROR_ONCE = 6
    READ_ERROR = 7
    SHORT_READ = 8
    READ_NOTHING = 9
    FLIP_BIT = 10
    RUIN = 11


# What costs no value: the store tries again, mends, or leaves the value in memory.
HARMLESS = (
    Fault.WRITE_NO_SPACE,
    Fault.WRITE_ERROR_ONCE,
    Fault.WRITE_ERROR,
    Fault.SHORT_WRITE,
    Fault.READ_ERROR_ONCE,
    Fault.SHORT_READ,
    Fault.FLIP_BIT,
)
# What goes on until another fault is injected.
LASTING = (Fault.WRITE_NO_SPACE, Fault.WRITE_ERROR, Fault.READ_ERROR, Fault.READ_NOTHING)


@functools.cache
def _core() -> Any:
    return ctypes.CDLL(str(Path(_C.__file__).parent / "lib" / "libpoet_core.so"))


@contextmanager
def injected(fault: Fault, nth: int) -> Iterator[None]:
    """That fault strikes at the `nth` transfer within the block, 1 being the first."""
    inject = _core()["_ZN4poet16injectStoreFaultENS_10StoreFaultEl"]
    inject.argtypes, inject.restype = [ctypes.c_int, ctypes.c_int64], None
    inject(fault, nth)
    try:
        yield
    finally:
        inject(Fault.NONE, 1)


def struck() -> int:
    """How often the fault has struck that was injected last, within its block."""
    count = _core()["_ZN4poet17storeFaultsStruckEv"]
    count.restype = ctypes.c_int64
    return int(count())
