"""The optimizers that are measured, each in the forms that PyTorch has of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim import SGD, Adafactor, AdamW, Optimizer

Make = Callable[[Iterable[nn.Parameter]], Optimizer]

# "foreach" and "fused" hold the lists of all parameters at once; the others go one by one.
OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda parameters: AdamW(parameters, lr=1e-3, foreach=False),
    "adamw-foreach": lambda parameters: AdamW(parameters, lr=1e-3, foreach=True),
    "adamw-fused": lambda parameters: AdamW(parameters, lr=1e-3, fused=True),
    "sgd": lambda parameters: SGD(parameters, lr=1e-2, momentum=0.9, foreach=False),
    "sgd-foreach": lambda parameters: SGD(parameters, lr=1e-2, momentum=0.9, foreach=True),
    "sgd-fused": lambda parameters: SGD(parameters, lr=1e-2, momentum=0.9, fused=True),
    "adafactor": lambda parameters: Adafactor(parameters, lr=1e-2, foreach=False),
    "adafactor-foreach": lambda parameters: Adafactor(parameters, lr=1e-2, foreach=True),
}


def make(name: str, parameters: Iterable[nn.Parameter], learning_rate: float | None) -> Optimizer:
    """The optimizer of that name, with its own learning rate where none is given."""
    optimizer = OPTIMIZERS[name](parameters)
    if learning_rate is not None:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
    return optimizer


def temporary_bytes(name: str, parameters: Iterable[torch.Tensor]) -> int:
    """What the optimizer's step needs beside its state: two of a parameter, or of all of them.

    AdamW one by one holds two temporaries of one parameter at once; a foreach form holds those of
    all its parameters; a fused form holds none. The others have no more than AdamW.
    """
    sizes = [parameter.untyped_storage().nbytes() for parameter in parameters]
    if name.endswith("fused"):
        return 0
    return 2 * (sum(sizes) if name.endswith("foreach") else max(sizes))
