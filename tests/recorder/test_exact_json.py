"""Exact numbers from the decimal text, and numbers that cannot be believed."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.exact_json import count_of, counters_of, ns_of_ms, parse_exact


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("21.0005", 21_000_500),
        ("0.0000005", 0),
        ("0.0000015", 2),
        ("0.0000025", 2),
        ("0.00000250000000000000000000000000000000001", 3),
        ("359.351", 359_351_000),
        ("1e3", 1_000_000_000),
        ("1e12", 10**18),
        ("7", 7_000_000),
        ("0", 0),
        ("-0.0", 0),
    ],
)
def test_milliseconds_become_nanoseconds_from_their_decimal_text_halves_to_even(text: str, ns: int) -> None:
    assert ns_of_ms(parse_exact(text.encode())) == (ns, None)


@given(st.decimals(min_value=0, max_value=10**9, allow_nan=False, places=9))
def test_the_conversion_is_within_half_a_nanosecond(ms: Decimal) -> None:
    ns = ns_of_ms(ms).value
    assert abs(Decimal(ns) - ms * 10**6) <= Decimal("0.5")


def test_numbers_that_cannot_be_believed_have_a_fault() -> None:
    assert [count_of(value).fault for value in (-1, 2**31, 1.0, True, "1", Decimal("NaN"), None, 7)] == [
        "negative", "huge", "not_a_number", "not_a_number", "not_a_number", "not_finite", None, None,
    ]  # fmt: skip
    assert [ns_of_ms(value).fault for value in (Decimal(-1), Decimal("1e13"), "1", Decimal("Infinity"), True)] == [
        "negative", "huge", "not_a_number", "not_finite", "not_a_number",
    ]  # fmt: skip
    assert counters_of({"a": 1, "b": -1, "c": True, "d": "x", "e": 2**53}) == {"a": 1}
    assert counters_of([1]) is None
