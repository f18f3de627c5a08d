"""What the tests of changed stores share: how a change is made and taken back, and what must be found."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from protocols.canonical import canonical_bytes
from recorder.audit import AuditResult, Level, audit_store
from recorder.blobs import BlobStore
from recorder.checkpoint import Checkpoint, sign_checkpoint
from recorder.files import Files
from recorder.keys import Signer
from recorder.ledger import FIRST_PREV, encode_entry, parse_entry
from recorder.merkle import leaf_hash, root_of

RANDOM = random.Random(20261129)


def assert_found(result: AuditResult, *words: str) -> None:
    assert result.findings, "nothing was found"
    assert result.trust == "SELF_CONSISTENT"
    text = "\n".join(f"{finding.place} {finding.message}" for finding in result.findings)
    assert any(word in text for word in words), text


def flip(path: Path, place: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= bit
    path.write_bytes(data)


def places(size: int, count: int) -> list[int]:
    chosen = {0, size // 2, size - 1} | {RANDOM.randrange(size) for _ in range(count)}
    return sorted(chosen)


def restored(root: Path, path: Path, change: Callable[[], object], level: Level = "recompute") -> AuditResult:
    """Audit with a change, and take the change back."""
    before = path.read_bytes()
    change()
    try:
        return audit_store(root, level=level)
    finally:
        path.write_bytes(before)


def rechained(root: Path, change: Callable[[int, str, dict], dict], signer: Signer | None = None) -> None:
    """Forge the ledger: change payloads, chain it anew, and sign the checkpoints anew if there is a key."""
    entries, leaves, prev = [], [], FIRST_PREV
    old = [parse_entry(line, seq=seq) for seq, line in enumerate((root / "ledger.jsonl").read_bytes().splitlines())]
    for entry in old:
        payload = change(entry.seq, entry.kind, json.loads(canonical_bytes(entry.payload)))
        if entry.kind == "checkpoint.signed":
            payload["root"] = root_of(leaves).hex()
            if signer is not None:
                head = Checkpoint(origin=old[0].text("origin"), size=entry.seq, root=root_of(leaves))
                payload["note"] = sign_checkpoint(head, signer).decode()
                payload["key_hash"] = signer.public(head.origin).key_hash.hex()
                (root / "checkpoints" / f"{entry.seq}.note").write_text(payload["note"])
        new = encode_entry(
            seq=entry.seq,
            kind=entry.kind,
            lock=entry.lock,
            prev=prev,
            utc_ns=entry.utc_ns,
            monotonic_ns=entry.monotonic_ns,
            payload=payload,
        )
        prev = new.sha256
        leaves.append(leaf_hash(new.line))
        entries.append(new.line + b"\n")
    (root / "ledger.jsonl").write_bytes(b"".join(entries))


def replaced_blob(root: Path, payload: dict, role: str, change: Callable[[bytes], bytes]) -> None:
    blobs = BlobStore(root / "blobs" / "sha256", Files())
    for item in payload.get("blobs", []):
        if item["role"] == role:
            content = change(blobs.read(item["sha256"]))
            blobs.path_of(item["sha256"]).unlink()
            item["sha256"] = blobs.put(content).sha256
            item["bytes"] = len(content)


def forge_verdict(root: Path) -> Callable[[int, str, dict], dict]:
    def change(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "verdict.recorded":
            payload["status"], payload["exit_code"] = "PASS", 0
            replaced_blob(
                root,
                payload,
                "detail",
                lambda data: data.replace(b'"status":"SCREEN_ONLY"', b'"status":"PASS"').replace(
                    b'"exit_code":3', b'"exit_code":0'
                ),
            )
            for gate in payload["gates"]:
                gate["status"] = "PASS"
        return payload

    return change


def rebuild(root: Path) -> None:
    from recorder.store import rebuild_database

    rebuild_database(root)
