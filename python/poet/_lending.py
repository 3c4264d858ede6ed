"""Tensors that native code may read for a while: what custom Functions and compiled graphs get."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from poet import _C

# Where PyTorch has its one function that starts a backward pass.
_BACKWARD = "_engine_run_backward"
_BACKWARD_MODULES = ("torch.autograd", "torch.autograd.graph")
_COMPILED = ("torch._inductor.output_code", "CompiledFxGraph")


class _Depth(threading.local):
    lent: int | None = None  # by the custom Function whose backward runs; None: none does


class _Lending:
    """While it is on, what native code may read is lent: see Note [Lending], csrc/trace/lending.h.

    - A custom Function's backward: its gradients, and its saved tensors once it asks for them. (One
      that is written in C++ is given hooks where a backward pass begins.)
    - What Inductor compiled: its inputs.
    """

    def __init__(self) -> None:
        self._depth = _Depth()
        self._own: list[tuple[object, str, object, object]] = []  # owner, name, PyTorch's, poet's
        self._is_on = False

    def begin(self) -> None:
        """Also where it is on already: Inductor may have been imported since."""
        if not self._is_on:
            own = torch._C._FunctionBase.saved_tensors
            self._put(BackwardCFunction, "saved_tensors", property(self._saved_tensors(own)))
            for name in ("apply", "apply_boxed"):
                if hasattr(BackwardCFunction, name):
                    self._replace(BackwardCFunction, name, self._backward_of_function)
            for module in _BACKWARD_MODULES:
                self._replace(sys.modules[module], _BACKWARD, self._backward_pass)
            self._is_on = True
        compiled = getattr(sys.modules.get(_COMPILED[0]), _COMPILED[1], None)
        if compiled is not None and all(owner is not compiled for owner, *_ in self._own):
            self._replace(compiled, "__call__", self._compiled)

    def end(self) -> None:
        self._is_on = False
        for owner, name, own, put in reversed(self._own):
            if vars(owner).get(name) is not put:
                continue  # somebody else has put something there meanwhile
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        self._own.clear()

    def _replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        self._put(owner, name, wrap(getattr(owner, name)))

    def _put(self, owner: Any, name: str, put: object) -> None:
        for known_owner, known_name, _, known in self._own:  # Ctrl-C came in the middle of this
            if known_owner is owner and known_name == name:
                setattr(owner, name, known)
                return
        self._own.append((owner, name, vars(owner).get(name), put))
        setattr(owner, name, put)

    def _saved_tensors(self, own: Any) -> Callable[[Any], Any]:
        def saved_tensors(ctx: Any) -> Any:
            tensors = own.__get__(ctx)
            if self._depth.lent is None:
                with _lent(tensors):
                    return tensors
            self._depth.lent += 1
            _C.lend(tensors)
            return tensors

        return saved_tensors

    def _backward_of_function(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(apply)
        def backward(ctx: Any, *gradients: Any) -> Any:
            outer, self._depth.lent = self._depth.lent, 0
            try:
                with _lent(_tensors_in(gradients)):
                    return apply(ctx, *gradients)
            finally:
                for _ in range(self._depth.lent):
                    _C.end_lending()
                self._depth.lent = outer

        return backward

    @staticmethod
    def _backward_pass(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            _C.lend_to_custom_nodes(outputs)
            with _C.HeardBackward():  # on an accelerator: Note [Device threads], listener.h
                return run(outputs, *args, **kwargs)

        return run_backward

    @staticmethod
    def _compiled(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def compiled(graph: Any, inputs: Any) -> Any:
            with _lent(inputs):
                return call(graph, inputs)

        return compiled


def _tensors_in(gradients: tuple[Any, ...]) -> Any:
    # Boxed, they are one list, which the Function empties.
    return gradients[0] if len(gradients) == 1 and isinstance(gradients[0], list) else gradients


@contextmanager
def _lent(things: Any) -> Iterator[None]:
    _C.lend(things)
    try:
        yield
    finally:
        _C.end_lending()


lending = _Lending()

__all__ = ["lending"]
