"""What a live step needs of Python: existing tensors, optimizer hooks, its beginning and end."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from poet import _C
from poet._census import Census, existing_tensors
from poet._errors import ArgumentError, BudgetError, BudgetWarning, StoreError
from poet._raw_doors import raw_doors
from poet._warn import warn


class StepTypeError(ArgumentError, TypeError):
    """A step that cannot be called."""

    __module__ = "poet"


_EMPTY_CELL = types.CellType()  # as of a function that refers to what is not there yet

# Functions whose call does none of the work yet.
_LAZY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def check_step(step: object) -> Callable[..., Any]:
    """The step itself, if it can be called and may be a whole step.

    Raises:
        ArgumentError: it cannot (the error is a TypeError as well), or it is a module.
    """
    if isinstance(step, torch.nn.Module):
        raise StepTypeError(
            "step: expected a function that runs one whole training step; got the module "
            f"{type(step).__name__}, whose call runs the forward pass alone. Put forward, backward "
            "and the optimizer's step in a function and pass that."
        )
    if any(is_lazy(step) for is_lazy in _LAZY):
        raise StepTypeError(
            "step: expected a function whose call runs one whole training step; calling "
            f"{getattr(step, '__qualname__', step)} only makes a coroutine or a generator. Wrap "
            "the function that does the work."
        )
    if callable(step):
        return step
    raise StepTypeError(
        "step: expected a function (or another callable) that runs one training step; got "
        f"{type(step).__name__}. Put forward, backward and the optimizer's step in a function and "
        "pass that."
    )


def verify_wanted() -> bool:
    """Whether the environment asks for the debug mode (POET_VERIFY=1)."""
    return os.environ.get("POET_VERIFY", "0") not in ("", "0")


def no_ops_error(step: object) -> ArgumentError:
    """The error for a step in which PyTorch ran nothing on the CPU."""
    name = getattr(step, "__qualname__", type(step).__name__)
    return ArgumentError(
        f"step: expected a training step that runs PyTorch operators on CPU tensors; {name} ran "
        "none that poet could record on this thread. Check that the step trains a model, that the "
        "model is on the CPU, and that the call does the work itself (one that returns a generator "
        "or a coroutine does not)."
    )


def tensors_in(things: object, depth: int = 6) -> list[torch.Tensor]:
    """The tensors in (nested) arguments of a step."""
    if isinstance(things, torch.Tensor):
        return [things]
    if depth == 0:
        return []
    if isinstance(things, Mapping):  # transformers' batches are no dicts
        return [t for value in things.values() for t in tensors_in(value, depth - 1)]
    if isinstance(things, list | tuple | set | frozenset):
        return [t for value in things for t in tensors_in(value, depth - 1)]
    return []


def tensors_behind(things: object, depth: int = 10) -> list[torch.Tensor]:
    """`tensors_in` what the functions among a step's arguments were given.

    A trainer hands its batch over inside the closure that runs forward and backward.
    """
    if depth == 0 or isinstance(things, torch.nn.Module | type):
        return []
    if isinstance(things, functools.partial):
        inside: list[object] = [*things.args, *things.keywords.values()]
    elif isinstance(things, types.FunctionType):
        inside = [cell.cell_contents for cell in things.__closure__ or () if cell != _EMPTY_CELL]
    elif isinstance(things, Mapping):
        inside = list(things.values())
    elif isinstance(things, list | tuple):
        inside = list(things)
    elif callable(things) and not isinstance(things, types.MethodType):
        inside = list(getattr(things, "__dict__", {}).values())
    else:
        return [things] if isinstance(things, torch.Tensor) else []
    return [t for thing in inside for t in tensors_behind(thing, depth - 1)]


def shapes_of(tensors: list[torch.Tensor]) -> tuple[object, ...]:
    """Shapes and dtypes of the tensors of a step's batch."""
    return tuple((tuple(t.shape), t.dtype) for t in tensors)


class _Running(threading.local):
    """The session of the step that runs on this thread."""

    session: _C.Session | None = None
    updates = False  # an optimizer's step has begun


_UNREAD = "cannot read"  # in what the store says
_HALF_UPDATED = (
    "The optimizer's step had begun: some parameters are updated, others are not. Load a "
    "checkpoint before training goes on."
)

_running = _Running()
_hook_lock = threading.Lock()


def _enter_optimizer(*_: object) -> None:
    if _running.session is not None:
        _running.updates = True
        _running.session.enter_optimizer()


def _leave_optimizer(*_: object) -> None:
    if _running.session is not None:
        _running.session.leave_optimizer()


@functools.cache
def _hook_optimizers() -> None:
    """For good, and once: PyTorch keeps these hooks in one list, which a thread may be walking."""
    register_optimizer_step_pre_hook(_enter_optimizer)
    register_optimizer_step_post_hook(_leave_optimizer)


@contextmanager
def optimizer_phases(session: _C.Session) -> Iterator[None]:
    """Tells the session when an optimizer's step begins and ends on this thread."""
    with _hook_lock:
        _hook_optimizers()
    outer, _running.session = _running.session, session
    _running.updates = False
    try:
        yield
    except StoreError as error:  # calling the step once more would update some parameters twice
        if _running.updates:
            error.args = (f"{error} {_HALF_UPDATED}",)
        raise
    finally:
        _running.session = outer


if verify_wanted():  # the debug mode counts every block, so it must see them all
    _C.tap_for_good()


