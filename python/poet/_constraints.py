"""Constraints on a whole training, in a user's words, and what they leave for one step."""

from __future__ import annotations

import dataclasses
import datetime
import re
from fractions import Fraction

from poet import _C
from poet._budgets import format_seconds, positive_number, whole_number
from poet._enums import Objective
from poet._errors import ArgumentError

TrainingDeadline = float | str | datetime.timedelta | datetime.datetime

_MOST_STEPS = 2**53
_UNITS = {
    "ms": 1e-3,
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]+)\s*", re.IGNORECASE)
_LONGEST_TEXT = 64
_EXPECTED_DEADLINE = (
    'the time for the whole training: seconds, "8h", "90min", "1h 30min", a datetime.timedelta, or '
    'the moment of its end: a datetime.datetime, or as text "2026-12-24T18:00"'
)


@dataclasses.dataclass(frozen=True)
class StepShare:
    """What constraints on a whole training leave for one step.

    Attributes:
        seconds: that a step may take; None: no limit.
        joules: likewise.
        note: how these came about, for people; "" without a constraint.
    """

    seconds: float | None = None
    joules: float | None = None
    note: str = ""

    def tighter(self, seconds: float | None) -> float | None:
        """The smaller of a step's deadline and this share's; None where there is neither."""
        known = [each for each in (seconds, self.seconds) if each is not None]
        return min(known, default=None)

    def noted(self, note: str) -> StepShare:
        """The same with a further note."""
        return dataclasses.replace(self, note="; ".join(filter(None, [self.note, note])))

    def hold(self, schedule: _C.Schedule) -> _C.Schedule:
        """The schedule with the note in its message, and without a plan that takes more joules.

        Where a bound proves that every plan does, its status is "infeasible", else "time_limit";
        `Schedule.least_energy_joules` says what the plan would have taken.
        """
        if not self.note:
            return schedule
        return _C.held_to(schedule, self.note, self.joules)


NO_SHARE = StepShare()


def step_share(
    *,
    deadline: TrainingDeadline | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    battery_joules: float | None = None,
    minimize: Objective = Objective.ENERGY,
    now: datetime.datetime | None = None,
) -> StepShare:
    """Turns constraints on a whole training into one step's.

    Args:
        deadline: as `poet.solve` takes it.
        steps: of the whole training.
        epochs: in place of `steps`, with `steps_per_epoch`.
        steps_per_epoch: see there.
        battery_joules: that the whole training may draw.
        minimize: the objective of the search.
        now: when the training begins; None: now.

    Raises:
        ArgumentError: a constraint makes no sense, or the number of steps is not known.
    """
    count = _number_of_steps(steps, epochs, steps_per_epoch)
    if deadline is None and battery_joules is None:
        if count is not None:
            raise ArgumentError(
                f"steps: expected deadline= or battery_joules= beside it; got {count} steps alone, "
                "which limit nothing. Leave it out, or say what the training may take."
            )
        return NO_SHARE
    if count is None:
        name = "deadline" if deadline is not None else "battery_joules"
        raise ArgumentError(
            f"{name}: expected the number of steps beside it, to know what it leaves for one: give "
            "steps=, or epochs= with steps_per_epoch=."
        )
    seconds = joules = None
    notes = []
    if deadline is not None:
        total = training_seconds(deadline, now)
        seconds = total / count
        notes.append(
            f"deadline of {_long_time(total)} for {count} steps, {format_seconds(seconds)} a step"
        )
    if battery_joules is not None:
        total = positive_number(battery_joules, "battery_joules", "joules above 0")
        joules = total / count
        notes.append(f"battery of {total:g} J for {count} steps, {joules:.6g} J a step")
        if minimize is not Objective.ENERGY:
            raise ArgumentError(
                f'battery_joules: expected minimize="energy" beside it; got "{minimize}". The best '
                "plan for that says nothing about whether another one fits the battery. Leave "
                "minimize= out, and limit time with deadline= or runtime_budget=, memory with "
                "ram_budget=."
            )
    return StepShare(seconds, joules, "; ".join(notes))


def training_seconds(deadline: TrainingDeadline, now: datetime.datetime | None = None) -> float:
    """Seconds that the whole training may take.

    Args:
        deadline: as `poet.solve` takes it. A moment without a time zone is local time.
        now: when the training begins; None: now.

    Raises:
        ArgumentError: it cannot be understood, or lies in the past.
    """
    if isinstance(deadline, str):
        deadline = _parsed(deadline)
    if isinstance(deadline, datetime.datetime):
        begin = now if now is not None else datetime.datetime.now(datetime.timezone.utc)
        try:
            left = (deadline.astimezone() - begin.astimezone()).total_seconds()
        except (ValueError, OverflowError) as error:  # at the ends of the calendar
            raise _error(deadline.isoformat(), f"{error}.") from None
        if left <= 0:
            raise _error(deadline.isoformat(), f"That is {_long_time(-left)} ago.")
        return left
    if isinstance(deadline, datetime.timedelta):
        deadline = deadline.total_seconds()
    return positive_number(deadline, "deadline", _EXPECTED_DEADLINE)


def _parsed(text: str) -> float | datetime.datetime:
    if len(text) > _LONGEST_TEXT:
        raise _error(text, "That is too long.")
    try:
        return float(text)  # bare seconds, as the command line has them
    except ValueError:
        pass
    seconds = Fraction(0)
    at = 0
    stripped = text.strip()
    while part := _PART.match(stripped, at):
        unit = part[2].lower()
        if unit not in _UNITS:
            raise _error(text, f"Known units: ms, s, min, h, d; not {part[2]!r}.")
        seconds += Fraction(part[1]) * Fraction(_UNITS[unit])
        at = part.end()
    if at == len(stripped) and at > 0:
        return float(seconds)
    try:
        return datetime.datetime.fromisoformat(stripped)
    except ValueError:
        raise _error(text, "Write numbers with their units, or a date and time.") from None


def _number_of_steps(steps: object, epochs: object, steps_per_epoch: object) -> int | None:
    if steps is not None:
        if epochs is not None or steps_per_epoch is not None:
            raise ArgumentError(
                "steps: expected either steps= or epochs= with steps_per_epoch=; got "
                f"steps={steps!r} with epochs={epochs!r} and steps_per_epoch={steps_per_epoch!r}. "
                "Leave one out."
            )
        return whole_number(steps, "steps", "a number of steps", least=1, most=_MOST_STEPS)
    if epochs is None and steps_per_epoch is None:
        return None
    for name, value in (("epochs", epochs), ("steps_per_epoch", steps_per_epoch)):
        if value is None:
            raise ArgumentError(
                f"{name}: expected a number: epochs= and steps_per_epoch= go together, as in "
                "epochs=3, steps_per_epoch=len(loader)."
            )
    count = whole_number(epochs, "epochs", "a number of epochs", least=1, most=_MOST_STEPS)
    return count * whole_number(
        steps_per_epoch,
        "steps_per_epoch",
        "a number of steps",
        least=1,
        most=_MOST_STEPS // count,
    )


def _long_time(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return format_seconds(seconds)


def _error(got: str, hint: str) -> ArgumentError:
    shown = repr(got if len(got) <= _LONGEST_TEXT else got[:_LONGEST_TEXT] + "...")
    return ArgumentError(f"deadline: expected {_EXPECTED_DEADLINE}; got {shown}. {hint}")


__all__ = ["NO_SHARE", "StepShare", "TrainingDeadline", "step_share", "training_seconds"]
