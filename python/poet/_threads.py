"""Threads of the program: their operators are heard, because they may share tensors with a step."""

from __future__ import annotations

import functools
import threading

from poet import _C


@functools.cache
def hear_new_threads() -> None:
    """From now on poet hears the operators of every thread that `threading` starts.

    A thread inherits nothing of PyTorch's dispatch state, so each one asks for itself when it
    begins: Note [Other threads], csrc/trace/listener.h. Threads that run already are not heard.
    """
    begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    hear = _C.hear_this_thread

    @functools.wraps(begin)
    def begin_heard(thread: threading.Thread) -> None:
        hear()
        begin(thread)

    threading.Thread._bootstrap_inner = begin_heard  # type: ignore[attr-defined]


__all__ = ["hear_new_threads"]