def run_step(
    session: _C.Session,
    step: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    held: Callable[[], tuple[list[torch.Tensor], list[torch.Tensor]]] | None = None,
    inputs: list[torch.Tensor] | None = None,
    tell: Callable[[dict[str, Any]], object] | None = None,
    census: Census | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Runs one step under the session; returns its result and the session's report.

    `held` gives the tensors that are resident and the gradients among them, in place of all that
    Python holds; `inputs` are the batch's, in place of those among the arguments. `tell` is shown
    the report of a step that raises. `census`: for the first one of a session, see there.

    Whatever the step raises comes out unchanged, after everything that was away is back.

    Raises:
        BudgetError: the step cannot be kept inside its budget, and left no trace.
    """
    _tell_of_collectives(session)
    traced = session.next_step_is_traced()
    counted = traced or session.wants_known()
    existing, gradients = _resident(session, held, census) if counted else ([], [])
    batch = tensors_in((args, kwargs)) if inputs is None else inputs
    with optimizer_phases(session):
        failed = True
        try:  # a signal may arrive anywhere: what has begun must end
            session.begin_step(batch, gradients, existing, held is None)
            del existing, gradients
            raw_doors.open(session)
            result = step(*args, **kwargs)
            failed = False
        except RuntimeError as error:
            _keep_what_was_read(session, error)
            raise
        finally:
            try:
                report = _end_open_step(session, failed, tell)
            finally:  # Ctrl-C may have come before it got there
                _end_open_step(session, failed, tell)
    assert report is not None
    return result, report


def _end_open_step(
    session: _C.Session, failed: bool, tell: Callable[[dict[str, Any]], object] | None
) -> dict[str, Any] | None:
    """Ends what has begun, if it has, and has not been ended."""
    if not _C.is_listening():
        return None
    report = _end_step(session, failed)
    _tell_of_failed(report, failed, tell)
    return report


def _tell_of_failed(
    report: dict[str, Any], failed: bool, tell: Callable[[dict[str, Any]], object] | None
) -> None:
    """A warning that is made an error must not come in place of the step's own."""
    if failed and tell is not None:
        with suppress(BudgetWarning):
            tell(report)


def _resident(
    session: _C.Session,
    held: Callable[[], tuple[list[torch.Tensor], list[torch.Tensor]]] | None,
    census: Census | None,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    if held is not None:
        return held()
    if session.counters()["traced_steps"] > 0:
        return existing_tensors(thorough=False)
    return existing_tensors() if census is None else census.existing_tensors()


def run_unrecorded(
    session: _C.Session,
    step: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    tell: Callable[[dict[str, Any]], object] | None = None,
) -> tuple[Any, dict[str, Any] | None]:
    """Runs one step with neither a plan nor a recording, only inside the budget.

    Returns its result and the session's report: None where the step ran as it is, because there is
    no budget to keep, or because what is resident is not known.

    Raises:
        BudgetError: as `run_step`.
    """
    if not session.is_policed():
        return step(*args, **kwargs), None
    _tell_of_collectives(session)
    report: dict[str, Any] | None = None
    with optimizer_phases(session):
        failed = True
        try:
            if session.begin_unrecorded(tensors_in((args, kwargs))):
                raw_doors.open(session)
            result = step(*args, **kwargs)
            failed = False
        except RuntimeError as error:
            _keep_what_was_read(session, error)
            raise
        finally:
            try:
                report = _end_open_step(session, failed, tell)
            finally:  # Ctrl-C may have come before it got there
                _end_open_step(session, failed, tell)
    return result, report


def _keep_what_was_read(session: _C.Session, error: BaseException) -> None:
    """After an error of a raw read: what was read stays in memory in the calls to come."""
    cause: BaseException | None = error
    for _ in range(8):
        if cause is None or session.keep_named(str(cause)):
            return
        cause = cause.__cause__ or cause.__context__


def _tell_of_collectives(session: _C.Session) -> None:
    if session.is_policed():
        distributed = torch.distributed
        session.set_collectives(distributed.is_available() and distributed.is_initialized())


def _end_step(session: _C.Session, failed: bool) -> dict[str, Any]:
    try:
        report = session.end_step(failed, _text_of(sys.exc_info()[1]))
    finally:
        end_watching(session)
    if report["budget_error"]:
        raise BudgetError("ram_budget: " + report["budget_error"])
    return report


def _text_of(error: BaseException | None) -> str:
    """What it is and says: the step may have caught a BudgetError before this one."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # its own __str__ failed
        return name


def end_watching(session: _C.Session) -> None:
    """After a step: closes the raw doors unless values stay away, and tells of trouble."""
    if session.wants_touches():
        raw_doors.open(session)
    else:
        raw_doors.close(session)
    trouble = session.new_trouble()
    if trouble:
        unread = "What needs a value that cannot be read back raises StoreError; otherwise training"
        warn(
            f"poet could not move every value to or from secondary storage: {trouble} "
            f"{unread if _UNREAD in trouble else 'Training'} goes on with the same results, but "
            "its memory may exceed the budget.",
            BudgetWarning,
        )


def close_session(session: _C.Session) -> None:
    """Brings back what is away between steps, and closes the raw doors.

    Raises:
        StoreError: a value could not be read back; it is still in the store.
    """
    session.bring_back()
    raw_doors.close(session)
