from __future__ import annotations

import hashlib
import json
import math
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.canonical import (
    MAX_DEPTH,
    MAX_INTEGER,
    canonical_bytes,
    decimal_text,
    parse_real,
    real_text,
    sha256_hex,
    token_digest,
)
from protocols.errors import EvidenceError

# Published with RFC 8785: its section 3.2.3, and the files `arrays`, `french`, `structures` and `unicode` of its test data.
PUBLISHED = [
    ('[56, {"d": true, "10": null, "1": [ ]}]', '[56,{"1":[],"10":null,"d":true}]'),
    (
        (
            '{"peach": "This sorting order", "péché": "is wrong according to French", '
            '"pêche": "but canonicalization MUST", "sin": "ignore locale"}'
        ),
        (
            '{"peach":"This sorting order","péché":"is wrong according to French",'
            '"pêche":"but canonicalization MUST","sin":"ignore locale"}'
        ),
    ),
    (
        (
            '{"1": {"f": {"f": "hi", "F": 5}, "\\n": 56}, "10": {}, "": "empty", "a": {}, '
            '"111": [{"e": "yes", "E": "no"}], "A": {}}'
        ),
        '{"":"empty","1":{"\\n":56,"f":{"F":5,"f":"hi"}},"10":{},"111":[{"E":"no","e":"yes"}],"A":{},"a":{}}',
    ),
    ('{"Unnormalized Unicode": "A\\u030a"}', '{"Unnormalized Unicode":"A\u030a"}'),
    (
        (
            '{"\\u20ac": "Euro Sign", "\\r": "Carriage Return", "\\ufb33": "Hebrew Letter Dalet With Dagesh", "1": "One", '
            '"\\ud83d\\ude00": "Emoji: Grinning Face", "\\u0080": "Control", '
            '"\\u00f6": "Latin Small Letter O With Diaeresis"}'
        ),
        (
            '{"\\r":"Carriage Return","1":"One","\x80":"Control","ö":"Latin Small Letter O With Diaeresis",'
            '"€":"Euro Sign","😀":"Emoji: Grinning Face","\ufb33":"Hebrew Letter Dalet With Dagesh"}'
        ),
    ),
    (
        '{"string": "\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/", "literals": [null, true, false]}',
        '{"literals":[null,true,false],"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}',
    ),
]


@pytest.mark.parametrize(("given_text", "expected"), PUBLISHED)
def test_the_published_vectors_of_rfc_8785_come_out(given_text: str, expected: str) -> None:
    assert canonical_bytes(json.loads(given_text)) == expected.encode()


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, 0.5]}, "$.a[1]"),
        ({"a": {"b": math.nan}}, "$.a.b"),
        ([MAX_INTEGER + 1], "$[0]"),
        ({"n": -(2**60)}, "$.n"),
        ({1: "x"}, "$"),
        ({"b": b"bytes"}, "$.b"),
        ({"s": {1, 2}}, "$.s"),
        ({"t": "\ud800"}, "$.t"),
        ({"\ud800": 1}, "$"),
    ],
)
def test_what_may_not_be_hashed_is_refused_with_its_path(value: object, place: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        canonical_bytes(value)
    assert caught.value.where == place


def test_nesting_beyond_the_limit_is_refused_and_just_within_it_is_not() -> None:
    value: object = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    canonical_bytes(value)
    with pytest.raises(EvidenceError, match="nested deeper"):
        canonical_bytes([value])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_canonical_bytes_read_back_as_the_same_value_and_are_stable(value: object) -> None:
    data = canonical_bytes(value)
    assert json.loads(data) == value
    assert canonical_bytes(json.loads(data)) == data


@given(st.dictionaries(st.text(), st.integers(0, 9), min_size=2))
def test_the_order_of_keys_never_matters(members: dict[str, int]) -> None:
    backwards = dict(reversed(list(members.items())))
    assert canonical_bytes(members) == canonical_bytes(backwards)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_real_comes_back_from_its_text_to_the_last_bit(number: float) -> None:
    assert parse_real(real_text(number)).hex() == number.hex()


@pytest.mark.parametrize("text", ["", "nan", "inf", " 1", "1_0", "0x1", "1e400", "+1", "1.", ".5", "01", "\uff11"])
def test_texts_that_real_text_never_writes_are_refused(text: str) -> None:
    with pytest.raises(EvidenceError):
        parse_real(text)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_have_no_text(number: float) -> None:
    with pytest.raises(EvidenceError):
        real_text(number)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("10", "10"),
        ("10.0", "10"),
        ("1E1", "10"),
        ("0.050", "0.05"),
        ("-0.0", "0"),
        ("100", "100"),
        ("1E-7", "0.0000001"),
    ],
)
def test_a_decimal_has_one_text_however_it_was_written(written: str, text: str) -> None:
    assert decimal_text(Decimal(written)) == text


def test_a_decimal_that_is_not_finite_has_no_text() -> None:
    with pytest.raises(EvidenceError):
        decimal_text(Decimal("Infinity"))


def test_token_digests_are_the_published_ones(golden: Path) -> None:
    published = json.loads((golden / "tokens.json").read_text())
    assert token_digest(published["short_coding_520"]) == published["sha256"]["520"]
    assert token_digest([1, 2]) == hashlib.sha256(b"[1, 2]").hexdigest()


def test_sha256_is_that_of_the_standard() -> None:
    assert sha256_hex(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
