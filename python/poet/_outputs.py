"""Files that somebody asked for: found impossible before the work, not after it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeAlias

from poet._errors import ArgumentError, PoetRuntimeError

Output: TypeAlias = "str | os.PathLike[str]"


def check_output(path: Output, what: str) -> None:
    """Whether a file can be written there, as far as that is known without writing it.

    Args:
        path: of the file.
        what: the argument that named it, for the error.

    Raises:
        ArgumentError: its folder does not exist, it is a folder itself, or may not be written.
    """
    file = Path(path)
    folder = file.parent
    if not folder.is_dir():
        raise ArgumentError(
            f"{what}: expected a file in a folder that exists; got {os.fspath(path)!r}, and there "
            f"is no folder {os.fspath(folder)!r}. Make it first, or name another place."
        )
    if file.is_dir():
        raise ArgumentError(
            f"{what}: expected the name of a file; {os.fspath(path)!r} is a folder. Add a name."
        )
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise ArgumentError(
            f"{what}: expected a file that can be written; {os.fspath(path)!r} may not be. Change "
            "its permissions, or name another place."
        )


def load_figure() -> Any:
    """matplotlib.figure.Figure.

    Raises:
        PoetRuntimeError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  optional
    except ImportError as error:
        raise PoetRuntimeError(
            "Pictures need matplotlib, which is not installed: pip install matplotlib."
        ) from error
    return Figure


def check_picture(path: Output, what: str = "path") -> None:
    """As `check_output`, for a picture: its ending says the format.

    Raises:
        ArgumentError: as there, or matplotlib writes no such format.
        PoetRuntimeError: matplotlib is not installed.
    """
    formats = load_figure()().canvas.get_supported_filetypes()
    ending = Path(path).suffix.lstrip(".").lower()
    if ending and ending not in formats:  # without an ending matplotlib writes a .png
        raise ArgumentError(
            f"{what}: expected a picture's name, which ends in .png, .svg, .pdf or another of "
            f"{', '.join(sorted(formats))}; got {os.fspath(path)!r}. Give it one of these endings."
        )
    check_output(path, what)


__all__ = ["Output", "check_output", "check_picture", "load_figure"]
