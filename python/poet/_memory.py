"""The C library's allocator: made to give freed memory back to the system."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

from poet import _C
from poet._budgets import whole_number
from poet._errors import ArgumentError

# Note [The mmap threshold]
# glibc maps large blocks by themselves and unmaps them when they are freed. What is large changes:
# when a mapped block is freed, the threshold rises to that block's size, up to 32 MiB, and smaller
# blocks stay with the process when they are freed. A plan's savings would then show in no figure of
# the system. A fixed threshold ends that. Blocks just above it pay for the mapping and for fresh
# pages each time they are allocated.
MMAP_THRESHOLD_BYTES = 128 * 1024
_ENVIRONMENT = "POET_MMAP_THRESHOLD"
_OTHER_ALLOCATORS = re.compile(r"lib(jemalloc|tcmalloc|mimalloc)[^/]*\.so")

_lock = threading.Lock()
_state: dict[str, int | None] = {}


def give_memory_back() -> None:
    """Fixes malloc's mmap threshold, once a process.

    The environment variable POET_MMAP_THRESHOLD gives another one in bytes; 0 leaves malloc alone,
    and so does a threshold that the user gave to glibc itself.

    Raises:
        ArgumentError: POET_MMAP_THRESHOLD is no number of bytes.
    """
    with _lock:
        if "fixed" in _state:
            return
        wanted = _wanted()
        _state["fixed"] = wanted if wanted and _C.fix_mmap_threshold(wanted) else None


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


__all__ = ["MMAP_THRESHOLD_BYTES", "fixed_mmap_threshold", "give_memory_back", "other_allocator"]
