"""Warnings that name the user's own line, however deep inside poet they arise."""

from __future__ import annotations

import sys
import warnings


def warn(message: str, category: type[Warning]) -> None:
    """As `warnings.warn`, for the innermost caller that is not poet."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] == "poet":
        if frame.f_back is None:
            break
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
