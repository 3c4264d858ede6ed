"""poet.trace: a live training step -> Graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from poet import _C
from poet._accelerator import count_on_device
from poet._errors import PoetRuntimeError
from poet._live import check_step, no_ops_error, run_step, verify_wanted
from poet._progress import recorded_call

_MOST_CALLS = 10


def trace(step: Callable[..., Any], *args: Any, **kwargs: Any) -> _C.Graph:
    """Records a training step below autograd.

    Calls `step` until two calls in a row ran the same operators on the same shapes (an optimizer
    creates its state in the first call) and returns what they ran: the least seconds and the
    greatest workspace of both for each operator. It trains whatever the step trains.

    Args:
        step: runs one training step: forward, backward, and the optimizer's step where there is
            one.
        *args: passed to every call.
        **kwargs: likewise.

    Returns:
        The graph of the step: `ops` in the order in which they ran, `values` one a storage.

    Raises:
        ArgumentError: `step` cannot be called, or runs no PyTorch operator.
        PoetRuntimeError: no two calls in a row were alike.

    Whatever `step` raises comes out unchanged.
    """
    return record(step, args, kwargs, on_accelerator=True)


def record(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    held: Callable[[], tuple[list[torch.Tensor], list[torch.Tensor]]] | None = None,
    inputs: list[torch.Tensor] | None = None,
    on_accelerator: bool = False,
) -> _C.Graph:
    """`trace`, where the caller says what is resident.

    Args:
        step: as for `trace`.
        args: passed to every call.
        kwargs: likewise.
        held: gives the tensors that count as resident before each call, and the gradients among
            them; None: all that this process has.
        inputs: the tensors of the batch; None: those in `args` and `kwargs`.
        on_accelerator: the memory of the device that trains counts, where that is not the CPU.
    """
    call = check_step(step)
    session = _C.Session(verify=verify_wanted())
    if on_accelerator:
        count_on_device(session)
    last: int | None = None
    for _ in range(_MOST_CALLS):
        _, report = run_step(session, call, args, kwargs, held=held, inputs=inputs)
        tell = recorded_call.get()
        if tell is not None:
            tell()
        if report["num_ops"] == 0:
            raise no_ops_error(step)
        if last is not None and report["variant"] == last:
            return session.graph_of(last)
        last = report["variant"]
    raise PoetRuntimeError(
        "step: expected two calls in a row that run the same operators on the same shapes; "
        f"{_MOST_CALLS} calls were all different from the one before. Trace a step without "
        "data-dependent branches or shapes, or pass it one fixed batch."
    )
