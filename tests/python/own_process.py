"""Checks that need a process of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor


def in_a_process_of_its_own(
    check: Callable[..., None], *args: object, seconds: float = 600
) -> None:
    """Runs `check(*args)` where no other test's tensors lie beside the step."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        pool.submit(check, *args).result(timeout=seconds)
