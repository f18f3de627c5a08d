"""Checks of the ledger as a whole: chain, lock hashes, signed checkpoints, trust, pinned head."""

from __future__ import annotations

from protocols.errors import EvidenceError
from recorder.audit_context import Audit, place_of
from recorder.checkpoint import parse_checkpoint, parse_note
from recorder.journal import CHECKPOINTED, HOUSEKEEPING
from recorder.key_ring import Rotation, parse_rotation, trusted_closure
from recorder.keys import VerifierKey, parse_verifier_key
from recorder.ledger import FIRST_PREV, Entry
from recorder.merkle import Tree, leaf_hash


def check_chain(audit: Audit) -> None:
    """(2) Each entry names the line before it."""
    prev = FIRST_PREV
    for entry in audit.entries:
        audit.items += 1
        if entry.prev != prev:
            message = "the entry before this one is not the one that it followed"
            audit.find(place_of(entry, "prev"), message=message, expected=prev, found=entry.prev)
        prev = entry.sha256


def check_locks(audit: Audit) -> None:
    """(3) Each entry of a campaign carries the hash of its lock."""
    locks: dict[str, str] = {}
    for entry in audit.entries:
        audit.items += 1
        if entry.kind == "campaign.locked":
            locks[entry.text("campaign")] = entry.text("lock_sha256")
        campaign = entry.payload.get("campaign")
        expected = locks.get(campaign) if isinstance(campaign, str) else None
        if entry.lock != expected:
            audit.find(place_of(entry, "lock"), message="wrong lock", expected=expected, found=entry.lock)


def check_checkpoints(audit: Audit) -> None:
    """(4) Each checkpoint is signed by a recorded key, over the right root; none is missing."""
    origin = audit.entries[0].text("origin")
    keys: list[VerifierKey] = []
    rotations: list[Rotation] = []
    tree = Tree()
    newest: tuple[Entry, VerifierKey] | None = None
    for entry in audit.entries:
        if entry.kind == "key.added":
            keys += _key_of(audit, entry, origin)
            rotations += _rotations_of(audit, entry)
        elif entry.kind == "checkpoint.signed":
            audit.items += 1
            key = _check_checkpoint(audit, entry, origin, keys, tree.root())
            newest = (entry, key) if key is not None else newest
        tree.append(leaf_hash(entry.line))
    audit.counts["checkpoints"] = audit.items
    _check_due(audit)
    _set_trust(audit, newest, rotations)


def _rotations_of(audit: Audit, entry: Entry) -> list[Rotation]:
    """Return the rotations that led to a recorded key: each signed by the old and the new key, the last one by it."""
    texts = entry.payload.get("rotations", [])
    try:
        found = [parse_rotation(str(text)) for text in texts] if isinstance(texts, list) else []
        raw = parse_verifier_key(entry.text("verifier_key")).raw
    except EvidenceError as error:
        audit.find(place_of(entry, "payload.rotations"), message=str(error))
        return []
    if texts and (not found or found[-1].new.raw != raw):
        audit.find(place_of(entry, "payload.rotations"), message="the rotations do not lead to this key")
        return []
    return found


def _key_of(audit: Audit, entry: Entry, origin: str) -> list[VerifierKey]:
    try:
        key = parse_verifier_key(entry.text("verifier_key"))
    except EvidenceError as error:
        audit.find(place_of(entry, "payload.verifier_key"), message=str(error))
        return []
    if key.name != origin or key.key_hash.hex() != entry.text("key_hash"):
        audit.find(place_of(entry), message="the key is not named for this store", expected=origin, found=key.name)
    return [key]


def _check_checkpoint(
    audit: Audit, entry: Entry, origin: str, keys: list[VerifierKey], root: bytes
) -> VerifierKey | None:
    """Return the key that signed a checkpoint that holds."""
    try:
        note = parse_note(entry.text("note").encode())
        checkpoint = parse_checkpoint(note.text)
    except EvidenceError as error:
        audit.find(place_of(entry, "payload.note"), message=str(error))
        return None
    pairs = (
        ("origin", origin, checkpoint.origin),
        ("size", entry.seq, checkpoint.size),
        ("payload.size", entry.seq, entry.number("size")),
        ("root", root.hex(), checkpoint.root.hex()),
        ("payload.root", root.hex(), entry.text("root")),
    )
    holds = True
    for member, expected, found in pairs:
        if expected != found:
            holds = False
            message = "the checkpoint is not of this ledger"
            audit.find(place_of(entry, member), message=message, expected=expected, found=found)
    key = next((key for key in keys if key.key_hash.hex() == entry.text("key_hash")), None)
    if key is None:
        audit.find(place_of(entry, "payload.key_hash"), message="no recorded key", found=entry.text("key_hash"))
    elif not note.is_signed_by(key):
        audit.find(place_of(entry, "payload.note"), message=f"the signature is not of the key {key.key_hash.hex()}")
    else:
        return key if holds else None
    return None


def _check_due(audit: Audit) -> None:
    due: Entry | None = None
    for entry in audit.entries:
        if entry.kind == "checkpoint.signed":
            due = None
        elif due is not None and entry.kind not in HOUSEKEEPING:
            audit.find(place_of(due), message="no checkpoint follows this entry", found=place_of(entry))
            due = None
        if entry.kind in CHECKPOINTED:
            due = entry
    if due is not None:
        audit.notes.append(f"{place_of(due)}: the checkpoint after it is still to come")


def _set_trust(audit: Audit, newest: tuple[Entry, VerifierKey] | None, rotations: list[Rotation]) -> None:
    if newest is None:
        audit.open_points.append("no checkpoint: nothing here is signed")
        return
    entry, key = newest
    named, gone = {one.raw for one in audit.trusted_keys}, {one.raw for one in audit.revoked_keys}
    is_trusted = key.raw in trusted_closure(named, rotations, gone)
    audit.trust = "VERIFIED" if is_trusted else "SELF_CONSISTENT"
    if key.raw in gone:
        audit.open_points.append(f"the key {key.key_hash.hex()} that signed the newest checkpoint was revoked")
    elif is_trusted and key.raw not in named:
        audit.open_points.append(
            f"the key {key.key_hash.hex()} is trusted as the successor of a trusted one, by a rotation that both signed"
        )
    elif not is_trusted:
        audit.open_points.append(
            "no trusted key signed the newest checkpoint: whoever made this store could have made all of it up"
        )
    covered = entry.number("size")
    if rest := len(audit.entries) - covered:
        noun = "entry is" if rest == 1 else "entries are"
        audit.open_points.append(f"the last {rest} {noun} under no signature; the checkpoint's own record always is so")


def check_head(audit: Audit) -> None:
    """(5) The ledger continues the pinned head."""
    head = audit.head
    if head is None:
        audit.open_points.append(
            "no pinned head: an older copy of this store, or one without its newest entries, would pass as well"
        )
        return
    audit.items += 1
    if len(audit.entries) < head.size:
        found = f"{len(audit.entries)} entries"
        audit.find("ledger.jsonl", message="entries are missing", expected=f"at least {head.size} entries", found=found)
        return
    tree = Tree()
    for entry in audit.entries[: head.size]:
        tree.append(leaf_hash(entry.line))
    if tree.root() != head.root:
        message = f"the first {head.size} entries are not those of the pinned head"
        audit.find("ledger.jsonl", message=message, expected=head.root.hex(), found=tree.root().hex())
