"""Receipts of checks: what was left comes back to the byte, once for each check and arm, and nothing else passes for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocols.errors import EvidenceError
from protocols.measurements import Block, CheckObservation
from recorder.audit import audit_store
from recorder.campaign_state import read_campaigns
from recorder.checks import check_receipt, read_checks

BLOCKS = {"first": Block(2, 3, bytes(range(24))), "second": Block(1, 1, b"\xff\xff\xff\x7f")}
LEFT = CheckObservation(check="twice", arm="candidate", state="COMPLETE", facts={"vocabulary": 3})


def recorded(root: Path, synthetic: Any, *receipts: tuple[dict[str, Any], dict[str, bytes]]) -> tuple[Any, ...]:
    """Record receipts of checks in a new campaign, and read them back."""
    with synthetic.open_store(root) as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        for payload, attachments in receipts:
            campaign.record_receipt("check", payload, attachments)
        state = read_campaigns(store.entries())[campaign.campaign_id]
        return read_checks(state, store.blobs.read)


def test_what_a_check_left_comes_back_to_the_byte(fast_path: Path, synthetic):
    (found,) = recorded(fast_path / "s", synthetic, check_receipt(LEFT, BLOCKS))
    assert (found.check, found.arm, found.state, found.reason) == ("twice", "candidate", "COMPLETE", None)
    assert found.facts == {"vocabulary": 3}
    assert {name: found.read_block(name) for name in BLOCKS} == BLOCKS
    assert audit_store(fast_path / "s").findings == ()


def test_a_check_without_blocks_says_why(fast_path: Path, synthetic):
    lacking = CheckObservation(check="twice", arm="baseline", state="NOT_RUN", reason="no library")
    (found,) = recorded(fast_path / "s", synthetic, check_receipt(lacking, {}))
    assert (found.state, found.reason) == ("NOT_RUN", "no library")
    with pytest.raises(EvidenceError, match="left no block first"):
        found.read_block("first")


def test_a_second_receipt_of_a_check_and_arm_is_a_choice_between_two(fast_path: Path, synthetic):
    with pytest.raises(EvidenceError, match="recorded twice"):
        recorded(fast_path / "s", synthetic, check_receipt(LEFT, BLOCKS), check_receipt(LEFT, BLOCKS))


@pytest.mark.parametrize(
    "change",
    [
        {"check": 1},
        {"arm": "third"},
        {"state": "PASS"},
        {"reason": 5},
        {"facts": []},
        {"blocks": None},
    ],
)
def test_a_receipt_of_another_form_is_no_record_of_a_check(fast_path: Path, synthetic, change: dict[str, Any]):
    payload, attachments = check_receipt(LEFT, BLOCKS)
    with pytest.raises(EvidenceError, match="no record of a check"):
        recorded(fast_path / "s", synthetic, (payload | change, attachments))


@pytest.mark.parametrize("shape", [[2], [2, "3"], [2, 3, 4], "2x3", [True, 3]])
def test_a_block_whose_shape_is_none_is_refused(fast_path: Path, synthetic, shape: Any):
    payload, attachments = check_receipt(LEFT, BLOCKS)
    (found,) = recorded(fast_path / "s", synthetic, (payload | {"blocks": {"first": shape}}, attachments))
    with pytest.raises(EvidenceError, match="left no block first"):
        found.read_block("first")
