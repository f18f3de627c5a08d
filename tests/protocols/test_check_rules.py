"""What the blocks of a check must show: equal bytes pass, every other byte fails, and nothing passes unseen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.check_rules import judge_check, pairs_of
from protocols.check_schema import (
    DeterminismCheck,
    ForeignContentCheck,
    LogitsCheck,
    RecallCheck,
    RollbackCheck,
    SequenceCopyCheck,
    SequenceReuseCheck,
    StateRoundTripCheck,
    fixture_tokens,
    split_mix,
)
from protocols.errors import EvidenceError
from protocols.measurements import Block, CheckObservation

COMMON = {"id": "c", "prompt_tokens": 8, "steps": 3}
CHECKS: tuple[LogitsCheck, ...] = (
    DeterminismCheck(kind="determinism", **COMMON),
    StateRoundTripCheck(kind="state_round_trip", **COMMON),
    SequenceCopyCheck(kind="sequence_copy", **COMMON),
    ForeignContentCheck(kind="foreign_content", foreign_tokens=5, **COMMON),
    SequenceReuseCheck(kind="sequence_reuse", **COMMON),
    RollbackCheck(kind="rollback", **COMMON),
)
ROWS = np.linspace(-2, 3, 3 * 5, dtype=np.float32).reshape(3, 5)
STATES = {"state_sha256": {"saved": "a" * 64, "saved_again": "a" * 64}}


def block_of(rows: Any) -> Block:
    return Block(*rows.shape, rows.astype("<f4").tobytes())


def names(check: LogitsCheck) -> list[str]:
    return sorted({name for pair in pairs_of(check) for name in pair[:2]})


def observed(check: LogitsCheck, blocks: dict[str, Any] | None = None, **facts: Any) -> CheckObservation:
    whole = dict.fromkeys(names(check), ROWS) | (blocks or {})
    return CheckObservation(
        check="c",
        arm="candidate",
        state="COMPLETE",
        facts=STATES | facts,
        read_block=lambda name: block_of(whole[name]),
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.kind)
def test_equal_bytes_pass(check: LogitsCheck):
    outcome = judge_check(check, observed(check))
    assert outcome.status == "PASS"
    assert outcome.reason.startswith("Byte-equal over 3 steps: ")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.kind)
@given(data=st.data())
def test_one_other_bit_in_any_block_fails_and_is_named(check: LogitsCheck, data: st.DataObject):
    name = data.draw(st.sampled_from(names(check)))
    changed = ROWS.copy()
    row, bit = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 31))
    changed.view(np.uint32)[row, data.draw(st.integers(0, 4))] ^= np.uint32(1 << bit)
    outcome = judge_check(check, observed(check, {name: changed}))
    assert outcome.status == "FAIL"
    assert f"first in step {row + 1}," in outcome.reason
    assert name in outcome.reason


def test_the_layout_is_named_where_the_control_is_equal_and_the_failure_stands():
    check = CHECKS[3]
    changed = ROWS + np.float32(0.5)
    layout = judge_check(check, observed(check, {"beside_one": changed, "beside_other": changed}))
    assert (layout.status, "the failure stands" in layout.reason) == ("FAIL", True)
    content = judge_check(check, observed(check, {"beside_other": changed}))
    assert (content.status, "reaches this conversation" in content.reason) == ("FAIL", True)


def test_a_state_that_saves_to_other_bytes_fails():
    check = CHECKS[1]
    outcome = judge_check(check, observed(check, state_sha256={"saved": "a" * 64, "saved_again": "b" * 64}))
    assert (outcome.status, outcome.reason) == ("FAIL", "The restored state saves to other bytes.")


@pytest.mark.parametrize("facts", [{}, {"state_sha256": {}}, {"state_sha256": {"saved": "a"}}, {"state_sha256": "x"}])
def test_a_state_without_its_hashes_is_no_evidence(facts: dict[str, Any]):
    check = CHECKS[1]
    observation = CheckObservation(
        check="c", arm="candidate", state="COMPLETE", facts=facts, read_block=lambda _: block_of(ROWS)
    )
    with pytest.raises(EvidenceError, match="hashes"):
        judge_check(check, observation)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.kind)
def test_values_that_are_not_finite_never_pass_although_their_bytes_are_equal(check: LogitsCheck):
    broken = ROWS.copy()
    broken[1, 2] = np.nan
    outcome = judge_check(check, observed(check, dict.fromkeys(names(check), broken)))
    assert outcome.status == "FAIL"
    assert "not finite" in outcome.reason


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.kind)
def test_fewer_steps_than_promised_are_no_evidence(check: LogitsCheck):
    with pytest.raises(EvidenceError, match="expected 3"):
        judge_check(check, observed(check, dict.fromkeys(names(check), ROWS[:2])))


def test_what_was_not_run_or_not_carried_out_says_why():
    check = CHECKS[0]
    assert judge_check(check, None) == ("NOT_RUN", "The check was not run.", {})
    lacking = CheckObservation(check="c", arm="baseline", state="NOT_RUN", reason="the arm has no library of its own")
    assert judge_check(check, lacking).reason == "The check was not run: the arm has no library of its own."
    dead = CheckObservation(check="c", arm="baseline", state="FAILED", reason="the library died")
    assert judge_check(check, dead).status == "FAIL"


def test_the_generator_is_split_mix_64():
    """The first outputs of the reference implementation from the states 0 and 1234567."""
    assert split_mix(0) == 0xE220A8397B1DCDAF
    assert split_mix(1234567) == 6457827717110365317


def test_token_ids_follow_from_seed_and_name():
    check = CHECKS[0]
    ids = fixture_tokens(check, "own", 1000, 512)
    assert ids[:6] == [54, 121, 126, 40, 354, 179]
    assert ids == fixture_tokens(check, "own", 1000, 512)
    assert fixture_tokens(check, "own", 10, 512) == ids[:10]
    assert fixture_tokens(check, "foreign", 1000, 512) != ids
    assert fixture_tokens(check.model_copy(update={"seed": 2}), "own", 1000, 512) != ids
    assert set(ids) <= set(range(512))
    assert len(set(ids)) > 400


RECALL = RecallCheck(kind="recall", id="r", secrets=2, distance_tokens=100)
CODES = {(0, 0): [1, 2], (0, 1): [3, 4], (1, 0): [5, 6], (1, 1): [7, 8]}


def replies(**changes: Any) -> CheckObservation:
    rows: list[Any] = [
        {"conversation": place[0], "asked": place[1], "expected": code, "found": code} for place, code in CODES.items()
    ]
    for name, found in changes.items():
        rows[int(name[1])]["found"] = found
    return CheckObservation(check="r", arm="candidate", state="COMPLETE", facts={"replies": rows})


def test_recall_passes_where_every_code_came_back():
    outcome = judge_check(RECALL, replies())
    assert outcome.status == "PASS"
    assert outcome.reason == "All 4 private codes came back, the first of each from 100 tokens."


def test_a_lost_code_fails_and_is_named():
    outcome = judge_check(RECALL, replies(r1=[3, 9]))
    assert outcome.status == "FAIL"
    assert outcome.reason == "3 of 4 private codes came back; lost (conversation.code): 1.2."
    assert outcome.inputs == {"asked": 4, "recalled": 3, "lost": ["1.2"], "leaked": []}


def test_another_conversations_code_is_named_apart():
    outcome = judge_check(RECALL, replies(r1=[7, 8], r2=[7, 8]))
    assert outcome.status == "FAIL"
    assert outcome.reason == (
        "2 of 4 private codes came back; lost (conversation.code): 1.2 and 2.1. "
        "Replies that give another conversation's code: 1.2."
    )


@pytest.mark.parametrize(
    "rows",
    [
        None,
        [],
        [{"conversation": 0, "asked": 0, "expected": [1], "found": [1]}] * 4,
        [{"conversation": 0, "asked": asked, "expected": [], "found": []} for asked in range(4)],
        [{"conversation": 0, "asked": asked, "expected": [1], "found": [1]} for asked in range(4)],
        [{"conversation": one, "asked": 0.0, "expected": [1], "found": [1]} for one in (0, 1, 0, 1)],
        [{"conversation": 0, "asked": asked, "expected": [1]} for asked in range(4)],
        [{"conversation": 0, "asked": asked, "expected": [1] * asked, "found": [1] * asked} for asked in range(4)],
    ],
)
def test_replies_that_are_not_one_for_each_code_are_no_evidence(rows: Any):
    facts = {} if rows is None else {"replies": rows}
    with pytest.raises(EvidenceError, match="repl"):
        judge_check(RECALL, CheckObservation(check="r", arm="candidate", state="COMPLETE", facts=facts))
