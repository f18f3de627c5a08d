"""Line charts: well-formed, the same bytes each time, and honest about gaps and absence."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from reports.svg import Band, Line, Panel, chart

NUMBERS = st.floats(-1e12, 1e12) | st.integers(-(10**9), 10**9).map(float)
NAMESPACE = "{http://www.w3.org/2000/svg}"


def parse(text: str) -> ET.Element:
    return ET.fromstring(text)


def paths(text: str) -> list[str]:
    return [element.attrib["d"] for element in parse(text).iter(f"{NAMESPACE}path")]


def line(*points: tuple[float, float] | None) -> Line:
    return Line(title="a", colour="#123456", points=points)


def test_a_line_goes_from_left_to_right_and_a_higher_value_stands_higher() -> None:
    (drawn,) = paths(chart("t", "s", [Panel(title="p", lines=[line((0, 0), (10, 100))])]))
    (x0, y0), (x1, y1) = [map(float, pair.split()) for pair in re.split("[ML]", drawn)[1:]]
    assert x0 < x1
    assert y0 > y1


def test_a_gap_breaks_the_line() -> None:
    (drawn,) = paths(chart("t", "s", [Panel(title="p", lines=[line((0, 1), (1, 2), None, (5, 3), (6, 4))])]))
    assert drawn.count("M") == 2
    assert drawn.count("L") == 2


def test_a_panel_without_values_says_that_nothing_was_measured() -> None:
    text = chart("t", "s", [Panel(title="power", lines=[line()])])
    assert "nothing was measured" in text
    parse(text)


def test_bands_are_shaded_and_named() -> None:
    text = chart(
        "t",
        "s",
        [Panel(title="p", lines=[line((0, 1), (9, 1))])],
        [Band(start=1, end=3, colour="#fff", opacity=0.2, label="A1")],
    )
    assert ">A1<" in text
    assert "fill-opacity='0.2'" in text


def test_words_that_are_markup_stay_words() -> None:
    text = chart('<b> & "c"', "s", [Panel(title="</svg>", lines=[line((0, 1))])])
    assert next(element.text for element in parse(text).iter(f"{NAMESPACE}text")) == '<b> & "c"'


@given(
    st.lists(st.lists(st.none() | st.tuples(NUMBERS, NUMBERS), max_size=8), max_size=3),
    st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3),
)
def test_any_numbers_give_a_whole_picture_and_the_same_one_again(lines, edges) -> None:
    panels = [Panel(title="p", lines=[line(*points)]) for points in lines]
    bands = [Band(start=min(pair), end=max(pair), colour="red", opacity=0.1) for pair in edges]
    text = chart("t", "s", panels, bands)
    parse(text)
    assert "nan" not in text
    assert chart("t", "s", panels, bands) == text


def test_texts_of_others_are_shown_as_escapes() -> None:
    hostile = "a<b\n\x1b[2J\u202e\x00"
    panel = Panel(title=hostile, lines=[Line(title=hostile, colour="#123456", points=((0, 0), (1, 1)))])
    root = parse(chart(hostile, hostile, [panel]))
    texts = [element.text for element in root.iter(f"{NAMESPACE}text")]
    assert texts.count("a<b\\n\\x1b[2J\\u202e\\x00") >= 4
