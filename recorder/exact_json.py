"""JSON as a server wrote it, with numbers exact: integers as int, real numbers as Decimal.

Binary floats never take part: 21.0005 ms is 21,000,500 ns, not 21,000,499. ``NaN`` and ``Infinity``,
which are not JSON but which servers do write, arrive as non-finite Decimals, so that the rest of the
event is not lost with them.
"""

from __future__ import annotations

import json
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any, Final, Literal, NamedTuple

MAX_COUNT: Final = 2**31 - 1
"""Largest count or token id that is believed; a larger one is a defect of the sender."""
MAX_MS: Final = Decimal(10**12)
"""Largest duration that is believed: about 31 years."""

_WIDE: Final = Context(prec=60, rounding=ROUND_HALF_EVEN)

Fault = Literal["not_a_number", "not_finite", "negative", "huge"]


class Number(NamedTuple):
    """An integer, or the reason why there is none. ``(None, None)`` says that the value is absent."""

    value: int | None
    fault: Fault | None


def parse_exact(data: bytes) -> Any:  # noqa: ANN401 (JSON is any value)
    """Parse one JSON value. Bytes that are not UTF-8 become lone surrogates (``surrogateescape``).

    Raises ValueError for anything that is not JSON.
    """
    try:
        text = data.decode("utf-8", "surrogateescape")
        return json.loads(text, parse_float=Decimal, parse_constant=Decimal)
    except (RecursionError, ArithmeticError) as error:
        raise ValueError(f"not usable as JSON: {type(error).__name__}") from error


def count_of(value: object) -> Number:
    """Read a count or an id: an integer from 0 to MAX_COUNT. ``4.0`` is not one."""
    if value is None:
        return Number(None, None)
    if isinstance(value, Decimal) and not value.is_finite():
        return Number(None, "not_finite")
    if not isinstance(value, int) or isinstance(value, bool):
        return Number(None, "not_a_number")
    if value < 0:
        return Number(None, "negative")
    if value > MAX_COUNT:
        return Number(None, "huge")
    return Number(value, None)


def ns_of_ms(value: object) -> Number:
    """Convert milliseconds to whole nanoseconds, exactly, halves to even."""
    if value is None:
        return Number(None, None)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return Number(None, "not_a_number")
    if isinstance(value, int):
        value = Decimal(value)
    if not value.is_finite():
        return Number(None, "not_finite")
    if value < 0:
        return Number(None, "negative")
    if value > MAX_MS:
        return Number(None, "huge")
    # Whatever lies below a nanosecond's 40th decimal cannot change the rounding of a sane number,
    # and a text with a million digits must not cost a million-digit product.
    return Number(int(_WIDE.multiply(value, Decimal(10**6)).to_integral_value(ROUND_HALF_EVEN)), None)


def counters_of(value: object) -> dict[str, int] | None:
    """Read an object of non-negative integers up to 2^53 - 1; entries of any other form are left out."""
    if not isinstance(value, dict):
        return None
    return {
        name: number
        for name, number in value.items()
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**53
    }
