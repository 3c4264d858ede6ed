"""scikit-learn's digits as a training set: 1,797 real scans of 8 by 8 points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

_HELD_OUT = 360
_SIDE = 32


@dataclass(frozen=True)
class Digits:
    """Scans (N, 8, 8; from 0 to 16) and their classes (N), in two parts."""

    train_scans: Tensor
    train_classes: Tensor
    test_scans: Tensor
    test_classes: Tensor


def load(seed: int = 0) -> Digits:
    """All 1,797 scans, shuffled; 360 of them are held out."""
    raw = load_digits()
    scans = torch.from_numpy(raw.images).float()
    classes = torch.from_numpy(raw.target).long()
    order = torch.randperm(len(scans), generator=torch.Generator().manual_seed(seed))
    train, test = order[_HELD_OUT:], order[:_HELD_OUT]
    return Digits(scans[train], classes[train], scans[test], classes[test])


def as_images(scans: Tensor) -> Tensor:
    """Scans as images (N, 3, 32, 32) between -1 and 1."""
    sized = F.interpolate(
        scans.unsqueeze(1), size=(_SIDE, _SIDE), mode="bilinear", align_corners=False
    )
    return (sized / 8 - 1).repeat(1, 3, 1, 1)


def batches(digits: Digits, size: int = 32, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of images and classes: epoch after epoch, each in an order of its own."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(digits.train_scans), generator=generator)
        for rows in torch.split(order, size):
            if len(rows) == size:  # a step of another shape would be a step with another plan
                yield as_images(digits.train_scans[rows]), digits.train_classes[rows]
