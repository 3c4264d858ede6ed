"""torch.load: the memory that it makes is like any other that PyTorch's allocator made."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
import torch.serialization

from poet import _C


def _loaded(things: object, seen: set[int], depth: int = 12) -> list[torch.Tensor]:
    """The tensors in what a file had: state dicts, modules, optimizers, the program's objects."""
    if depth == 0 or id(things) in seen:
        return []
    seen.add(id(things))
    if isinstance(things, torch.Tensor):
        return [things]
    inside: list[object]
    if isinstance(things, Mapping):
        inside = list(things.values())
    elif isinstance(things, list | tuple | set | frozenset):
        inside = list(things)
    else:
        inside = []
    attributes = getattr(things, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(things, type):
        inside += attributes.values()
    return [t for thing in inside for t in _loaded(thing, seen, depth - 1)]


@functools.cache
def know_what_is_loaded() -> None:
    """From now on what `torch.load` makes may leave memory, as any other tensor may.

    PyTorch's reader of files makes storages that cannot be resized, which is also the mark of what
    NumPy shares. That nobody shares them yet is known here alone.
    """
    load = torch.load

    @functools.wraps(load)
    def load_and_tell(*args: Any, **kwargs: Any) -> Any:
        loaded = load(*args, **kwargs)
        for t in _loaded(loaded, set()):
            _C.note_loaded(t)
        return loaded

    torch.load = torch.serialization.load = load_and_tell


__all__ = ["know_what_is_loaded"]
