"""Warnings that name the user's own line, however deep inside poet they arise."""

from __future__ import annotations

import sys
import threading
import warnings
from collections import deque

# A thread of poet's own has no line of the user's: what it has to say waits for the next call.
PLANNING_THREAD = "poet-plan"

_waiting: deque[tuple[str, type[Warning]]] = deque()


def warn(message: str, category: type[Warning]) -> None:
    """As `warnings.warn`, for the innermost caller that is not poet."""
    if threading.current_thread().name == PLANNING_THREAD:
        _waiting.append((message, category))
        return
    level = 2
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] == "poet":
        if frame.f_back is None:
            break
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


def warn_of_what_waits() -> None:
    """Shows the warnings of the planning threads so far."""
    while _waiting:
        warn(*_waiting.popleft())


__all__ = ["PLANNING_THREAD", "warn", "warn_of_what_waits"]
