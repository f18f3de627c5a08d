"""Attestations: read and verified by the libraries of those who made the formats."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from recorder.attestation import SUMMARY, TEST_RESULT, envelope, result_of, verdict_statement, verification_summary
from recorder.audit import audit_store
from recorder.keys import Signer
from recorder.store import Store

SIGNER = Signer(name="release", seed=b"\x05" * 32)


def statement_of(root: Path) -> bytes:
    with Store.open(root, read_only=True) as store:
        name = store.resolve_campaign("latest")
        recorded = store.verdict_of(name)
        assert recorded is not None
        gates, verdict = recorded
        return verdict_statement(
            campaign_id=name,
            lock=store.lock_of(name),
            protocol_file_sha256="0" * 64,
            verdict=verdict,
            gates=gates,
            head="1:" + "0" * 64,
        )


@pytest.mark.parametrize(
    ("status", "loss", "word"),
    [
        ("PASS", False, "PASSED"),
        ("PASS", True, "WARNED"),
        *[
            (status, False, "FAILED")
            for status in ("FAIL", "INCONCLUSIVE", "NOT_RUN", "SCREEN_ONLY", "INVALID", "NOT_COMPARABLE")
        ],
    ],
)
def test_only_a_pass_is_passed(status: str, loss: bool, word: str):
    assert result_of(status, loss_detected=loss) == word


def test_a_test_result_names_the_candidates_files_and_keeps_our_status(store_root: Path):
    value = json.loads(statement_of(store_root))
    assert value["predicateType"] == TEST_RESULT
    assert [one["name"] for one in value["subject"]] == ["engine-server", "libassay-engine.so"]
    predicate = value["predicate"]
    assert (predicate["result"], predicate["assay"]["status"]) == ("FAILED", "SCREEN_ONLY")
    assert set(predicate["passedTests"]) == {"complete", "tokens", "work", "counters", "mirror"}
    assert predicate["warnedTests"] == ["loss"]


def test_the_envelope_verifies_with_the_library_of_its_makers_and_no_changed_one_does(store_root: Path):
    dsse = pytest.importorskip("securesystemslib.dsse", reason="NOT_RUN: securesystemslib is not installed here")
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

    value = json.loads(envelope(statement_of(store_root), SIGNER))
    keyid = value["signatures"][0]["keyid"]
    found = dsse.Envelope.from_dict(copy.deepcopy(value))
    key = SSlibKey(keyid, "ed25519", "ed25519", {"public": SIGNER.public().raw.hex()})
    assert found.verify([key], 1)
    value["payload"] = value["payload"][:-8] + "AAAA" + value["payload"][-4:]
    with pytest.raises(VerificationError):
        dsse.Envelope.from_dict(value).verify([key], 1)


def test_the_statement_is_valid_for_the_library_of_in_toto(store_root: Path):
    module = pytest.importorskip(
        "in_toto_attestation.v1.statement", reason="NOT_RUN: in-toto-attestation is not installed"
    )
    from google.protobuf import json_format
    from in_toto_attestation.v1 import statement_pb2

    for payload in (
        statement_of(store_root),
        verification_summary(audit_store(store_root), level="recompute", utc_ns=10**18, versions={}),
    ):
        value = json.loads(payload)
        parsed = json_format.Parse(payload, statement_pb2.Statement())
        module.Statement.copy_from_pb(parsed).validate()
        assert json_format.MessageToDict(parsed)["predicateType"] == value["predicateType"]


def test_a_verification_summary_says_what_the_audit_found(store_root: Path, synthetic):
    result = audit_store(store_root, trusted_keys=[synthetic.SIGNER.public()])
    value = json.loads(
        verification_summary(result, level="recompute", utc_ns=1_800_000_000 * 10**9, versions={"assay": "1"})
    )
    assert value["predicateType"] == SUMMARY
    predicate = value["predicate"]
    assert (predicate["verificationResult"], predicate["timeVerified"]) == ("PASSED", "2027-01-15T08:00:00Z")
    assert predicate["verifiedLevels"] == ["ASSAY_RECOMPUTE", "ASSAY_VERIFIED"]
    assert result.head is not None
    assert value["subject"][0]["digest"]["sha256"] == result.head.partition(":")[2]
    path = next((store_root / "campaigns").rglob("report.md"))
    path.write_text("x")
    broken = json.loads(verification_summary(audit_store(store_root), level="hashes", utc_ns=0, versions={}))
    assert (broken["predicate"]["verificationResult"], broken["predicate"]["verifiedLevels"]) == ("FAILED", [])
    assert "report.md" in broken["predicate"]["assay"]["findings"][0]
