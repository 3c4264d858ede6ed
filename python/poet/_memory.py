"""The process's allocators: made to give freed memory back to the system."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from pathlib import Path

from poet import _C
from poet._budgets import whole_number
from poet._errors import ArgumentError

# Note [The mmap threshold]
# Large blocks of a wrapped step come from poet's arena (csrc/memory/page_arena.h); this is for the
# rest, and for POET_ARENA=0. glibc maps large blocks by themselves and unmaps them when they are
# freed; smaller ones are carved from a heap, where a freed block waits for the next one. What is
# large changes while a process runs: the threshold starts at 128 KiB and rises with what is freed,
# up to 32 MiB. A fixed low one makes resident memory follow a plan without the arena, but every
# block comes with fresh pages then, and a step of a small convolutional network took 60 % more
# processor time. So it is fixed where glibc does not go beyond; what recorded steps left in the
# heap goes when a plan comes into force.
MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024
_M_TRIM_THRESHOLD = -1
_ENVIRONMENT = "POET_MMAP_THRESHOLD"
_OTHER_ALLOCATORS = re.compile(r"lib(jemalloc|tcmalloc|mimalloc)[^/]*\.so")

_lock = threading.Lock()
_state: dict[str, int | None] = {}


def give_memory_back() -> None:
    """Lets the arena have large blocks, and fixes malloc's mmap threshold, once a process.

    The environment variable POET_MMAP_THRESHOLD gives another one in bytes; 0 leaves malloc alone,
    and so does a threshold that the user gave to glibc itself.

    Raises:
        ArgumentError: POET_MMAP_THRESHOLD is no number of bytes.
    """
    with _lock:
        if "fixed" in _state:
            return
        wanted = _wanted()
        _C.use_arena()
        _state["fixed"] = wanted if wanted and _C.fix_mmap_threshold(wanted) else None
        if _state["fixed"]:  # glibc's own rule is lost with its moving threshold: twice as much
            ctypes.CDLL(None).mallopt(_M_TRIM_THRESHOLD, min(2 * wanted, 2**31 - 1))


def release_free_memory() -> None:
    """Gives back to the system what the arena holds free, and malloc where poet may touch it."""
    _C.release_free_memory(
        of_malloc=fixed_mmap_threshold() is not None and other_allocator() is None
    )


def fixed_mmap_threshold() -> int | None:
    """The threshold that poet fixed in this process; None for none."""
    return _state.get("fixed")


def users_own_threshold() -> bool:
    """Whether the environment gives glibc a threshold."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "MALLOC_MMAP_THRESHOLD_" in os.environ or "glibc.malloc.mmap_threshold" in tunables


def other_allocator() -> str | None:
    """The allocator that stands in for the C library's in this process; None for none."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _OTHER_ALLOCATORS.search(maps)
    return found[1] if found else None


def _wanted() -> int:
    text = os.environ.get(_ENVIRONMENT, "")
    if not text:
        return 0 if users_own_threshold() else MMAP_THRESHOLD_BYTES
    expected = "bytes as a whole number, 0 to leave malloc alone"
    try:
        number = int(text)
    except ValueError:
        raise ArgumentError(f"{_ENVIRONMENT}: expected {expected}; got {text!r}.") from None
    return whole_number(number, _ENVIRONMENT, expected, least=0, most=2**31 - 1)


__all__ = [
    "MMAP_THRESHOLD_BYTES",
    "fixed_mmap_threshold",
    "give_memory_back",
    "other_allocator",
    "release_free_memory",
]
