"""The extension of native_code.cpp, compiled once."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch

_HERE = Path(__file__).parent


@functools.cache
def native() -> Any:
    """The extension; the build directory keeps it for the next run."""
    from torch.utils.cpp_extension import load

    scripts = sysconfig.get_path("scripts")  # ninja is there
    os.environ["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH", "")])
    tag = f"{sys.implementation.cache_tag}-torch{torch.__version__}"
    folder = _HERE.parent.parent / "build" / f"native-code-{tag}"
    folder.mkdir(parents=True, exist_ok=True)
    return load(
        "poet_tests_native",
        [str(_HERE / "native_code.cpp")],
        extra_cflags=["-O1"],
        build_directory=str(folder),
    )
