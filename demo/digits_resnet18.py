"""Trains ResNet-18 on real digits three times: plain, checkpointed, and with poet inside a budget.

    python demo/digits_resnet18.py [--steps 60] [--threads 2]

Each run has a process of its own, one after the other, with the same seed and the same batches.
The memory is what PyTorch's profiler counted, allocation by allocation. Ends with a table and a
picture.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _trial import Trial, main


def feed() -> Iterator[tuple[Any, ...]]:
    """Batches of 32 images and their classes."""
    import _digits  # noqa: PLC0415  the parent process needs no torch

    return _digits.batches(_digits.load())


def accuracy(model: Any) -> float:
    """The share of the held-out scans that the model names correctly."""
    import _digits  # noqa: PLC0415
    import torch  # noqa: PLC0415

    digits = _digits.load()
    scans, classes = digits.test_scans, digits.test_classes
    right = 0
    model.eval()
    with torch.no_grad():
        for begin in range(0, len(classes), 90):
            found = model(_digits.as_images(scans[begin : begin + 90])).argmax(1)
            right += int((found == classes[begin : begin + 90]).sum())
    model.train()
    return right / len(classes)


TRIAL = Trial(
    script=Path(__file__),
    what="ResNet-18 on scikit-learn's digits: batches of 32 images",
    architecture="resnet18",
    feed=feed,
    accuracy=accuracy,
    slack=0.35,
    picture="digits_memory.png",
    caption="One training step of ResNet-18 on digits, batch 32, AdamW",
)

if __name__ == "__main__":
    sys.exit(main(TRIAL))
