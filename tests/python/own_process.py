"""Checks that need a process of their own."""

from __future__ import annotations

import multiprocessing
import reprlib
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch

from poet import _C

_SHORT = reprlib.Repr()
_SHORT.maxlist, _SHORT.maxstring, _SHORT.maxother = 32, 600, 600


def _with_what_it_saw(check: Callable[..., None], *args: object) -> None:
    """Runs the check; pytest rewrites asserts in its own process only, so a bare one says nothing.

    On one thread, unless the check asks for more. On two, plain training does not always agree with
    itself where other processes want the same cores: of 155 runs, one had another AdamW update in
    the first half of its first parameter than the next run in the same process, by 3e-7.
    """
    torch.set_num_threads(1)
    try:
        check(*args)
    except AssertionError as error:
        if error.args:
            raise
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        names = frame.f_code.co_names + frame.f_code.co_varnames
        seen = {name: frame.f_locals[name] for name in names if name in frame.f_locals}
        told = "\n".join(f"  {name} = {_SHORT.repr(value)}" for name, value in seen.items())
        raise AssertionError(f"line {line} of {frame.f_code.co_filename}\n{told}") from error


def with_counted_op_time(check: Callable[..., None], *args: object) -> None:
    """What hangs on the times that ops take is the same in each run."""
    _C.count_op_time(True)
    check(*args)


def in_a_process_of_its_own(
    check: Callable[..., None], *args: object, seconds: float = 600
) -> None:
    """Runs `check(*args)` where no other test's tensors lie beside the step."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        pool.submit(_with_what_it_saw, check, *args).result(timeout=seconds)
