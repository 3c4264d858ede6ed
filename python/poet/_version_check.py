"""Whether the native part was built for the torch that is running."""

from __future__ import annotations

import re


def check(built_for: str, found: str) -> None:
    """Refuses a torch of another release than the one that poet was compiled against.

    libtorch promises no binary compatibility between minor releases; patch releases and local
    versions ("+cpu", "+cu126") keep it.

    Args:
        built_for: the torch version that the native module was compiled against, e.g. "2.13.0".
        found: `torch.__version__` of the running interpreter, e.g. "2.13.1+cpu".

    Raises:
        ImportError: the two differ in major or minor version, or cannot be read.
    """
    release = _release(built_for)
    if release is not None and release == _release(found):
        return
    raise ImportError(
        f"poet was built for torch {built_for}, but torch {found} was found. Build poet for the "
        "torch that is installed (`pip install --force-reinstall --no-deps -e .` in poet's "
        "repository), or install the one that it was built for "
        f"(`pip install torch=={_public(built_for)}`)."
    )


def _release(version: str) -> tuple[int, int] | None:
    """Major and minor version, None where the text has none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def _public(version: str) -> str:
    """The version without its local part: what an installer takes everywhere."""
    return version.partition("+")[0]
