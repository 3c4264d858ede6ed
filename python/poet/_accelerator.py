"""Which device's memory a step's budget counts."""

from __future__ import annotations

import gc
from collections import Counter

import torch

from poet import _C

UNCAPPED = (
    "the step trains on {device}: the budget counts that device's memory alone, and holds once a "
    "plan is in force; calls without a plan run without a cap"
)


def accelerator_in_use() -> torch.device | None:
    """The CUDA device that holds more of the parameters that are trained than any other device.

    None where that is the CPU, or no CUDA device has been used so far.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    parameters = [
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.nn.Parameter) and thing.requires_grad
    ]
    held: Counter[torch.device] = Counter()
    for parameter in parameters:
        held[parameter.device] += parameter.nbytes
    if not held:
        return None
    device = max(held, key=lambda one: held[one])
    return device if device.type == "cuda" else None


def count_on_device(session: _C.Session) -> torch.device | None:
    """Before a session's first step: has it count the memory of the device that is in use.

    Returns:
        That device; None for the CPU.
    """
    device = accelerator_in_use()
    if device is not None:
        session.set_device(str(device))
    return device


__all__ = ["UNCAPPED", "accelerator_in_use", "count_on_device"]
