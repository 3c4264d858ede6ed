"""Sizes and times as people write them, and what they are told when they mistype one."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import poet
from poet._budgets import (
    format_bytes,
    format_least_bytes,
    format_seconds,
    machine_ram_bytes,
    parse_bytes,
    parse_runtime,
    positive_number,
    whole_number,
)

PEAK = 1_000_003


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        (737719, 737719),
        (2e9, 2_000_000_000),
        (np.int64(4096), 4096),
        (np.float64(4096.0), 4096),
        (2**63 - 1, 2**63 - 1),
        ("4096", 4096),
        ("4096B", 4096),
        ("10 bytes", 10),
        ("512MiB", 512 * 1024**2),
        ("512 MiB", 512 * 1024**2),
        ("512 MB", 512 * 10**6),
        ("1.5GiB", 3 * 1024**3 // 2),
        ("1.5gb", 1_500_000_000),
        ("2g", 2 * 1024**3),
        ("64k", 65536),
        ("64kB", 64000),
        ("1T", 1024**4),
        ("1e3 KiB", 1024_000),
        (" .5 MiB ", 524288),
        ("0.3KiB", 307),
        ("60%", 600_001),
        ("100 %", PEAK),
        ("250%", 2_500_007),
        ("0.001%", 10),
    ],
)
def test_sizes_are_read_exactly_and_rounded_down(text: Any, size: int) -> None:
    assert parse_bytes(text, plain_peak_bytes=PEAK) == size


@pytest.mark.parametrize(
    "text",
    [
        "12 parsecs",
        "",
        "   ",
        "MiB",
        "%",
        "1.5",
        "1,5GiB",
        "1.5.5GiB",
        "0x10MiB",
        "1_000",
        "\u0661MiB",
        "512MiB extra",
        "nan",
        "inf",
        "infGiB",
        "1e9999999999GiB",
        "1e400GiB",
        "9" * 1000 + "GiB",
        "-1GiB",
        "-5%",
        "0",
        "0%",
        "0.3B",
        "9223372036854775808",
        -1,
        0,
        0.0,
        0.6,
        2**63,
        math.nan,
        math.inf,
        -math.inf,
        True,
        False,
        None,
        [],
        {"bytes": 3},
        b"512MiB",
        1j,
        np.array([1, 2]),
        np.bool_(True),
    ],
)
def test_sizes_that_make_no_sense_are_refused_with_what_was_expected_and_got(text: Any) -> None:
    with pytest.raises(poet.ArgumentError) as caught:
        parse_bytes(text, plain_peak_bytes=PEAK)
    message = str(caught.value)
    assert message.startswith("ram_budget: expected bytes as a whole number")
    assert "; got " in message
    assert len(message) < 500
    assert isinstance(caught.value, ValueError)


def test_unknown_unit_is_named() -> None:
    with pytest.raises(poet.ArgumentError, match=r"got '12 parsecs'. Known units: .*not 'parsecs'"):
        parse_bytes("12 parsecs")


def test_negative_budget_is_said_to_be_negative() -> None:
    for budget in (-1, "-1 GiB", "-1%"):
        with pytest.raises(poet.ArgumentError, match="A budget cannot be negative"):
            parse_bytes(budget, plain_peak_bytes=PEAK)


def test_what_people_write_elsewhere_is_answered_with_what_to_write_here() -> None:
    for comma in ("1,5GiB", "1,000,000"):
        with pytest.raises(poet.ArgumentError, match=r"Write the decimal point as '\.'"):
            parse_bytes(comma)
    with pytest.raises(poet.ArgumentError, match=r"that is 1\.5\."):
        parse_runtime("150%", plain_seconds=1.0)


def test_percentage_needs_a_peak() -> None:
    with pytest.raises(poet.ArgumentError, match="Give the size itself"):
        parse_bytes("60%")


def test_peak_is_asked_for_only_when_a_percentage_needs_it() -> None:
    calls = []

    def peak() -> int:
        calls.append(1)
        return PEAK

    assert parse_bytes("1MiB", plain_peak_bytes=peak) == 1024**2
    assert not calls
    assert parse_bytes("50%", plain_peak_bytes=peak) == 500_001
    assert len(calls) == 1


def test_name_of_the_argument_is_in_the_message() -> None:
    with pytest.raises(poet.ArgumentError, match=r"^cache: "):
        parse_bytes("many", name="cache")


@given(st.integers(min_value=1, max_value=2**40), st.sampled_from("kmgt"))
def test_binary_and_decimal_units_differ_as_the_standards_say(amount: int, letter: str) -> None:
    power = "kmgt".index(letter) + 1
    if amount * 1024**power < 2**63:
        assert parse_bytes(f"{amount}{letter.upper()}iB") == amount * 1024**power
        assert parse_bytes(f"{amount} {letter}") == amount * 1024**power
        assert parse_bytes(f"{amount}{letter}B") == amount * 1000**power


@given(st.fractions(min_value=0, max_value=1000, max_denominator=10**6), st.integers(1, 2**50))
def test_percentages_never_round_up(share: Fraction, peak: int) -> None:
    text = f"{float(share)!r}%"
    exact = Fraction(text[:-1]) * peak / 100
    if exact >= 1:
        size = parse_bytes(text, plain_peak_bytes=peak)
        assert size <= exact < size + 1


@given(st.text(max_size=80))
def test_any_text_is_a_size_or_an_argument_error(text: str) -> None:
    try:
        size = parse_bytes(text, plain_peak_bytes=PEAK)
    except poet.ArgumentError:
        return
    assert 1 <= size < 2**63


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [
        (1.3, 2.6),
        (1, 2.0),
        (np.float32(1.5), 3.0),
        (Fraction(3, 2), 3.0),
        (0.5, 1.0),
        ("1.5s", 1.5),
        ("1.5 S", 1.5),
        ("800ms", 0.8),
        ("250us", 0.00025),
        ("2min", 120.0),
        ("2h", 7200.0),
        ("1e-3s", 0.001),
    ],
)
def test_deadlines_are_ratios_or_times(budget: Any, seconds: float) -> None:
    assert parse_runtime(budget, plain_seconds=2.0) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "budget",
    [
        "12 parsecs",
        "1.3",
        "1.3x",
        "130%",
        "-1s",
        "0s",
        "1e-999s",
        "1e999s",
        "s",
        "",
        0,
        -1.0,
        math.nan,
        math.inf,
        10**400,
        True,
        None,
        [],
        1j,
    ],
)
def test_deadlines_that_make_no_sense_are_refused(budget: Any) -> None:
    with pytest.raises(poet.ArgumentError, match=r"^runtime_budget: expected .*; got "):
        parse_runtime(budget, plain_seconds=2.0)


def test_a_ratio_to_a_step_without_times_is_refused() -> None:
    with pytest.raises(poet.ArgumentError, match="no recorded times"):
        parse_runtime(1.3, plain_seconds=0.0)
    assert parse_runtime("1s", plain_seconds=0.0) == 1.0


@given(st.text(max_size=80))
def test_any_text_is_a_time_or_an_argument_error(text: str) -> None:
    try:
        seconds = parse_runtime(text, plain_seconds=2.0)
    except poet.ArgumentError:
        return
    assert 0 < seconds < math.inf


@pytest.mark.parametrize("number", [0, -1, math.nan, math.inf, True, "3", None, 10**400])
def test_positive_number_refuses_what_is_not_one(number: Any) -> None:
    with pytest.raises(poet.ArgumentError, match=r"^limit: expected seconds; got "):
        positive_number(number, "limit", "seconds")


@pytest.mark.parametrize("number", [0, 9, 1.0, True, "3", None, np.array([1, 2])])
def test_whole_number_refuses_what_is_not_one(number: Any) -> None:
    with pytest.raises(poet.ArgumentError, match=r"^threads: expected threads; got "):
        whole_number(number, "threads", "threads", least=1, most=8)


def test_whole_number_takes_numpy_integers() -> None:
    assert whole_number(np.int32(8), "threads", "threads", least=1, most=8) == 8


def test_machine_has_ram_and_no_more_than_the_hardware() -> None:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    total = next(int(line.split()[1]) for line in lines if line.startswith("MemTotal:")) * 1024
    assert 2**20 < machine_ram_bytes() <= total


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (123_523_310, "117.8 MiB"),
        (3 * 1024**3 // 2, "1.5 GiB"),
        (5 * 1024**5, "5120.0 TiB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.25, "1.25 s"), (0.0801, "80.1 ms"), (12e-6, "12 us"), (0, "0 us"), (75, "75 s")],
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 4767904, 1024**2 - 1, 10**9])
def test_a_least_size_is_never_rounded_down(size: int) -> None:
    text = format_least_bytes(size)
    number, unit = text.split()
    amount = float(number) * 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    assert size <= round(amount) <= size * 1.1 + 1
