"""scikit-build-core, plus two things that a static pyproject.toml cannot say.

Problem. CBC comes from Debian's ``coinor-libcbc-dev`` or from the PyPI package ``cbcbox``, which is
600 MB when installed. A build requirement that is always there would fetch it for everyone who has
the first. And torch must not be a build requirement at all, since an isolated build would then
compile against a freshly fetched torch instead of the one that the user trains with; without a word
from us pip would also fetch the torch of our run-time requirements, gigabytes of it, before CMake
gets to say that it was needed earlier.

Solution. ``cbcbox`` is asked for only where neither ``pkg-config cbc`` nor an installed ``cbcbox``
answers, and a missing torch ends the build at its first hook, with the commands to run. In pip's
isolated build ``sys.executable`` is still the interpreter of the user's environment, so its purelib
is where torch is.

Shortcoming. A machine with ``cbc.pc`` but without the headers that it names fails later, in CMake.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from scikit_build_core import build as _skbuild
from scikit_build_core.build import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

prepare_metadata_for_build_editable = _skbuild.prepare_metadata_for_build_editable
prepare_metadata_for_build_wheel = _skbuild.prepare_metadata_for_build_wheel

_Settings = dict[str, Any] | None

TORCH_HELP = """\
poet: torch is not installed for {python}. torch is not fetched by the build: install the
one that you train with first, then poet:
  {python} -m pip install torch==2.13.0
  {python} -m pip install -e ."""


def _site_dirs() -> list[Path]:
    """Where the user's interpreter keeps its packages, also when seen from an isolated build."""
    paths = sysconfig.get_paths()
    candidates = [paths["purelib"], paths["platlib"], *sys.path]
    return [Path(p) for p in dict.fromkeys(candidates) if os.path.isdir(p)]


def _installed(file: str) -> bool:
    return any((directory / file).exists() for directory in _site_dirs())


def _system_cbc() -> bool:
    pkg_config = shutil.which("pkg-config")
    if pkg_config is None:
        return False
    return subprocess.run([pkg_config, "--exists", "cbc"], check=False).returncode == 0


def _extra_requirements() -> list[str]:
    if not _installed("torch/version.py"):
        raise SystemExit(TORCH_HELP.format(python=sys.executable))
    if _system_cbc() or _installed("cbcbox/__init__.py"):
        return []
    return ["cbcbox>=2.935"]


def get_requires_for_build_wheel(config_settings: _Settings = None) -> list[str]:
    """PEP 517 hook."""
    return [*_skbuild.get_requires_for_build_wheel(config_settings), *_extra_requirements()]


def get_requires_for_build_editable(config_settings: _Settings = None) -> list[str]:
    """PEP 660 hook."""
    return [*_skbuild.get_requires_for_build_editable(config_settings), *_extra_requirements()]
