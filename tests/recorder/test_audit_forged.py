"""Whoever can write everything, with the key or without: what the audit finds even so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from audit_faults import assert_found, flip, forge_verdict, rebuild, rechained, replaced_blob

from protocols.canonical import sha256_hex
from recorder.audit import audit_store
from recorder.blobs import BlobStore, salted
from recorder.files import Files
from recorder.keys import Signer
from recorder.ledger import FIRST_PREV, encode_entry, parse_entry


def test_a_forged_verdict_is_found_by_judging_again_even_with_the_key(root: Path, synthetic):
    rechained(root, forge_verdict(root), synthetic.SIGNER)
    rebuild(root)
    result = audit_store(root, trusted_keys=[synthetic.SIGNER.public()])
    assert {finding.check for finding in result.findings} == {"gates", "verdict"}
    first = result.findings[0]
    assert "gate loss.status" in first.place
    assert (first.expected, first.found) == ("SCREEN_ONLY", "PASS")


def test_forged_token_ids_are_found_even_with_the_key(root: Path, synthetic):
    def change(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "load.sealed" and payload["state"] == "COMPLETE" and payload["load"].endswith("C1"):
            replaced_blob(root, payload, "exchange", lambda data: data.replace(b"[12305]", b"[12306]"))
        return payload

    rechained(root, change, synthetic.SIGNER)
    rebuild(root)
    result = audit_store(root)
    assert_found(result, "gate tokens")
    assert result.findings[0].check == "gates"


def test_a_ledger_chained_anew_without_the_key_breaks_at_the_first_checkpoint(root: Path):
    rechained(root, forge_verdict(root))
    rebuild(root)
    result = audit_store(root)
    assert result.findings[0].check == "checkpoints"


def test_a_ledger_signed_anew_with_another_key_is_only_self_consistent(root: Path, synthetic):
    thief = Signer(name="tester", seed=bytes(32))
    origin = json.loads((root / "ledger.jsonl").read_bytes().splitlines()[0])["payload"]["origin"]
    key = thief.public(origin)

    def change(seq: int, kind: str, payload: dict) -> dict:
        if kind == "key.added":
            payload |= {
                "key_hash": key.key_hash.hex(),
                "verifier_key": key.text(),
                "sha256": sha256_hex(f"{key.text()}\n".encode()),
            }
            (root / "keys" / payload["file"]).write_text(f"{key.text()}\n")
        return payload

    rechained(root, change, thief)
    rebuild(root)
    result = audit_store(root, trusted_keys=[synthetic.SIGNER.public()])
    assert (result.findings, result.trust) == ((), "SELF_CONSISTENT")
    assert any("made all of it up" in point for point in result.open_points)


@pytest.mark.parametrize("forged", ["name", "hash"])
def test_a_key_of_another_store_or_with_another_hash_is_found(root: Path, synthetic, forged: str):
    origin = json.loads((root / "ledger.jsonl").read_bytes().splitlines()[0])["payload"]["origin"]
    key = synthetic.SIGNER.public("assay/0000000000000000" if forged == "name" else origin)
    key_hash = key.key_hash.hex() if forged == "name" else "00000000"

    def change(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "key.added":
            payload |= {"key_hash": key_hash, "verifier_key": key.text()}
        return payload

    rechained(root, change, synthetic.SIGNER)
    found = [one for one in audit_store(root, level="chain").findings if "not named for this store" in one.message]
    assert [(one.check, one.expected, one.found) for one in found] == [("checkpoints", origin, key.name)]


@pytest.mark.parametrize(("kind", "role"), [("verdict.recorded", "detail"), ("load.sealed", "events")])
def test_json_that_is_nested_too_deep_is_a_finding(root: Path, synthetic, kind: str, role: str):
    def change(_seq: int, found: str, payload: dict) -> dict:
        if found == kind:
            replaced_blob(root, payload, role, lambda _: b"[" * 100_000 + b"\n")
        return payload

    rechained(root, change, synthetic.SIGNER)
    assert_found(audit_store(root), "the content is no JSON", "the line is no JSON")


def test_another_request_than_the_locked_one_is_found_even_with_the_key(root: Path, synthetic):
    def change(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "load.sealed" and payload["state"] == "COMPLETE":
            replaced_blob(
                root, payload, "exchange", lambda data: data.replace(b'"prompt":[1,2,3]', b'"prompt":[1,2,4]')
            )
        return payload

    rechained(root, change, synthetic.SIGNER)
    rebuild(root)
    result = audit_store(root)
    assert {finding.check for finding in result.findings} == {"requests"}


def test_another_protocol_than_the_locked_one_is_found_even_with_the_key(root: Path, synthetic):
    def change(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "campaign.locked":
            replaced_blob(
                root, payload, "protocol", lambda data: data.replace(b'max_loss_pct: "10"', b'max_loss_pct: "50"')
            )
            content = BlobStore(root / "blobs" / "sha256", Files()).read(
                next(item["sha256"] for item in payload["blobs"] if item["role"] == "protocol")
            )
            payload["protocol_file_sha256"] = sha256_hex(content)
            next((root / "campaigns").rglob("protocol.yaml")).write_bytes(content)
        return payload

    rechained(root, change, synthetic.SIGNER)
    rebuild(root)
    assert audit_store(root).findings[0].check == "promises"


def test_a_load_at_a_place_that_the_locked_schedule_has_not_is_found(root: Path, synthetic):
    def change(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "load.opened" and payload["position"]["label"] == "C1":
            payload["position"] = payload["position"] | {"arm": "baseline"}
        return payload

    rechained(root, change, synthetic.SIGNER)
    found = [one for one in audit_store(root, level="structure").findings if "no such place" in one.message]
    assert [(one.check, one.field) for one in found] == [("order", "payload.position")]


def test_a_lock_without_its_checkpoint_is_found(root: Path):
    """Entries after a lock without a signature in between would let the lock be chosen after the fact."""
    lines = (root / "ledger.jsonl").read_bytes().splitlines()
    entries = [parse_entry(line, seq=seq) for seq, line in enumerate(lines)]
    kept = [entry for entry in entries if entry.seq != 3]
    assert entries[3].kind == "checkpoint.signed"
    new, prev = [], FIRST_PREV
    for seq, entry in enumerate(kept[:4]):
        line = encode_entry(
            seq=seq, kind=entry.kind, lock=entry.lock, prev=prev, utc_ns=1, monotonic_ns=1, payload=entry.payload
        )
        new.append(line.line + b"\n")
        prev = line.sha256
    (root / "ledger.jsonl").write_bytes(b"".join(new))
    result = audit_store(root, level="chain")
    assert any("no checkpoint follows" in finding.message for finding in result.findings)


def test_a_store_marked_as_left_open_hides_no_change(root: Path):
    """Anyone can write into store.lock; that turns missing copies into notes and nothing else."""
    (root / "store.lock").write_text("x")
    path = next((root / "campaigns").rglob("report.md"))
    flip(path, 0)
    assert_found(audit_store(root), "report.md")


def test_salted_blobs_of_one_text_have_different_names():
    assert salted(b"x") != salted(b"x")
