"""Sizes and times as people write them."""

from __future__ import annotations

import math
import numbers
import operator
import os
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import SupportsIndex

from poet._errors import ArgumentError

MAX_BYTES = 2**63 - 1

# A unit alone ("2g") is binary, as in `ulimit`, `docker -m` and `java -Xmx`; "kB" and "GB" are the
# decimal units of the SI, "KiB" and "GiB" the binary ones of IEC 80000-13.
_BYTE_UNITS: dict[str, int] = {"b": 1, "byte": 1, "bytes": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _BYTE_UNITS[_letter] = _BYTE_UNITS[f"{_letter}ib"] = 1024**_power
    _BYTE_UNITS[f"{_letter}b"] = 1000**_power

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}

# Exponents have at most three digits: "1e999999999" must be an error, not a number to compute.
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]{1,3})?)\s*(?P<unit>[a-z]*|%)",
    re.IGNORECASE,
)
_LONGEST_TEXT = 64

_EXPECTED_BYTES = 'bytes as a whole number, a size such as "512MiB", "1.5GiB" or "800 MB"'
_EXPECTED_TIME = (
    'a ratio to the plain step\'s time such as 1.3, or a time such as "1.5s" or "800ms"'
)

ByteBudget = int | float | str
TimeBudget = float | str


def is_share(budget: ByteBudget) -> bool:
    """Whether the budget is a share of the plain step's peak, as "60%"."""
    return isinstance(budget, str) and budget.strip().endswith("%")


def parse_bytes(
    budget: ByteBudget,
    *,
    plain_peak_bytes: int | Callable[[], int] | None = None,
    name: str = "ram_budget",
) -> int:
    """Turns a size into bytes, rounded down.

    Args:
        budget: a whole number of bytes (2e9 is one), "512MiB", "512 MB", "1.5GiB", "2g", or
            "60%" of the plain step's peak.
        plain_peak_bytes: that peak, or a function that finds it (called for a percentage only);
            None where percentages make no sense.
        name: of the argument, for messages.

    Returns:
        Bytes, from 1 to 2**63 - 1.

    Raises:
        ArgumentError: the size cannot be understood, is not positive or is not finite.
    """
    expected = _EXPECTED_BYTES
    if plain_peak_bytes is not None:
        expected += ', or a share of the plain step\'s peak such as "60%"'
    if isinstance(budget, str):
        number, unit = _split(budget, name, expected)
        if unit == "%":
            if plain_peak_bytes is None:
                raise _error(name, expected, budget, "Give the size itself.")
            peak = plain_peak_bytes() if callable(plain_peak_bytes) else plain_peak_bytes
            exact = number / 100 * peak
        elif unit == "" and number.denominator == 1:
            exact = number
        elif unit in _BYTE_UNITS:
            exact = number * _BYTE_UNITS[unit]
        else:
            hint = f"Known units: %, B, and k, M, G, T with or without B or iB; not {unit!r}."
            raise _error(name, expected, budget, hint if unit else 'Add a unit, as in "1.5GiB".')
    else:
        exact = Fraction(_whole_number(budget, name, expected))
    if exact < 0:
        raise _error(name, expected, budget, "A budget cannot be negative.")
    if exact < 1:
        raise _error(name, expected, budget, "A budget must hold at least one byte.")
    if exact > MAX_BYTES:
        raise _error(name, expected, budget, "A budget must lie below 2**63 bytes.")
    return math.floor(exact)


def parse_runtime(
    budget: TimeBudget, *, plain_seconds: float, name: str = "runtime_budget"
) -> float:
    """Turns a deadline into seconds.

    Args:
        budget: a ratio to the plain step's time (a number; below 1 no plan can exist), or a time
            with its unit: "1.5s", "800ms", "250us", "2min", "1h".
        plain_seconds: time of the plain step, in seconds.
        name: of the argument, for messages.

    Returns:
        Seconds, above 0.

    Raises:
        ArgumentError: the time cannot be understood, is not positive or is not finite.
    """
    if isinstance(budget, str):
        number, unit = _split(budget, name, _EXPECTED_TIME)
        if unit not in _SECONDS:
            hint = f"Known units: {', '.join(_SECONDS)}; not {unit!r}."
            if unit == "%":
                hint = f"As a ratio to the plain step's time that is {float(number / 100):g}."
            elif not unit:
                hint = "Give a ratio as a number, or add a unit to a time."
            raise _error(name, _EXPECTED_TIME, budget, hint)
        return _seconds(number, _SECONDS[unit], budget, name)
    ratio = positive_number(budget, name, _EXPECTED_TIME)
    if plain_seconds == 0:
        raise _error(name, _EXPECTED_TIME, budget, "This step has no recorded times: give a time.")
    return _seconds(Fraction(ratio), plain_seconds, budget, name)


