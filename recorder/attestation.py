"""Statements that other tools verify: in-toto test results and verification summaries, in DSSE envelopes.

A test result says what the verdict of a campaign is: PASS is PASSED, PASS with a shown loss is WARNED, everything else
is FAILED, and our own status stands in the field ``assay``. Its subject is every file of the candidate's build. A
verification summary says what an audit found; its subject is the head of the ledger.
Sources: in-toto Attestation Framework (Statement v1, test-result v0.1), SLSA verification summary v1, DSSE v1.0.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from protocols.lock import Lock
from recorder.audit_context import AuditResult
from recorder.keys import Signer

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT: Final = "https://in-toto.io/Statement/v1"
TEST_RESULT: Final = "https://in-toto.io/attestation/test-result/v0.1"
SUMMARY: Final = "https://slsa.dev/verification_summary/v1"
_VERIFIER: Final = "https://assay.invalid/audit"


def statement(subject: Sequence[Mapping[str, Any]], kind: str, predicate: Mapping[str, Any]) -> bytes:
    """Return the bytes of an in-toto statement."""
    value = {"_type": STATEMENT, "subject": list(subject), "predicateType": kind, "predicate": dict(predicate)}
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def envelope(payload: bytes, signer: Signer) -> bytes:
    """Return a DSSE envelope of an in-toto statement, signed with an Ed25519 key; ``keyid`` is its verifier key."""
    signature = signer.sign(pre_authentication(PAYLOAD_TYPE, payload))
    value = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": signer.public().text(), "sig": base64.b64encode(signature).decode()}],
    }
    return json.dumps(value, sort_keys=True, indent=1).encode() + b"\n"


def pre_authentication(kind: str, payload: bytes) -> bytes:
    """Return what DSSE signs."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


def result_of(status: str, *, loss_detected: bool) -> str:
    """Return the word of a test result for a verdict."""
    if status != "PASS":
        return "FAILED"
    return "WARNED" if loss_detected else "PASSED"


def verdict_statement(
    *,
    campaign_id: str,
    lock: Lock,
    protocol_file_sha256: str,
    verdict: Mapping[str, Any],
    gates: Sequence[Mapping[str, Any]],
    head: str,
) -> bytes:
    """Return the statement about a recorded verdict. ``gates`` are its results as recorded (``id``, ``status``)."""
    subject = [{"name": file.name, "digest": {"sha256": file.sha256}} for file in lock.arms["candidate"].files] or [
        {"name": f"lock of {campaign_id}", "digest": {"sha256": lock.sha256()}}
    ]
    status = str(verdict["status"])
    by_status: dict[str, list[str]] = {"PASS": [], "FAIL": [], "other": []}
    for gate in gates:
        by_status.get(str(gate["status"]), by_status["other"]).append(str(gate["id"]))
    predicate = {
        "result": result_of(status, loss_detected=bool(verdict.get("loss_detected"))),
        "configuration": [
            {"name": "lock.json", "digest": {"sha256": lock.sha256()}},
            {"name": "protocol.yaml", "digest": {"sha256": protocol_file_sha256}},
        ],
        "passedTests": by_status["PASS"],
        "warnedTests": by_status["other"],
        "failedTests": by_status["FAIL"],
        "assay": {
            "status": status,
            "reason": verdict["reason"],
            "campaign": campaign_id,
            "head": head,
            "gates": {str(gate["id"]): str(gate["status"]) for gate in gates},
        },
    }
    return statement(subject, TEST_RESULT, predicate)


def verification_summary(result: AuditResult, *, level: str, utc_ns: int, versions: Mapping[str, str]) -> bytes:
    """Return the statement about an audit. ``utc_ns`` is when it ended."""
    head = result.head or "0:"
    subject = [{"name": f"ledger of {head.partition(':')[0]} entries", "digest": {"sha256": head.partition(":")[2]}}]
    seconds = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(utc_ns // 1_000_000_000))
    predicate = {
        "verifier": {"id": _VERIFIER, "version": dict(versions)},
        "timeVerified": seconds,
        "resourceUri": f"ledger:{head}",
        "policy": {"uri": f"{_VERIFIER}#{level}"},
        "verificationResult": "PASSED" if result.is_sound else "FAILED",
        "verifiedLevels": [f"ASSAY_{level.upper()}", f"ASSAY_{result.trust}"] if result.is_sound else [],
        "assay": {
            "is_partial": result.is_partial,
            "checks": {check.label: check.state for check in result.checks},
            "findings": [f"{one.place}: {one.message}" for one in result.findings],
            "open_points": list(result.open_points),
        },
    }
    return statement(subject, SUMMARY, predicate)
