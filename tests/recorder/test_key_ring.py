"""Rotation and revocation: who is trusted after a key changed hands, and after it was lost."""

from __future__ import annotations

import contextlib
import json
import stat
from pathlib import Path

import pytest

from protocols.errors import EvidenceError, HostError
from recorder.audit import audit_store
from recorder.checkpoint import sign_note
from recorder.key_ring import (
    ROTATION,
    key_ring,
    own_signer,
    parse_revocation,
    parse_rotation,
    revoke,
    rotate,
    rotations_to,
    take_revocation,
    trusted_closure,
    trusted_keys,
)
from recorder.keys import Signer, load_signer
from recorder.store import Store

OTHER = Signer(name="x", seed=bytes(32))


def lock_one(root: Path, synthetic) -> None:
    with Store.open(root, create=True, clock=synthetic.StepClock()) as store:
        store.begin_campaign(**synthetic.lock_parts())


def test_a_rotation_destroys_the_old_private_key_and_keeps_trusting_its_public_half(key_home: Path):
    old = load_signer("default")
    done = rotate("default")
    new = load_signer("default")
    assert (done.old.raw, done.new.raw) == (old.public().raw, new.public().raw)
    assert new.seed != old.seed
    assert stat.S_IMODE((key_home / "default.key").stat().st_mode) == 0o600
    assert {key.raw for key in trusted_keys()} == {old.public().raw, new.public().raw}
    secret = old.text()[-30:]
    assert not [path for path in key_home.rglob("*") if path.is_file() and secret in path.read_text()]
    assert parse_rotation(done.note) == done


def test_a_key_that_is_not_there_is_not_rotated(key_home: Path):
    with pytest.raises(HostError, match="no key"):
        rotate("release")


def test_whoever_trusts_the_old_key_trusts_what_its_successors_signed(tmp_path: Path, synthetic):
    root = tmp_path / "s"
    lock_one(root, synthetic)
    first = load_signer("default").public()
    assert audit_store(root, trusted_keys=[first]).trust == "VERIFIED"
    for _ in range(2):
        rotate("default")
    lock_one(root, synthetic)
    newest = load_signer("default").public()
    assert len(rotations_to(newest)) == 2
    result = audit_store(root, trusted_keys=[first])
    assert (result.findings, result.trust) == ((), "VERIFIED")
    assert any("successor of a trusted one" in point for point in result.open_points)
    assert audit_store(root, trusted_keys=[newest]).trust == "VERIFIED"
    assert audit_store(root, trusted_keys=[OTHER.public()]).trust == "SELF_CONSISTENT"


def test_a_new_key_without_a_rotation_is_not_trusted_for_the_old_one(tmp_path: Path, synthetic, key_home: Path):
    root = tmp_path / "s"
    lock_one(root, synthetic)
    first = load_signer("default").public()
    (key_home / "default.key").unlink()
    lock_one(root, synthetic)
    assert audit_store(root, trusted_keys=[first]).trust == "SELF_CONSISTENT"


def test_a_revoked_key_verifies_nothing_whenever_it_signed(tmp_path: Path, synthetic):
    root = tmp_path / "s"
    lock_one(root, synthetic)
    key = load_signer("default").public()
    statement = revoke(key, "the laptop\nwas stolen")
    ring = key_ring()
    assert (ring.trusted, [one.reason for one in ring.revoked]) == ((), ["the laptop was stolen"])
    assert parse_revocation(statement).is_signed
    result = audit_store(root, trusted_keys=[key], revoked_keys=[one.key for one in ring.revoked])
    assert (result.findings, result.trust) == ((), "SELF_CONSISTENT")
    assert any("was revoked" in point for point in result.open_points)


def test_a_rotation_does_not_lead_to_a_revoked_key(tmp_path: Path, synthetic):
    first = load_signer("default").public()
    done = rotate("default")
    assert trusted_closure([first.raw], [done], []) == {first.raw, done.new.raw}
    assert trusted_closure([first.raw], [done], [done.new.raw]) == {first.raw}
    assert trusted_closure([first.raw], [done], [first.raw]) == set()


def test_nothing_is_signed_with_a_revoked_key(tmp_path: Path, synthetic):
    revoke(load_signer("default").public(), "lost")
    with pytest.raises(HostError, match="was revoked"):
        own_signer("default")
    with pytest.raises(HostError, match="was revoked"):
        lock_one(tmp_path / "s", synthetic)
    rotate("default")
    lock_one(tmp_path / "s2", synthetic)


def test_a_published_revocation_is_taken_and_a_forged_one_refused(key_home: Path, tmp_path: Path):
    (tmp_path / "owner").mkdir()
    load_signer("release", home=tmp_path / "owner")
    statement = revoke(load_signer("release", home=tmp_path / "owner").public(), "gone", home=tmp_path / "owner")
    take_revocation(statement)
    assert [one.key.name for one in key_ring().revoked] == ["release"]
    for forged in (
        statement.replace("gone", "fine"),
        statement.replace("release+", "releas2+", 1),
        statement[:-2] + "\n",
        "x\n",
        "",
    ):
        with pytest.raises(EvidenceError):
            take_revocation(forged)


def test_anybody_can_revoke_a_foreign_key_for_his_own_audits(key_home: Path):
    statement = revoke(OTHER.public(), "I met him")
    assert not parse_revocation(statement).is_signed


def test_a_forged_rotation_is_refused(key_home: Path):
    load_signer("default")
    done = rotate("default")
    body = f"{ROTATION}\n{done.old.text()}\n{OTHER.public().text()}\n"
    new = load_signer("default")
    for note in (
        done.note.replace(done.new.text(), OTHER.public().text()),
        sign_note(body, [("x", OTHER)]).decode(),
        sign_note(f"{ROTATION}\n{done.new.text()}\n{done.new.text()}\n", [("default", new)]).decode(),
        sign_note(f"other\n{done.old.text()}\n{done.new.text()}\n", [("default", new)]).decode(),
    ):
        with pytest.raises(EvidenceError):
            parse_rotation(note)


def test_a_recorded_rotation_that_leads_elsewhere_is_found(tmp_path: Path, synthetic):
    root = tmp_path / "s"
    load_signer("default")
    rotate("default")
    lock_one(root, synthetic)
    lines = (root / "ledger.jsonl").read_bytes().splitlines()
    value = json.loads(lines[1])
    other = tmp_path / "other"
    load_signer("default", home=other)
    value["payload"]["rotations"] = [rotate("default", home=other).note]
    from protocols.canonical import canonical_bytes

    (root / "ledger.jsonl").write_bytes(b"\n".join([lines[0], canonical_bytes(value), *lines[2:]]) + b"\n")
    messages = [finding.message for finding in audit_store(root, level="chain").findings]
    assert "the rotations do not lead to this key" in messages


def test_every_fault_of_a_rotation_leaves_a_key_that_signs(key_home: Path, synthetic):
    for step in range(1, 40):
        load_signer(f"k{step}")
        files = synthetic.FaultyFiles(step)
        with contextlib.suppress(HostError):
            rotate(f"k{step}", files=files)
        signer = load_signer(f"k{step}")
        assert signer.public().is_signature(signer.sign(b"x"), b"x")
        assert signer.public().raw in {key.raw for key in trusted_keys()}
        if files.steps < step:
            return
    raise AssertionError("the last step was not reached")


def test_a_broken_file_of_the_ring_is_named(key_home: Path):
    for name in ("revoked/x.note", "trusted/x.pub"):
        path = key_home / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("nonsense")
        with pytest.raises(EvidenceError) as caught:
            key_ring()
        assert str(caught.value.where).endswith(name)
        path.unlink()
