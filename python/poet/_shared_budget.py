"""poet.Budget: one memory budget for several wrapped steps of a process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from poet._budgets import ByteBudget, format_bytes, parse_bytes
from poet._errors import StoreError

if TYPE_CHECKING:
    from poet._wrapped_step import WrappedStep


class Budget:
    """A memory budget that several wrapped steps share.

        memory = poet.Budget("2GiB")
        train_critic = poet.wrap(critic_step, ram_budget=memory)
        train_generator = poet.wrap(generator_step, ram_budget=memory)

    The budget of each call counts all that the program has in tensors, the other steps' parameters,
    gradients and optimizer states too. Two of its calls never run at once: one on another thread
    waits for its turn (so no step may wait for another one of its budget). Where their plain peaks
    do not fit beside one another, what the other steps can page moves to secondary storage before a
    call, as by `WrappedStep.pause`, and comes back when they or the program touch it. That needs
    paging, and is done for steps whose calls run on one thread: what another thread's steps have in
    memory stays, and so does what a step had there that was closed; plans are made again for it.

    Args:
        ram_budget: bytes, "512MiB" or "1.5GiB". A share of a peak is none that steps could share.

    Raises:
        ArgumentError: it makes no sense.
    """

    __module__ = "poet"

    def __init__(self, ram_budget: ByteBudget) -> None:
        self._bytes = parse_bytes(ram_budget)
        self._turn = threading.Lock()
        # And the thread of the latest call, where something of it may lie in memory since.
        self._steps: weakref.WeakKeyDictionary[WrappedStep, int | None]
        self._steps = weakref.WeakKeyDictionary()

    @property
    def ram_budget(self) -> int:
        """In bytes."""
        return self._bytes

    def add(self, step: WrappedStep) -> None:
        """The step shares the budget from now on. `wrap` does this."""
        self._steps[step] = None

    @contextmanager
    def turn(self, step: WrappedStep) -> Iterator[None]:
        """Around a call of the step: alone, and the others out of the way where they may be in it.

        Raises:
            StoreError: reading the store failed.
        """
        with self._turn:
            others = [
                other
                for other, thread in self._steps.items()
                if other is not step and thread == threading.get_ident()
            ]
            if others and not self._all_fit():
                self._put_away(others)
            self._steps[step] = threading.get_ident()
            yield

    def _all_fit(self) -> bool:
        """Whether the plain steps would, all at once."""
        graphs = [step.graph for step in self._steps]
        peaks = [graph.plain_peak_bytes() for graph in graphs if graph is not None]
        return len(peaks) == len(graphs) and sum(peaks) <= self._bytes

    def _put_away(self, steps: list[WrappedStep]) -> None:
        for step in steps:
            try:
                step.pause()
            except StoreError:  # it has no room: the call does without
                return
            self._steps[step] = None

    def __repr__(self) -> str:
        return f"<poet.Budget of {format_bytes(self._bytes)}, {len(self._steps)} steps>"


__all__ = ["Budget"]
