"""The audit of the ledger as a whole: what is said of chain, locks, checkpoints, keys and a pinned head, word by word."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from audit_faults import rechained

from protocols.canonical import canonical_bytes
from recorder.audit import audit_store
from recorder.audit_context import Finding
from recorder.keys import Signer
from recorder.merkle import leaf_hash, root_of

NEW_END = "ledger entry 21 (checkpoint.signed)"


def entries(root: Path) -> list[dict]:
    return [json.loads(line) for line in (root / "ledger.jsonl").read_bytes().splitlines()]


def write(root: Path, changed: list[dict]) -> None:
    """Write entries as they are: nothing is chained anew."""
    (root / "ledger.jsonl").write_bytes(b"".join(canonical_bytes(one) + b"\n" for one in changed))


def found(root: Path, check: str, **options: object) -> list[Finding]:
    return [one for one in audit_store(root, level="chain", **options).findings if one.check == check]


def test_an_entry_that_names_another_line_before_it_is_found(store_root: Path):
    changed = entries(store_root)
    before, changed[5]["prev"] = changed[5]["prev"], "0" * 64
    write(store_root, changed)
    first, second = found(store_root, "chain")
    assert (first.entry, first.field, first.expected, first.found) == (5, "prev", before, "0" * 64)
    assert (second.entry, second.field) == (6, "prev"), "which followed the line as it was"


@pytest.mark.parametrize("seq", [1, 4])
def test_a_lock_at_an_entry_that_is_not_its_own_is_found(store_root: Path, seq: int):
    """Entry 1 belongs to no campaign, entry 4 to one."""
    changed = entries(store_root)
    before, changed[seq]["lock"] = changed[seq]["lock"], "0" * 64
    write(store_root, changed)
    (one,) = found(store_root, "locks")
    assert (one.entry, one.field, one.message) == (seq, "lock", "wrong lock")
    assert (one.expected, one.found) == (before, "0" * 64)


@pytest.mark.parametrize(
    ("member", "value", "field", "message"),
    [
        ("size", 4, "payload.size", "the checkpoint is not of this ledger"),
        ("root", "0" * 64, "payload.root", "the checkpoint is not of this ledger"),
        ("key_hash", "00000000", "payload.key_hash", "no recorded key"),
        ("note", "no note", "payload.note", "the note has no signatures behind an empty line"),
    ],
)
def test_a_checkpoint_with_any_changed_member_is_found(
    store_root: Path, member: str, value: object, field: str, message: str
):
    changed = entries(store_root)
    assert changed[3]["kind"] == "checkpoint.signed"
    before, changed[3]["payload"][member] = changed[3]["payload"][member], value
    write(store_root, changed)
    one = next(one for one in found(store_root, "checkpoints") if one.entry == 3)
    assert (one.field, one.message) == (field, message)
    if message == "the checkpoint is not of this ledger":
        assert (one.expected, one.found) == (str(before), str(value))
    elif message == "no recorded key":
        assert (one.expected, one.found) == (None, "00000000")


def test_the_note_of_another_ledger_differs_in_origin_size_and_root(store_root: Path, synthetic, tmp_path: Path):
    synthetic.run_campaign(tmp_path / "other", clock=synthetic.StepClock(1_700_000_000_000_000_000))
    ours, theirs = entries(store_root), entries(tmp_path / "other")
    ours[3]["payload"]["note"] = theirs[8]["payload"]["note"]
    assert theirs[8]["kind"] == "checkpoint.signed"
    write(store_root, ours)
    of_entry = [one for one in found(store_root, "checkpoints") if one.entry == 3]
    assert [one.field for one in of_entry] == ["origin", "size", "root", "payload.note"]
    assert (of_entry[1].expected, of_entry[1].found) == ("3", "8")
    assert of_entry[3].message.startswith("the signature is not of the key ")


def forged_key(change: Callable[[dict], None], root: Path, synthetic) -> list[Finding]:
    def apply(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "key.added":
            change(payload)
        return payload

    rechained(root, apply, synthetic.SIGNER)
    return found(root, "checkpoints")


def test_a_key_or_a_rotation_that_cannot_be_read_is_found(store_root: Path, synthetic):
    first = forged_key(lambda payload: payload.update(rotations=["x"]), store_root, synthetic)[0]
    assert (first.entry, first.field) == (1, "payload.rotations")
    first = forged_key(lambda payload: payload.update(rotations=7), store_root, synthetic)[0]
    assert (first.field, first.message) == ("payload.rotations", "the rotations do not lead to this key")
    first = forged_key(lambda payload: payload.update(rotations=[], verifier_key="x"), store_root, synthetic)[0]
    assert (first.entry, first.field) == (1, "payload.verifier_key")


def test_what_lies_under_no_signature_is_said(store_root: Path, synthetic):
    result = audit_store(store_root, trusted_keys=[synthetic.SIGNER.public()])
    assert result.open_points == (
        "the last 1 entry is under no signature; the checkpoint's own record always is so",
        "no pinned head: an older copy of this store, or one without its newest entries, would pass as well",
    )
    with synthetic.open_store(store_root) as store:
        store.campaign_recorder("latest").record_receipt("smoke", {}, {})
    result = audit_store(store_root, head=result.head)
    assert result.open_points == (
        "no trusted key signed the newest checkpoint: whoever made this store could have made all of it up",
        "the last 2 entries are under no signature; the checkpoint's own record always is so",
    )


def test_a_store_without_any_checkpoint_says_so(store_root: Path, synthetic):
    write(store_root, entries(store_root)[:3])
    result = audit_store(store_root, level="chain", trusted_keys=[synthetic.SIGNER.public()])
    assert (result.trust, result.open_points[0]) == ("SELF_CONSISTENT", "no checkpoint: nothing here is signed")
    assert "ledger entry 2 (campaign.locked): the checkpoint after it is still to come" in result.notes


def test_a_newest_checkpoint_that_does_not_hold_earns_no_trust(store_root: Path, synthetic):
    """The one before it does: what it covers is signed."""
    changed = entries(store_root)
    changed[21]["payload"]["note"] = "no note"
    write(store_root, changed)
    (store_root / "checkpoints" / "21.note").write_text("no note")
    result = audit_store(store_root, level="chain", trusted_keys=[synthetic.SIGNER.public()])
    assert [(one.place, one.message) for one in result.findings] == [
        (f"{NEW_END}: payload.note", "the note has no signatures behind an empty line")
    ]
    assert result.trust == "SELF_CONSISTENT"
    assert "the last 3 entries are under no signature; the checkpoint's own record always is so" in result.open_points


def test_a_revoked_or_a_strange_key_is_told_apart(store_root: Path, synthetic):
    key = synthetic.SIGNER.public()
    revoked = audit_store(store_root, trusted_keys=[key], revoked_keys=[key])
    assert revoked.trust == "SELF_CONSISTENT"
    assert revoked.open_points[0].endswith("that signed the newest checkpoint was revoked")
    strange = audit_store(store_root, trusted_keys=[Signer(name="x", seed=bytes(32)).public()])
    assert strange.open_points[0].startswith("no trusted key signed the newest checkpoint")


def test_a_pinned_head_is_held_against_the_first_entries(store_root: Path):
    lines = (store_root / "ledger.jsonl").read_bytes().splitlines()
    roots = {size: root_of([leaf_hash(line) for line in lines[:size]]).hex() for size in (1, 10, len(lines))}
    for size, root in roots.items():
        result = audit_store(store_root, level="chain", head=f"{size}:{root}")
        assert (result.findings, bool(result.consistency_proof)) == ((), size < len(lines))
    (one,) = audit_store(store_root, level="chain", head=f"10:{roots[1]}").findings
    assert (one.check, one.place, one.message) == (
        "head",
        "ledger.jsonl",
        "the first 10 entries are not those of the pinned head",
    )
    assert (one.expected, one.found) == (roots[1], roots[10])
    (one,) = audit_store(store_root, level="chain", head=f"{len(lines) + 1}:{roots[1]}").findings
    assert (one.message, one.expected, one.found) == ("entries are missing", "at least 23 entries", "22 entries")


def test_a_key_that_was_recorded_later_signed_no_earlier_checkpoint(store_root: Path):
    """Keys count from their entry on."""
    moved = entries(store_root)
    key = moved.pop(1)
    moved.insert(3, key)
    for seq, one in enumerate(moved):
        one["seq"] = seq
    write(store_root, moved)
    messages = [one.message for one in found(store_root, "checkpoints") if one.entry == 2]
    assert moved[2]["kind"] == "checkpoint.signed"
    assert "no recorded key" in messages
