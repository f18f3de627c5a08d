"""What a search found: judged by what was promised, counted by law, and read back to be replayed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protocols.comparators import compare_logits
from protocols.draws import Abilities
from protocols.errors import ProtocolError
from protocols.laws import Promise, draw_case
from protocols.search import (
    Chosen,
    Finding,
    Judgement,
    Played,
    SearchResult,
    Tally,
    judge_played,
    judged,
    replayed_search,
)

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


def played(tokens: list[tuple[int, float | None]], row: float | None = 1.0, **work: int) -> Played:
    rows = [] if row is None else [np.full((1, 4), row, np.float32)]
    return Played(rows=rows, chosen=[Chosen(*one) for one in tokens], work=work)


@pytest.mark.parametrize(
    ("margin", "promised", "status"),
    [(1.5, CLOSE, "differs"), (1.0, CLOSE, "not-applicable"), (None, CLOSE, "differs"), (0.0, BYTES, "differs")],
)
def test_another_token_is_a_finding_unless_both_were_as_good(margin: float | None, promised: Promise, status: str):
    found = judge_played(played([(7, None), (8, None)], 9.0), played([(7, 0.1), (3, margin)]), promised)
    assert (found.status, found.comparison) == (status, None)
    assert found.words.startswith("chosen token 1 is 8 instead of 3")


def test_logits_and_work_are_judged_where_the_tokens_are_the_same():
    work = replace(BYTES, is_work=True)
    same = played([(7, 0.1)], n_scans=3, n_graphs=2)
    assert judge_played(same, same, work).status == "holds"
    assert judge_played(played([], None), played([], None), CLOSE).status == "holds"
    assert judge_played(played([(7, None)], 1.25), same, CLOSE).status == "holds"
    assert judge_played(played([(7, None)], 1.25), same, BYTES).status == "differs"
    other = judge_played(played([(7, None)], n_scans=4, n_graphs=2), same, work)
    assert (other.status, other.words) == ("differs", "other work: n_scans 4 instead of 3")
    assert judge_played(played([(7, None)], n_scans=4, n_graphs=2), same, BYTES).status == "holds"


def test_the_work_alone_is_judged_where_no_logits_are_promised():
    work = replace(CLOSE, is_work=True, is_logits=False)
    same, other = played([(7, 0.1)], n_scans=3), played([(8, 9.0)], 5.0, n_scans=3)
    assert judge_played(other, same, work).status == "holds"
    more = judge_played(played([(8, 9.0)], 5.0, n_scans=4), same, work)
    assert (more.status, more.words) == ("differs", "other work: n_scans 4 instead of 3")
    assert more.payload()["promise"] == "work"


def test_a_law_without_any_applicable_case_says_what_was_missing():
    tally = Tally()
    tally.add(Judgement(status="not-applicable", promise=BYTES, words="no draft block"))
    tally.add(Judgement(status="not-applicable", promise=BYTES, words="something else"))
    assert tally.unmet == "no draft block"
    tally.add(compared(0.25))
    tally.add(Judgement(status="not-applicable", promise=BYTES, words="something else"))
    assert tally.unmet == ""


def result() -> SearchResult:
    found = SearchResult(model="m", build="b", vocabulary=4, seed=1, tallies={"copied=single": Tally(tried=1)})
    found.findings = [
        Finding(
            number=0, drawn=CASE, drawn_judgement=compared(2.0), case=CASE, judgement=compared(2.0), is_repeatable=True
        )
    ]
    return found


def test_the_document_of_a_search_is_read_back(tmp_path: Path):
    path = tmp_path / "found.json"
    path.write_text(json.dumps(result().document()))
    assert replayed_search(path).cases == [CASE]


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
        replayed_search(path)
    assert words in "\n".join(caught.value.lines())


NO_OPERATIONS = """{"assay_search": 1, "findings": [{"case": {"law": "copied=single", "seed": 1,
 "left": {"settings": {}, "operations": [{"sequence": 1}]},
 "right": {"settings": {}, "operations": [{"do": "skp"}]}}}]}"""
OPERATIONS = "expected one of evaluate, step, generate, skip, image, copy, cut, drop, save, restore"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "id: my-pair\ntitle: t\n",
            [
                "1: this file holds no findings of `assay search`; `assay search MODEL --out FILE` writes them",
                "1: assay_search: the key is missing (Version of the format); add it",
                "1: findings: the key is missing (What was found); add it",
            ],
        ),
        ("[1]\n", ["1: this file holds no findings of `assay search`; `assay search MODEL --out FILE` writes them"]),
        ('{"assay_search": 1}\n', ["1: findings: the key is missing (What was found); add it"]),
        (
            '{"assay_search": 1,\n "findings": [\n  {"number": 3}]}',
            ["3: findings[0].case: the key is missing (The two histories); add it"],
        ),
        (
            NO_OPERATIONS,
            [
                f"2: findings[0].case.left.operations[0].do: the key is missing, {OPERATIONS}; add it",
                f"3: findings[0].case.right.operations[0].do: found the text 'skp', {OPERATIONS}; write skip",
            ],
        ),
    ],
)
def test_another_file_is_told_from_a_broken_one_with_line_and_key(tmp_path: Path, text: str, lines: list[str]):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ProtocolError) as caught:
        replayed_search(path)
    found = [line.removeprefix(f"{path}:") for line in caught.value.lines()]
    assert found[: len(lines)] == lines
    assert not any(word in "".join(found) for word in ("claim", "workloads"))


def test_a_file_that_is_missing_is_refused(tmp_path: Path):
    with pytest.raises(ProtocolError, match="cannot be read"):
        replayed_search(tmp_path / "none.json")
