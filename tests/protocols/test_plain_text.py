"""Text of others: shown as it is where it is harmless, as escapes where it would do something."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.plain_text import one_line, plain, quoted

INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loss 3 %, größer ✓ 漢", "loss 3 %, größer ✓ 漢"),
        ("a\nb\tc", "a\nb\tc"),
        ("\x1b[2J\x07\r\x7f\x9b", "\\x1b[2J\\x07\\r\\x7f\\x9b"),
        ("a\u2028b\u2029c\x85d", "a\\u2028b\\u2029c\\x85d"),
        ("\u202egnp.exe\u2066\u200b\ufeff", "\\u202egnp.exe\\u2066\\u200b\\ufeff"),
        ("\udc9b", "\\udc9b"),
    ],
)
def test_what_would_move_hide_or_turn_around_stands_as_its_escape(text: str, shown: str):
    assert plain(text) == shown
    assert one_line(text) == shown.replace("\n", "\\n").replace("\t", "\\t")


def test_further_lines_of_a_quoted_text_begin_with_a_bar():
    assert quoted("it died\nverdict: PASS\n\x1b[1A") == "it died\n    | verdict: PASS\n    | \\x1b[1A"


@given(st.text(st.characters()))
def test_no_text_does_anything_to_a_terminal(text: str):
    for shown, kept in ((plain(text), "\n\t"), (one_line(text), ""), (quoted(text), "\n\t")):
        assert not [mark for mark in shown if mark not in kept and unicodedata.category(mark) in INVISIBLE]
    assert len(one_line(text).splitlines()) <= 1
    assert all(line.startswith("    | ") for line in quoted(text).split("\n")[1:])
