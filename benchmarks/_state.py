"""Digests of everything that must be bit-equal between two trainings."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def digest(tensor: Tensor) -> str:
    """SHA-256 over a tensor's type, shape and bytes."""
    # A copy: memory that NumPy shares is never paged.
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    text = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    return hashlib.sha256(text + flat.view(torch.uint8).numpy().tobytes()).hexdigest()


def digests(state: dict[str, Tensor], losses: list[float]) -> dict[str, str]:
    """A digest for each tensor, each loss (to its last bit) and the generator."""
    found = {name: digest(tensor) for name, tensor in state.items()}
    found |= {f"loss {index}": loss.hex() for index, loss in enumerate(losses)}
    found["generator"] = digest(torch.get_rng_state())
    return found


def differences(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """The names whose digests differ, or that only one side has; sorted."""
    names = ours.keys() | theirs.keys()
    return sorted(name for name in names if ours.get(name) != theirs.get(name))
