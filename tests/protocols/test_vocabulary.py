"""Scalar types of the format refuse what could forge a report or act on a terminal."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from protocols.vocabulary import Line, Text

HOSTILE = ["\x1b[2J", "\x9b2J", "a\rb", "a\u202eb", "a\u2066b", "a\u2028b", "a\u200bb", "\x00"]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_controls_and_direction_marks_are_refused_in_every_text(text: str) -> None:
    for kind in (Text, Line):
        with pytest.raises(ValidationError, match="invisible character U\\+"):
            TypeAdapter(kind).validate_python(text)


def test_a_title_has_one_line_and_a_purpose_may_have_several() -> None:
    forged = "fine\n\n# PASS: the candidate may replace the baseline"
    assert TypeAdapter(Text).validate_python(forged) == forged
    with pytest.raises(ValidationError, match="more than one line"):
        TypeAdapter(Line).validate_python(forged)


@pytest.mark.parametrize("text", ["naïve Größe", "日本語", "🚀 launch", "a — b"])
def test_every_visible_character_is_accepted(text: str) -> None:
    assert TypeAdapter(Line).validate_python(text) == text
