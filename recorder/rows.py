"""From ledger entries and blobs to database rows: pure functions, used when recording and again by the audit.

`derive_rows` gives every row of one entry; `derive_load_rows` those of a sealed load. What they give depends on the
entry's line and on the content of the blobs that it names, and on nothing else. So a database can be rebuilt, and a
rebuilt one equals the recorded one row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from protocols.canonical import JsonValue, sha256_hex
from protocols.errors import EvidenceError
from protocols.lock import ArmIdentity, FileIdentity, Lock, ModelIdentity, parse_lock
from recorder.ledger import Entry
from recorder.load_rows import derive_load_rows, read_exchanges, seal_reason
from recorder.request_rows import ReadExchange
from recorder.row_blocks import AllRows, RowBlocks
from recorder.row_values import ReadBlob, RowMap, attachment_rows, optional_text, plain_text, read_object, to_json

__all__ = ["ReadBlob", "RowMap", "derive_load_rows", "derive_rows", "read_exchanges", "read_verdict", "seal_reason"]

REQUEST_INDEX: Final = "requests"  # role of the blob that maps request references to blob names


def derive_rows(entry: Entry, read_blob: ReadBlob, exchanges: Sequence[ReadExchange] | None = None) -> AllRows:
    """Derive every row of one ledger entry, its own row first.

    ``exchanges`` are those of a sealed load, for a caller that has read them already.
    Raises `EvidenceError` if a blob is missing or damaged, or if the payload is not as its kind demands.
    """
    rows: AllRows = {"ledger_entry": [_entry_row(entry)], "blob": [*_blob_rows(entry)]}
    derived: Mapping[str, Sequence[dict[str, Any]]] = (
        derive_load_rows(entry, read_blob, exchanges)
        if entry.kind == "load.sealed"
        else _DERIVE[entry.kind](entry, read_blob)
    )
    for table, found in derived.items():
        if isinstance(found, RowBlocks):  # its rows carry the number of their entry already
            rows[table] = found
        else:
            rows[table] = [{"entry_seq": entry.seq} | row for row in found]
    return rows


def _entry_row(entry: Entry) -> dict[str, Any]:
    return {
        "seq": entry.seq,
        "kind": entry.kind,
        "lock_sha256": entry.lock,
        "prev_sha256": entry.prev,
        "sha256": entry.sha256,
        "utc_ns": entry.utc_ns,
        "monotonic_ns": entry.monotonic_ns,
        "payload_json": to_json(entry.payload),
    }


def _blob_rows(entry: Entry) -> Iterator[dict[str, Any]]:
    for item in entry.blobs():
        yield {
            "entry_seq": entry.seq,
            "sha256": item["sha256"],
            "name": item["name"],
            "role": item["role"],
            "content_bytes": item["bytes"],
            "is_partial": int(bool(item["is_partial"])),
        }


def _store_created(entry: Entry, _read: ReadBlob) -> RowMap:
    row = {"store_id": entry.text("store"), "format": entry.number("format"), "origin": entry.text("origin")}
    return {"store": [row]}


def _store_recovered(entry: Entry, _read: ReadBlob) -> RowMap:
    row = {
        "torn_count": entry.number("torn_count"),
        "temporary_count": entry.number("temporary_count"),
        "orphan_count": len(entry.blobs()),
        "detail_json": to_json(entry.payload),
    }
    return {"recovery": [row]}


def _key_added(entry: Entry, _read: ReadBlob) -> RowMap:
    names = ("key_hash", "name", "verifier_key")
    return {"public_key": [{name: entry.text(name) for name in names} | {"file_sha256": entry.text("sha256")}]}


def _checkpoint_signed(entry: Entry, _read: ReadBlob) -> RowMap:
    note = entry.text("note")
    row = {
        "size": entry.number("size"),
        "root_sha256": entry.text("root"),
        "note_sha256": sha256_hex(note.encode()),
        "key_hash": entry.text("key_hash"),
        "note": note,
    }
    return {"checkpoint": [row]}


def _bundle_imported(entry: Entry, _read: ReadBlob) -> RowMap:
    row = {name: entry.text(name) for name in ("name", "store", "manifest_sha256", "trust")}
    numbers = {name: entry.number(name) for name in ("entries", "left_out_count")}
    return {"bundle_import": [row | numbers | {"root_sha256": entry.text("root")}]}


def _campaign_locked(entry: Entry, read: ReadBlob) -> RowMap:
    campaign, lock_bytes = entry.text("campaign"), read(entry.blob("lock"))
    lock = parse_lock(lock_bytes)
    source = read(entry.blob("protocol"))
    rows: RowMap = {
        "campaign": [
            {
                "campaign_id": campaign,
                "protocol_id": lock.protocol_id,
                "protocol_sha256": lock.protocol_sha256,
                "lock_sha256": sha256_hex(lock_bytes),
                "locked_utc_ns": entry.utc_ns,
            }
        ],
        "protocol_text": [{"sha256": sha256_hex(source), "source": plain_text(source.decode("utf-8", "replace"))}],
        "lock": [_lock_row(lock, lock_bytes)],
        "arm": [_arm_row(name, arm) for name, arm in sorted(lock.arms.items())],
        "identity_file": [*_identity_rows(lock)],
        "position": [
            {
                "position": place.index,
                "label": place.label,
                "arm": place.arm,
                "block": place.block,
                "is_burn_in": int(place.is_burn_in),
            }
            for place in lock.schedule
        ],
        "frozen_request": [*_frozen_rows(entry, read)],
        "campaign_text": [
            {"name": str(item["name"]), "content": read(str(item["sha256"])), "blob_sha256": item["sha256"]}
            for item in entry.blobs()
            if item.get("role") == "text"
        ],
    }
    return {table: [{"campaign_id": campaign} | row for row in found] for table, found in rows.items()}


def _lock_row(lock: Lock, lock_bytes: bytes) -> dict[str, Any]:
    return {
        "sha256": sha256_hex(lock_bytes),
        "lock_json": lock_bytes.decode(),
        "seed_commitment": lock.seed_commitment,
        "host_json": to_json(lock.host),
        "versions_json": to_json(lock.versions),
    }


def _arm_row(name: str, arm: ArmIdentity) -> dict[str, Any]:
    return {
        "arm": name,
        "kind": arm.kind,
        "is_fresh": int(arm.is_fresh),
        "layout_salt": arm.layout_salt,
        "faults_json": to_json(arm.faults),
        "settings_json": to_json(arm.settings),
        "capabilities_json": to_json(arm.capabilities),
        "build_receipt_sha256": arm.build_receipt_sha256,
    }


def _identity_rows(lock: Lock) -> Iterator[dict[str, Any]]:
    for arm_name, arm in sorted(lock.arms.items()):
        for ordinal, file in enumerate(arm.files):
            yield _file_row(arm_name, ordinal, file)
    for name in ("model", "draft", "ple_table", "tokenizer", "chat_template"):
        part = getattr(lock.model, name, None)  # no model at all where both arms are endpoints
        if isinstance(part, FileIdentity):
            yield _file_row(name, 0, part)
        elif isinstance(part, ModelIdentity):
            yield {
                "owner": name,
                "ordinal": 0,
                "name": optional_text(part.name),
                "bytes": part.bytes,
                "sha256": part.sha256,
                "build_id": None,
                "soname": None,
                "needed_json": None,
                "detail_json": to_json(part.model_dump(mode="json")),
            }


def _file_row(owner: str, ordinal: int, file: FileIdentity) -> dict[str, Any]:
    return {
        "owner": owner,
        "ordinal": ordinal,
        "name": plain_text(file.name),
        "bytes": file.bytes,
        "sha256": file.sha256,
        "build_id": file.build_id,
        "soname": file.soname,
        "needed_json": to_json(file.needed),
        "detail_json": None,
    }


def _frozen_rows(entry: Entry, read: ReadBlob) -> Iterator[dict[str, Any]]:
    index = read_object(read(entry.blob(REQUEST_INDEX)), f"request index of ledger entry {entry.seq}")
    for reference, blob_sha256 in sorted(index.items()):
        body = read(str(blob_sha256))
        yield {
            "reference": plain_text(reference),
            "sha256": sha256_hex(body),
            "body": body,
            "blob_sha256": str(blob_sha256),
        }


def _campaign_event(entry: Entry, read: ReadBlob) -> RowMap:
    has_reason = any(item.get("role") == "reason" for item in entry.blobs())
    reason = read(entry.blob("reason")).decode("utf-8", "replace") if has_reason else None
    row = {"campaign_id": entry.text("campaign"), "kind": entry.kind, "reason": optional_text(reason)}
    return {"campaign_event": [row]}


def _preflight(entry: Entry, read: ReadBlob) -> RowMap:
    detail = read_object(read(entry.blob("detail")), f"detail of ledger entry {entry.seq}")
    return {
        "preflight_finding": [
            {"campaign_id": entry.text("campaign"), "ordinal": ordinal, "finding_json": to_json(finding)}
            for ordinal, finding in enumerate(detail.get("findings", []))
        ]
    }


def _receipt(entry: Entry, read: ReadBlob) -> RowMap:
    payload = read(entry.blob("detail")).decode("utf-8", "replace")
    if "campaign" not in entry.payload:
        return {"store_receipt": [{"kind": entry.text("receipt"), "payload_json": plain_text(payload)}]}
    campaign = entry.text("campaign")
    row = {"campaign_id": campaign, "kind": entry.text("receipt"), "payload_json": plain_text(payload)}
    return {"receipt": [row], "attachment": [*attachment_rows(entry, campaign)]}


def _load_opened(entry: Entry, _read: ReadBlob) -> RowMap:
    place = entry.payload.get("position")
    if not isinstance(place, dict):
        raise EvidenceError("payload.position is no object", where=f"ledger entry {entry.seq} ({entry.kind})")
    row = {
        "load_id": entry.text("load"),
        "campaign_id": entry.text("campaign"),
        "position": place["index"],
        "label": place["label"],
        "arm": place["arm"],
        "block": place["block"],
        "is_burn_in": int(bool(place["is_burn_in"])),
        "attempt": entry.number("attempt"),
        "opened_ns": entry.monotonic_ns,
        "opened_utc_ns": entry.utc_ns,
    }
    return {"load": [row]}


def _verdict(entry: Entry, read: ReadBlob) -> RowMap:
    campaign = entry.text("campaign")
    results, verdict = read_verdict(entry, read)
    again = [{"campaign_id": campaign, "verdict_seq": entry.number("rejudges")}] if "rejudges" in entry.payload else []
    return {
        "rejudgement": again,
        "gate_result": [
            {
                "campaign_id": campaign,
                "ordinal": ordinal,
                "gate_id": result["id"],
                "kind": result["kind"],
                "status": result["status"],
                "is_required": int(bool(result["required"])),
                "reason": result["reason"],
                "threshold": result["threshold"],
                "margin": result["margin"],
                "inputs_json": to_json(result["inputs"]),
            }
            for ordinal, result in enumerate(results)
        ],
        "verdict": [
            {
                "campaign_id": campaign,
                "status": verdict["status"],
                "reason": verdict["reason"],
                "exit_code": verdict["exit_code"],
                "payload_json": to_json(verdict),
            }
        ],
    }


def read_verdict(entry: Entry, read: ReadBlob) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the gate results and the verdict that a ``verdict.recorded`` entry holds, as recorded."""
    detail = read_object(read(entry.blob("detail")), f"detail of ledger entry {entry.seq}")
    results, verdict = detail.get("results"), detail.get("verdict")
    if not isinstance(results, list) or not isinstance(verdict, dict):
        raise EvidenceError("the detail of the verdict lacks results or verdict", where=f"ledger entry {entry.seq}")
    return results, verdict


