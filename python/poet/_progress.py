"""What a search says while it runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from tqdm.auto import tqdm

from poet._results import SearchPoint

_POLL_SHARE = 1e-3  # of the time limit: the bar moves in steps of this


class _ClosedAtTheEnd:
    """What has a bar that goes when its block ends."""

    _bar: Any

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()


class SearchBar(_ClosedAtTheEnd):
    """A progress bar over the time limit that shows the best plan, the bound and the gap.

    Args:
        time_limit_s: seconds that the search may take.
        plain: what the plain step costs in the objective's unit, to print shares of it; None where
            that is unknown.
        unit: of the objective.
    """

    def __init__(self, time_limit_s: float, *, plain: float | None, unit: str) -> None:
        self._plain = plain
        self._unit = unit
        self._begin = time.monotonic()
        self._bar = tqdm(
            total=time_limit_s,
            desc="poet: planning",
            unit="s",
            bar_format="{desc} {bar:20} {n:.0f}/{total:.0f} s{postfix}",
            leave=True,
        )

    def __enter__(self) -> SearchBar:
        self._begin = time.monotonic()
        return self

    def tell(self, point: SearchPoint) -> None:
        """Shows a better plan or a better bound."""
        parts = [
            f"best {self._amount(point.value)}" if point.value is not None else "no plan yet",
            f"at least {self._amount(point.bound)}" if point.bound is not None else "",
            f"gap {100 * point.gap:.2f} %" if point.gap is not None else "",
        ]
        self._move(point.seconds)
        self._bar.set_postfix_str(", ".join(part for part in parts if part))

    def poll(self) -> bool:
        """A `should_stop` that never stops, and moves the bar."""
        self._move(time.monotonic() - self._begin)
        return False

    def _move(self, seconds: float) -> None:
        step = min(seconds, float(self._bar.total)) - self._bar.n
        if step >= _POLL_SHARE * float(self._bar.total):
            self._bar.update(step)

    def _amount(self, amount: float) -> str:
        if self._plain:
            return f"{100 * (amount / self._plain - 1):+.2f} %"
        return f"{amount:.4g} {self._unit}"


class RoundsBar(_ClosedAtTheEnd):
    """A progress bar over rounds of something.

    Args:
        rounds: how many there are.
        what: that is done.
        shown: False shows nothing.
    """

    def __init__(self, rounds: int, what: str, *, shown: bool) -> None:
        self._bar = tqdm(total=rounds, desc=what, leave=False, disable=not shown)

    def __enter__(self) -> RoundsBar:
        return self

    def tell(self, what: str) -> None:
        """Shows what it is at."""
        self._bar.set_postfix_str(what)

    def advance(self) -> None:
        """One more round is over."""
        self._bar.update(1)


# Told of each call of a step that is being recorded.
recorded_call: ContextVar[Callable[[], object] | None] = ContextVar("recorded_call", default=None)


@contextlib.contextmanager
def recording_bar(*, shown: bool) -> Iterator[None]:
    """Shows how often a step has run to be recorded: until two calls are alike."""
    if not shown:
        yield
        return
    with tqdm(desc="poet: recording", bar_format="{desc}, call {n} ({elapsed})") as bar:
        token = recorded_call.set(lambda: bar.update(1))
        try:
            yield
        finally:
            recorded_call.reset(token)


__all__ = ["RoundsBar", "SearchBar", "recorded_call", "recording_bar"]
