"""What a search found: judged by what was promised, counted by law, and read back to be replayed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protocols.comparators import compare_logits
from protocols.errors import ProtocolError
from protocols.laws import Abilities, Promise, draw_case
from protocols.search import Finding, Judgement, SearchResult, Tally, judged, replayed_cases

BYTES = Promise(is_bytes=True, tolerance=0.0, cells_each=1, cells_together=1)
CLOSE = replace(BYTES, is_bytes=False, tolerance=0.5)
CASE = draw_case("copied=single", 1, 0, Abilities(takes_images=True, is_byte_exact=True))


def compared(*changes: float, base: float = 1.0) -> Judgement:
    left = np.full((1, 4), base, np.float32)
    return judged(compare_logits(left, left + np.float32([*changes, *[0] * (4 - len(changes))])), CLOSE)


@pytest.mark.parametrize(
    ("change", "status"), [(0.25, "holds"), (-0.5, "holds"), (0.75, "differs"), (np.nan, "differs")]
)
def test_a_difference_is_judged_by_the_tolerance(change: float, status: str):
    assert compared(change).status == status


def test_one_bit_breaks_a_promise_of_bytes():
    left = np.ones((2, 3), np.float32)
    right = left.copy()
    assert judged(compare_logits(left, right), BYTES).status == "holds"
    right[1, 2] = np.nextafter(np.float32(1), np.float32(2))
    assert judged(compare_logits(left, right), BYTES).status == "differs"


def test_what_an_engine_cannot_do_is_counted_apart_from_what_it_does_wrong():
    tally = Tally()
    for one in (
        compared(0.25),
        compared(0.125),
        compared(9.0),
        Judgement(status="not-applicable", promise=BYTES),
        Judgement(status="fails", promise=BYTES),
        Judgement(status="dies", promise=BYTES),
    ):
        tally.add(one)
    assert (tally.tried, tally.applicable, tally.failing, tally.largest) == (6, 5, 3, 0.25)


def result() -> SearchResult:
    found = SearchResult(model="m", build="b", vocabulary=4, seed=1, tallies={"copied=single": Tally(tried=1)})
    found.findings = [Finding(number=0, drawn=CASE, case=CASE, judgement=compared(2.0), is_repeatable=True)]
    return found


def test_the_document_of_a_search_is_read_back(tmp_path: Path):
    path = tmp_path / "found.json"
    path.write_text(json.dumps(result().document()))
    assert replayed_cases(path) == [CASE]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"assay_search": 1', '"assay_search": 2', "assay_search"),
        ('"tokens": ', '"tokenz": ', "tokenz"),
        ('"law": "copied=single"', '"law": "copied=twice"', "law"),
        ('"case"', '"kase"', "case"),
    ],
)
def test_a_file_that_is_no_such_document_is_refused_in_words(tmp_path: Path, old: str, new: str, words: str):
    path = tmp_path / "found.json"
    text = json.dumps(result().document())
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ProtocolError) as caught:
        replayed_cases(path)
    assert words in "\n".join(caught.value.lines())


def test_a_file_that_is_missing_is_refused(tmp_path: Path):
    with pytest.raises(ProtocolError, match="cannot be read"):
        replayed_cases(tmp_path / "none.json")
