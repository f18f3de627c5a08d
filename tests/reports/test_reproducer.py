"""The text of a finding names what was promised, what came, and everything that another engine needs to repeat it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from protocols.check_schema import named_tokens
from protocols.comparators import compare_logits
from protocols.laws import Case, Promise
from protocols.operations import (
    Copy,
    Cut,
    Drop,
    Evaluate,
    Generate,
    History,
    Image,
    Restore,
    Run,
    Save,
    SessionSettings,
    Skip,
    Step,
)
from protocols.search import Finding, Judgement, SearchResult, Tally, judged
from reports.reproducer import case_text, finding_text, judgement_text, operation_text, summary, tally_rows

BYTES = Promise(is_bytes=True, tolerance=0.0, cells_each=1, cells_together=1)
PROMPT = Evaluate(runs=(Run(sequence=0, conversation="A", tokens=3),))
CASE = Case(
    law="copied=single",
    seed=7,
    left=History(
        settings=SessionSettings(sequences=2, is_unified=True, kv_type="f16", rollback_tokens=2),
        operations=(PROMPT, Copy(source=0, target=1), Step(sequence=1, conversation="B", tokens=1)),
    ),
    right=History(settings=SessionSettings(), operations=(PROMPT, Step(sequence=0, conversation="B", tokens=1))),
)


def test_a_case_is_every_setting_operation_and_token_id():
    a, b = named_tokens(7, "A", 3, 100), named_tokens(7, "B", 4, 100)
    assert case_text(CASE, 100).splitlines() == [
        "law copied=single",
        "left: 2 unified sequences, f16 cache, ubatch 512, rollback of 2 tokens",
        "  1. evaluate 3 of A in sequence 0",
        "  2. copy sequence 0 to 1",
        "  3. evaluate 1 of B in sequence 1, one by one, and compare the logits",
        "right: 1 split sequence, f32 cache, ubatch 512",
        "  1. evaluate 3 of A in sequence 0",
        "  2. evaluate 1 of B in sequence 0, one by one, and compare the logits",
        f"ids of A at 0 to 2: {a[0]} {a[1]} {a[2]}",
        f"ids of B at 3: {b[3]}",
        "seed 7; an id follows by SplitMix64 from seed, name and position",
    ]


def test_every_operation_has_words():
    runs = (Run(sequence=0, conversation="A", tokens=2), Run(sequence=1, conversation="B", tokens=1))
    found = [
        operation_text(one)
        for one in (
            Evaluate(runs=runs),
            Evaluate(runs=runs[:1], coordinates="ppp0"),
            Step(sequence=1, conversation="B", tokens=2, coordinates="pppp"),
            Generate(sequence=0, conversation="A", tokens=5),
            Generate(sequence=0, conversation="A", tokens=5, depth=2),
            Skip(sequence=1, positions=7),
            Image(sequence=1, conversation="C", side=4, first=2, cells=5),
            Image(sequence=1, conversation="C", side=4),
            Cut(sequence=0, tokens=2),
            Drop(sequence=1),
            Save(sequence=0, state="a"),
            Restore(sequence=1, state="a"),
        )
    ]
    assert found == [
        "evaluate 2 of A in sequence 0, 1 of B in sequence 1 in one batch",
        "evaluate 2 of A in sequence 0, positions as [p, p, p, 0]",
        "evaluate 2 of B in sequence 1, one by one, positions as [p, p, p, p], and compare the logits",
        "evaluate 1 of A in sequence 0, choose 5 tokens greedily, and compare them",
        "evaluate 1 of A in sequence 0, choose 5 tokens greedily with up to 2 drafts at a time, and compare them",
        "leave out 7 positions in sequence 1",
        "evaluate the cells 2 to 6 of an image C of 4 x 4 in sequence 1",
        "evaluate an image C of 4 x 4 in sequence 1",
        "remove the last 2 of sequence 0",
        "remove sequence 1",
        "save sequence 0 as a",
        "restore a into sequence 1",
    ]


def test_a_difference_is_told_with_the_greedy_token_and_its_margin():
    expected, found = np.float32([[1, 5, 2], [0, 4, 3]]), np.float32([[1, 5, 2], [9, 4, 3]])
    judgement = judged(compare_logits(found, expected), BYTES)
    assert judgement_text(judgement) == (
        "differs: promised the same bytes; 1 of 2 compared rows differ, by up to 9; "
        "in row 1 the greedy token becomes 0 instead of 1 (margin 5)"
    )
    close = judged(
        compare_logits(found, expected), Promise(is_bytes=False, tolerance=0.5, cells_each=1, cells_together=1)
    )
    assert "promised logits within 0.5" in judgement_text(close)


def test_other_work_and_settings_of_drafts_and_blocks_are_told():
    work = Promise(is_bytes=True, tolerance=0.0, is_work=True, cells_each=1, cells_together=1)
    judgement = Judgement(status="differs", promise=work, words="other work: n_scans 4 instead of 3")
    same = judged(compare_logits(np.ones((1, 2), np.float32), np.ones((1, 2), np.float32)), work)
    assert judgement_text(judgement) == "differs: other work: n_scans 4 instead of 3"
    assert judgement_text(replace(same, status="differs", words=judgement.words)) == (
        "differs: promised the same bytes and the same work; other work: n_scans 4 instead of 3"
    )
    alone = replace(same, status="differs", words="other work", promise=replace(work, is_logits=False))
    assert judgement_text(alone) == "differs: promised the same work; other work"
    settings = SessionSettings(is_bucket=True, draft_tokens=3, draft_vocabulary=64, spare_cells=9)
    text = case_text(CASE.model_copy(update={"right": CASE.right.model_copy(update={"settings": settings})}), 100)
    assert (
        "right: 1 split sequence, f32 cache, ubatch 512, up to 3 drafts among the first 64 ids, "
        "blocks by position bucket, 9 spare cells"
    ) in text.splitlines()


def test_a_crash_is_told_in_the_engines_words_and_a_case_that_does_not_repeat_says_so():
    died = Judgement(status="dies", promise=BYTES, words="the engine library died during copy (signal SIGSEGV)")
    held = Judgement(status="holds", promise=BYTES)
    found = Finding(number=3, drawn=CASE, drawn_judgement=died, case=CASE, judgement=held, is_repeatable=False)
    text = finding_text(found, 100)
    assert text.splitlines()[:3] == [
        "holds",
        f"in a process of its own it ended differently; the case that was drawn ended with dies: {died.words}",
        "law copied=single",
    ]


def test_the_counts_of_a_search_are_a_table_and_a_line():
    found = SearchResult(model="m", build="b", vocabulary=4, seed=1)
    found.tallies = {"copied=single": Tally(tried=4, applicable=3, failing=1, largest=0.00012)}
    found.tallies["drafts=none"] = Tally(tried=4, unmet="no draft block")
    assert tally_rows(found) == [
        ("copied=single", "4", "3", "1", "0.00012", ""),
        ("drafts=none", "4", "0", "0", "-", "NOT_RUN: no draft block"),
    ]
    assert summary(found) == "8 cases tried, 3 applicable, 0 findings"


def test_a_law_that_no_case_was_drawn_for_is_no_law_that_holds():
    found = SearchResult(model="m", build="b", vocabulary=4, seed=1)
    found.tallies = {"copied=single": Tally(tried=1, applicable=1), "hole=none": Tally()}
    assert tally_rows(found)[1] == ("hole=none", "0", "0", "0", "-", "")
    assert summary(found) == "1 cases tried, 1 applicable, 0 findings; never tried: hole=none"
