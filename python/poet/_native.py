"""Loads the native module and checks that it suits the torch that is here.

`poet/__init__.py` imports this before anything else of poet.
"""

import torch  # first: it loads the libraries that the native module links against

from poet import _version_check

try:
    from poet import _C
except ImportError as error:
    raise ImportError(
        f"poet's native module does not load beside torch {torch.__version__}: {error}. It was "
        "built for another torch or not at all: build it for this one "
        "(`pip install --no-build-isolation --force-reinstall --no-deps -e .`)."
    ) from error

_version_check.check(_C.built_for_torch, torch.__version__)

version: str = _C.version
