"""Rounding, in its one place."""

from __future__ import annotations

import pytest

from reports import style


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (43.14422474234003, "43.14"),
        (144.55, "144.6"),
        (999.96, "1,000.0"),
        (1000.0, "1,000"),
        (20000.4, "20,000"),
    ],
)
def test_rates_have_three_or_four_digits(value: float | None, text: str) -> None:
    assert style.rate(value) == text


@pytest.mark.parametrize(
    ("value", "signed", "text"),
    [
        (None, True, "-"),
        (float("nan"), False, "-"),
        (float("inf"), True, "-"),
        (1.005, True, "+1.00 %"),
        (-3.4046557856889037, True, "-3.40 %"),
        (-0.001, True, "0.00 %"),
        (0.0, True, "0.00 %"),
        (0.001, False, "0.00 %"),
        (10.0, False, "10.00 %"),
    ],
)
def test_percentages_have_two_decimals_and_no_signed_zero(value: float | None, signed: bool, text: str) -> None:
    assert style.percent(value, signed=signed) == text


def test_durations() -> None:
    assert [style.milliseconds(ns) for ns in (None, 1_840_000, 99_949_999, 1_086_000_000)] == [
        "-",
        "1.8",
        "99.9",
        "1,086",
    ]


def test_sizes() -> None:
    assert [style.size(n) for n in (None, 0, 1023, 1024, 98_362_432, 5 * 2**30)] == [
        "-",
        "0 B",
        "1023 B",
        "1.0 KiB",
        "93.8 MiB",
        "5.0 GiB",
    ]


def test_times_are_utc_to_the_second() -> None:
    assert style.utc(1_795_953_600_999_999_999) == "2026-11-29 12:00:00 UTC"
    assert style.utc(None) == "-"


def test_absence_is_a_dash_everywhere() -> None:
    absent = [style.count(None), style.short_hash(None), style.whole_percent(None)]
    assert absent == ["-"] * 3
