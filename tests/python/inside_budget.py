"""Calls of a wrapped step: what was resident in each, and what poet said of it."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import Any

from resident import Peaks

import poet


class Watched:
    """Watches calls: the block begins before there is a model (see `Peaks`).

    Without `measured` only what poet counts itself is known.
    """

    def __init__(self, *, measured: bool) -> None:
        self._peaks = Peaks() if measured else None
        self.stats: list[poet.StepStats] = []  # after each call
        self._told: list[warnings.WarningMessage] = []

    def __enter__(self) -> Watched:
        self._stack = ExitStack()
        told = self._stack.enter_context(warnings.catch_warnings(record=True))
        assert told is not None
        self._told = told
        warnings.simplefilter("always")
        if self._peaks is not None:
            self._stack.enter_context(self._peaks)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def call(self, step: poet.WrappedStep, args: tuple[Any, ...]) -> Any:
        """Runs it."""
        if self._peaks is not None:
            self._peaks.mark()
        try:
            return step(*args)
        finally:
            self.stats.append(step.stats)
            if self._peaks is not None:
                self._peaks.mark()  # what is done between calls is no call

    def check(self, budget: int, *, planned: bool = True) -> None:
        """Every call was inside its budget, or is counted and was warned of.

        Those that followed a plan were inside it (`planned`).
        """
        counted = [s.steps_over_budget for s in self.stats]
        for i, stats in enumerate(self.stats):
            before = self.stats[i - 1] if i else None
            says = counted[i] > (counted[i - 1] if i else 0)
            above = 0 if self._peaks is None else self._peaks.bytes[2 * i] - budget
            assert above <= 0 or says, f"call {i}: {above} bytes, untold"
            if planned and stats.followed_steps > (before.followed_steps if before else 0):
                assert above <= 0 and not says, f"call {i}: {above} bytes above, {stats}"
        warned = self._warned("went above its budget")
        assert warned == (counted[-1] > 0), self._told

    def _warned(self, words: str) -> bool:
        budget = [w for w in self._told if issubclass(w.category, poet.BudgetWarning)]
        return any(words in str(w.message) for w in budget)
