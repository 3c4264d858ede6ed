"""A step that other processes can make by themselves, for tests of poet.compare(live=True)."""

from __future__ import annotations

from typing import Any

import torch
from zoo import build


def make_step() -> tuple[Any, tuple[Any, ...]]:
    """The step and its arguments, the same in every process."""
    torch.set_num_threads(1)
    case = build("residual_net")
    return case.step, case.batches(0)