def positive_number(number: object, name: str, expected: str) -> float:
    """Checks that `number` is a real number above 0 and finite.

    Args:
        number: what the caller passed (Python's and NumPy's numbers do; booleans do not).
        name: of the argument, for messages.
        expected: what the argument takes, for messages.

    Returns:
        The number as a float.

    Raises:
        ArgumentError: it is not.
    """
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise _error(name, expected, number, f"This is of type {type(number).__name__}.")
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if math.isnan(value):
        raise _error(name, expected, number, "It must be a number.")
    if math.isinf(value):
        raise _error(name, expected, number, "It must be finite.")
    if value <= 0:
        raise _error(name, expected, number, "It must be above 0.")
    return value


def whole_number(number: object, name: str, expected: str, *, least: int, most: int) -> int:
    """Checks that `number` is an integer within [`least`, `most`] and no boolean.

    Args:
        number: what the caller passed (NumPy's integers do).
        name: of the argument, for messages.
        expected: what the argument takes, for messages.
        least: smallest that makes sense.
        most: largest that makes sense.

    Returns:
        The number as an int.

    Raises:
        ArgumentError: it is not.
    """
    if isinstance(number, bool) or not isinstance(number, SupportsIndex):
        raise _error(name, expected, number, f"This is of type {type(number).__name__}.")
    value = _index(number, name, expected)
    if not least <= value <= most:
        raise _error(name, expected, number, f"It must lie between {least} and {most}.")
    return value


def machine_ram_bytes() -> int:
    """RAM of the machine in bytes, or of the control group that this process is confined to."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [physical]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():  # "max" stands for no limit
            limits.append(int(text))
    return min(limits)


def format_bytes(size: int) -> str:
    """A size for people: "117.8 MiB", or plain bytes below 1 KiB."""
    amount = float(size)
    if abs(amount) < 1024:
        return f"{size} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if abs(amount) < 1024 or unit == "TiB":
            break
    return f"{amount:.1f} {unit}"


def check_budgets(budgets: object) -> None:
    """Raises ArgumentError unless it is a list of budgets, with one at least."""
    if isinstance(budgets, str) or not isinstance(budgets, Sequence) or not budgets:
        raise ArgumentError(
            'budgets: expected a list of budgets (bytes, "512MiB" or "60%"), as in '
            f'budgets=["70%"]; got {budgets!r:.80}.'
        )
    for budget in budgets:  # whatever the peak turns out to be
        parse_bytes(budget, plain_peak_bytes=1 << 50, name="budgets")


def format_least_bytes(size: int) -> str:
    """As format_bytes, but never less than `size`, so that it may be advised as a budget."""
    unit = 1
    while abs(size) >= 1024 * unit and unit < 1024**4:
        unit *= 1024
    step = Fraction(unit, 10)  # of the last digit that is shown
    return format_bytes(size if unit == 1 else math.ceil(math.ceil(size / step) * step))


def format_seconds(seconds: float) -> str:
    """A time for people, in the unit that fits: "1.25 s", "80.1 ms", "12 us"."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if abs(seconds) * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    if seconds == 0 or abs(seconds) * 1e6 >= 1:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds:.3g} s"


def _split(text: str, name: str, expected: str) -> tuple[Fraction, str]:
    """Splits "1.5 GiB" into an exact number and its unit in lower case."""
    match = _QUANTITY.fullmatch(text.strip()) if len(text) <= _LONGEST_TEXT else None
    if match is None:
        hint = "Write a number and its unit."
        if _QUANTITY.fullmatch(text[:_LONGEST_TEXT].replace(",", "").strip()):
            hint = "Write the decimal point as '.', and nothing between thousands."
        raise _error(name, expected, text, hint)
    number = Fraction(match["number"])
    if number < 0:
        raise _error(name, expected, text, "A budget cannot be negative.")
    return number, match["unit"].lower()


def _whole_number(number: object, name: str, expected: str) -> int:
    """Like `whole_number`, but takes floats that are whole (2e9) and leaves the range to others."""
    if isinstance(number, bool) or not isinstance(number, SupportsIndex | numbers.Real):
        raise _error(name, expected, number, f"This is of type {type(number).__name__}.")
    if isinstance(number, SupportsIndex):
        return _index(number, name, expected)
    value = float(number)
    if not math.isfinite(value):
        raise _error(name, expected, number, "It must be finite.")
    if not value.is_integer():
        raise _error(name, expected, number, 'Write a share as a text, as in "60%".')
    return int(value)


def _index(number: SupportsIndex, name: str, expected: str) -> int:
    try:
        return operator.index(number)
    except TypeError as error:  # an array with more than one element
        raise _error(name, expected, number, "It must be one integer.") from error


def _seconds(amount: Fraction, unit_seconds: float, budget: TimeBudget, name: str) -> float:
    """`amount` times `unit_seconds`, if the product is a time."""
    try:
        seconds = float(amount * Fraction(unit_seconds))
    except OverflowError:
        seconds = math.inf
    if not 0 < seconds < math.inf:
        raise _error(name, _EXPECTED_TIME, budget, "It must be a finite time above 0.")
    return seconds


def _error(name: str, expected: str, got: object, hint: str) -> ArgumentError:
    shown = repr(got)
    if len(shown) > _LONGEST_TEXT:
        shown = shown[:_LONGEST_TEXT] + "..."
    return ArgumentError(f"{name}: expected {expected}; got {shown}. {hint}")
