"""What this process holds in tensors, counted from outside."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from poet._live import existing_tensors


def _address(t: torch.Tensor) -> int:
    """Of the tensor's memory; 0 where it has none, as fake and functional tensors of
    torch.compile's caches, which other tests leave behind."""
    try:
        return t.untyped_storage().data_ptr()
    except RuntimeError:
        return 0


def resident_bytes(beside: Iterable[nn.Module | torch.Tensor] = ()) -> int:
    """Bytes of all storages that Python holds, but for those of `beside` (modules' parameters)."""
    found, gradients = existing_tensors()
    mine = [
        t
        for thing in beside
        for t in (thing.parameters() if isinstance(thing, nn.Module) else [thing])
    ]
    skip = {0, *(_address(t) for t in mine)}
    storages = {_address(t): t for t in [*found, *gradients]}
    return sum(t.untyped_storage().nbytes() for a, t in storages.items() if a not in skip)