def _review(entry: Entry, read: ReadBlob) -> RowMap:
    detail = read_object(read(entry.blob("detail")), f"detail of ledger entry {entry.seq}")
    row = {
        "campaign_id": entry.text("campaign"),
        "verdict_seq": entry.number("verdict"),
        "verdict_status": entry.text("verdict_status"),
        "decision": entry.text("decision"),
        "status": entry.text("status"),
        "reviewer": plain_text(str(detail.get("reviewer"))),
        "statement": plain_text(str(detail.get("statement"))),
        "key_hash": entry.text("key_hash"),
        "note": entry.text("note"),
    }
    return {"review": [row]}


def _report(entry: Entry, read: ReadBlob) -> RowMap:
    campaign = entry.text("campaign")
    rows: list[dict[str, Any]] = []
    for item in entry.blobs():
        content = read(str(item["sha256"]))
        facts: dict[str, JsonValue | bytes] = {"sha256": sha256_hex(content), "content": content}
        rows.append({"campaign_id": campaign, "name": item["name"], "blob_sha256": item["sha256"]} | facts)
    return {"report_file": rows}


_DERIVE: Final[Mapping[str, Callable[[Entry, ReadBlob], RowMap]]] = {
    "store.created": _store_created,
    "store.recovered": _store_recovered,
    "key.added": _key_added,
    "bundle.imported": _bundle_imported,
    "campaign.locked": _campaign_locked,
    "preflight.recorded": _preflight,
    "receipt.recorded": _receipt,
    "load.opened": _load_opened,
    "campaign.interrupted": _campaign_event,
    "campaign.resumed": _campaign_event,
    "campaign.cancelled": _campaign_event,
    "verdict.recorded": _verdict,
    "review.recorded": _review,
    "report.recorded": _report,
    "checkpoint.signed": _checkpoint_signed,
}
