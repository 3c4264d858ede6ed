"""only_while=: a step that waits until the machine may be used."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from poet._errors import ArgumentError
from poet._names import did_you_mean

Condition = str | Callable[[], bool]

POWER_SUPPLIES = Path("/sys/class/power_supply")

_SECONDS_OF_LOAD = 60.0  # time constant of the system's first load average
_SECONDS_OF_ANSWER = 1.0
_SHARE_IN_USE = 0.25  # of the processors: above it somebody uses the machine


@dataclasses.dataclass
class Pace:
    """How a gate waits; tests put their own in its place.

    Attributes:
        poll_seconds: between two looks at the conditions.
        sleep: waits so many seconds; Ctrl-C must end it.
        clock: seconds, ascending.
    """

    poll_seconds: float = 5.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


class OtherLoad:
    """The load that other processes make: the system's load average without this process's share.

    A load average is an exponential mean over a minute (proc_loadavg(5)). This process's processor
    time goes through the same mean, and is taken off.
    """

    def __init__(
        self,
        load: Callable[[], float] = lambda: os.getloadavg()[0],
        cpu_seconds: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load, self._cpu_seconds, self._clock = load, cpu_seconds, clock
        self._own = 0.0
        self._at, self._used = clock(), cpu_seconds()

    def __call__(self) -> float:
        """Processes that run or wait to, beside this one's threads."""
        at, used = self._clock(), self._cpu_seconds()
        passed = at - self._at
        if passed > 0:
            keeps = math.exp(-passed / _SECONDS_OF_LOAD)
            self._own = keeps * self._own + (1 - keeps) * (used - self._used) / passed
            self._at, self._used = at, used
        return max(0.0, self._load() - self._own)


class Recent:
    """An answer that holds for a second: asking a battery takes longer than many a step."""

    def __init__(
        self, ask: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._clock = ask, clock
        self._until = -math.inf
        self._answer = False

    def __call__(self) -> bool:
        """The answer, at most a second old."""
        now = self._clock()
        if now >= self._until:
            self._answer = self._ask()
            self._until = now + _SECONDS_OF_ANSWER
        return self._answer


def is_charging(supplies: Path = POWER_SUPPLIES) -> bool:
    """Whether the machine runs on mains power; one without a battery of its own does.

    Source: Documentation/ABI/testing/sysfs-class-power of the Linux kernel.
    """
    batteries = []
    try:
        entries = sorted(supplies.iterdir())
    except OSError:
        return True
    for entry in entries:
        kind = _read(entry / "type")
        if kind == "Battery":
            if _read(entry / "scope") != "Device":  # a mouse's, say
                batteries.append(_read(entry / "status"))
        elif _read(entry / "online") not in ("", "0"):
            return True
    return not batteries or any(status in ("Charging", "Full") for status in batteries)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


class Gate:
    """What must hold before a step begins.

    Args:
        conditions: "charging", "idle", or functions that say whether the step may begin.

    Raises:
        ArgumentError: a condition is neither, or this system cannot answer it.
    """

    def __init__(self, conditions: Condition | Sequence[Condition]) -> None:
        one = isinstance(conditions, str) or callable(conditions)
        wanted = [conditions] if one else conditions
        if not isinstance(wanted, Sequence) or not wanted:
            raise _error(conditions)
        self._conditions = [_named(each) for each in wanted]
        self.pace = Pace()
        self.held_steps = 0
        self.held_seconds = 0.0

    def unmet(self) -> str:
        """The first condition that does not hold, by name; "" where all do.

        Raises:
            Exception: what a condition of the caller's raises, unchanged.
        """
        return next((name for name, holds in self._conditions if not holds()), "")

    def wait(
        self,
        *,
        release: Callable[[], int],
        say: Callable[[str], None],
        stopped: Callable[[], bool],
    ) -> None:
        """Returns once every condition holds, or `stopped` says so.

        Args:
            release: gives memory back for the time of waiting; returns the bytes.
            say: tells why it waits.
            stopped: nobody wants to wait any more.
        """
        unmet = self.unmet()
        if not unmet:
            return
        self.held_steps += 1
        begin = self.pace.clock()
        told = ""
        released = False
        try:
            while unmet and not stopped():
                if unmet != told:
                    say(f"the step waits until {_SAYS.get(unmet, unmet + ' allows it')}")
                    told = unmet
                if not released:
                    released = True
                    say(f"{release()} bytes of it are in the store in the meantime")
                self.pace.sleep(self.pace.poll_seconds)
                unmet = self.unmet()
        finally:
            waited = self.pace.clock() - begin
            self.held_seconds += waited
        say(f"the step goes on after {waited:.0f} s")


_SAYS = {
    "charging": "the machine is charging (only_while)",
    "idle": "other programs leave the processors alone (only_while)",
}


def _named(condition: object) -> tuple[str, Callable[[], bool]]:
    if condition == "charging":
        return "charging", Recent(is_charging)
    if condition == "idle":
        try:
            other = OtherLoad()
            other()
        except (OSError, AttributeError) as error:
            raise ArgumentError(
                f'only_while: expected a system that knows its load for "idle": {error}. Give a '
                "function in its place."
            ) from error
        most = _SHARE_IN_USE * (os.cpu_count() or 1)
        return "idle", lambda: other() <= most
    if not isinstance(condition, str) and callable(condition):
        _check_no_arguments(condition)
        name = getattr(condition, "__qualname__", type(condition).__name__)
        return name, condition
    raise _error(condition)


def _check_no_arguments(condition: Callable[..., object]) -> None:
    try:
        inspect.signature(condition).bind()
    except ValueError:  # it has no signature to look at
        return
    except TypeError as error:
        raise ArgumentError(f"{_error(condition)} It cannot be called without: {error}.") from None


def _error(got: object) -> ArgumentError:
    return ArgumentError(
        'only_while: expected "charging", "idle", functions without arguments that say whether a '
        f"step may begin, or several of these; got {got!r:.80}.{did_you_mean(got, _SAYS)}"
    )


__all__ = ["Condition", "Gate", "OtherLoad", "Pace", "Recent", "is_charging"]
