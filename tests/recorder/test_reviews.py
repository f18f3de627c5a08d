"""Reviews: signed, linked to one verdict, and never in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocols.canonical import canonical_bytes
from protocols.errors import EvidenceError, ProtocolError
from recorder.audit import audit_store
from recorder.campaign_state import read_campaigns
from recorder.keys import Signer
from recorder.reviews import review_problem, reviews_of
from recorder.store import Store

READER = Signer(name="reader", seed=b"\x09" * 32)


def state_of(root: Path):
    with Store.open(root, read_only=True) as store:
        return store, list(read_campaigns(store.entries()).values())[-1]


def test_a_review_overrides_a_verdict_only_beside_it(store_root: Path, synthetic):
    with synthetic.open_store(store_root) as store:
        synthetic.review(store, decision="overrides", status="FAIL", by=READER)
        synthetic.review(store, decision="agrees")
    store, state = state_of(store_root)
    assert [entry.text("status") for entry in state.verdicts] == ["SCREEN_ONLY"], "the verdict stays"
    first, second = reviews_of(state, store.blobs.read)
    assert (first.decision, first.verdict_status, first.status, first.reviewer) == (
        "overrides",
        "SCREEN_ONLY",
        "FAIL",
        "A. Reader",
    )
    assert (second.decision, second.status) == ("agrees", "SCREEN_ONLY")
    assert first.key.raw == READER.public().raw
    result = audit_store(store_root, trusted_keys=[synthetic.SIGNER.public()])
    assert (result.findings, result.trust) == ((), "VERIFIED")
    assert sum("reviewer's key is not one of the trusted keys" in point for point in result.open_points) == 1
    both = [synthetic.SIGNER.public(), READER.public()]
    assert not any("reviewer" in point for point in audit_store(store_root, trusted_keys=both).open_points)


@pytest.mark.parametrize(
    ("decision", "status"),
    [("overrides", None), ("overrides", "SCREEN_ONLY"), ("agrees", "PASS"), ("overrides", "GOOD"), ("x", None)],
)
def test_decision_and_status_must_fit(store_root: Path, synthetic, decision: str, status: str | None):
    with synthetic.open_store(store_root) as store, pytest.raises(ProtocolError):
        synthetic.review(store, decision=decision, status=status)


def test_there_must_be_a_verdict(tmp_path: Path, synthetic):
    with synthetic.open_store(tmp_path / "s") as store:
        store.begin_campaign(**synthetic.lock_parts())
        with pytest.raises(EvidenceError, match="no verdict"):
            synthetic.review(store, decision="agrees")


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("status", "PASS"),
        ("decision", "agrees"),
        ("verdict", 3),
        ("verdict_status", "PASS"),
        ("key_hash", "00000000"),
        ("verifier_key", Signer(name="reader", seed=bytes(32)).public().text()),
        ("note", "x\n\n\u2014 reader AAAA\n"),
    ],
)
def test_a_review_with_any_changed_member_does_not_hold(store_root: Path, synthetic, member: str, value: object):
    with synthetic.open_store(store_root) as store:
        synthetic.review(store, decision="overrides", status="FAIL", by=READER)
    store, state = state_of(store_root)
    entry = next(one for one in state.others if one.kind == "review.recorded")
    origin = store.entries()[0].text("origin")
    assert review_problem(entry, state, origin) is None
    forged = json.loads(canonical_bytes(entry.payload)) | {member: value}
    object.__setattr__(entry, "payload", forged)
    try:
        assert review_problem(entry, state, origin) is not None
    except EvidenceError:
        return


def test_a_review_of_another_store_does_not_hold_here(store_root: Path, synthetic):
    with synthetic.open_store(store_root) as store:
        synthetic.review(store, decision="agrees", by=READER)
    _, state = state_of(store_root)
    entry = next(one for one in state.others if one.kind == "review.recorded")
    assert review_problem(entry, state, "assay/0000000000000000") == "the signed text is not that of this review"


def test_a_verdict_that_is_judged_again_stays_and_is_linked(store_root: Path, synthetic):
    with synthetic.open_store(store_root) as store:
        synthetic.judge(store, store.campaign_recorder("latest"))
    _, state = state_of(store_root)
    first, second = state.verdicts
    assert second.payload["rejudges"] == first.seq
    assert audit_store(store_root).findings == ()


def test_an_older_verdict_that_no_longer_follows_is_an_open_point_once_it_is_judged_again(
    store_root: Path, synthetic, monkeypatch: pytest.MonkeyPatch
):
    """A mended verifier gives another verdict: the older record is no tampering, and the newer one must hold."""
    from recorder import audit_judgement

    real = audit_judgement.combine

    def other(results):
        made = real(results)
        object.__setattr__(made, "status", "FAIL")
        object.__setattr__(made, "exit_code", 1)
        return made

    monkeypatch.setattr(audit_judgement, "combine", other)
    assert {finding.check for finding in audit_store(store_root).findings} == {"verdict"}
    monkeypatch.setattr(synthetic, "combine", other)
    with synthetic.open_store(store_root) as store:
        synthetic.judge(store, store.campaign_recorder("latest"))
    result = audit_store(store_root)
    assert result.findings == ()
    assert any("judges it again" in point for point in result.open_points)


def test_a_cancelled_campaign_seals_what_is_open_and_is_not_resumed(tmp_path: Path, synthetic):
    root = tmp_path / "s"
    with synthetic.open_store(root) as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        campaign.open_load(synthetic.positions()[0])
        campaign.record_cancellation("the host is needed elsewhere")
        with pytest.raises(EvidenceError, match="cancelled before"):
            campaign.record_cancellation("again")
    with synthetic.open_store(root) as store, pytest.raises(EvidenceError, match="was cancelled"):
        store.resume_campaign("latest")
    result = audit_store(root)
    assert result.findings == ()
    _, state = state_of(root)
    assert (state.is_cancelled, [load.state for load in state.loads.values()]) == (True, ["PARTIAL"])


def test_a_judged_campaign_cannot_be_cancelled(store_root: Path, synthetic):
    with synthetic.open_store(store_root) as store, pytest.raises(EvidenceError, match="has its verdict"):
        store.campaign_recorder("latest").record_cancellation("x")
