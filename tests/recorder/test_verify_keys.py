"""The single-file verifier follows keys as the audit does: to signed successors, and never to a revoked key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocols.canonical import canonical_bytes
from recorder import verify
from recorder.audit import audit_store
from recorder.checkpoint import sign_note
from recorder.key_ring import ROTATION, parse_revocation, revoke, rotate
from recorder.keys import Signer, VerifierKey, load_signer
from recorder.store import Store

OTHER = Signer(name="x", seed=bytes(32))


def lock_one(root: Path, synthetic) -> None:
    with Store.open(root, create=True, clock=synthetic.StepClock()) as store:
        store.begin_campaign(**synthetic.lock_parts())


@pytest.fixture
def rotated(tmp_path: Path, key_home: Path, synthetic) -> tuple[Path, list[VerifierKey]]:
    """A store that a key and its two successors signed in turn."""
    root, keys = tmp_path / "s", []
    for number in range(3):
        if number:
            rotate("default")
        lock_one(root, synthetic)
        keys.append(load_signer("default").public())
    return root, keys


def outcome(root: Path, trusted: list[VerifierKey], revoked: list[VerifierKey] = ()) -> str:
    """What the verifier says, which must be what the audit says."""
    verifier = verify.Verifier(root, [key.raw for key in trusted], None, [key.raw for key in revoked])
    verifier.run()
    audited = audit_store(root, level="chain", trusted_keys=trusted, revoked_keys=revoked)
    assert (verifier.findings, verifier.trust) == ([], audited.trust)
    for words in ("was revoked", "successor of a trusted one"):
        said, wanted = (
            [point for point in points if words in point] for points in (verifier.open_points, audited.open_points)
        )
        assert len(said) == len(wanted)
    return verifier.trust


def test_a_trusted_keys_successors_are_accepted(rotated):
    root, keys = rotated
    assert [outcome(root, [key]) for key in keys] == ["VERIFIED"] * 3
    assert outcome(root, [OTHER.public()]) == outcome(root, []) == "SELF_CONSISTENT"


def test_a_revoked_key_ends_the_line_of_trust(rotated):
    root, (first, second, third) = rotated
    assert outcome(root, [first], [third]) == outcome(root, [third], [third]) == "SELF_CONSISTENT"
    assert outcome(root, [first], [second]) == "SELF_CONSISTENT"
    assert outcome(root, [first], [first]) == "SELF_CONSISTENT"
    assert outcome(root, [first, third], [second]) == "VERIFIED"


def test_a_key_without_a_rotation_is_not_trusted_for_the_one_before_it(tmp_path: Path, key_home: Path, synthetic):
    lock_one(tmp_path / "s", synthetic)
    first = load_signer("default").public()
    (key_home / "default.key").unlink()
    lock_one(tmp_path / "s", synthetic)
    assert outcome(tmp_path / "s", [first]) == "SELF_CONSISTENT"


def rewrite_rotations(root: Path, change) -> None:
    """Change the newest rotations in the ledger and write every line behind it again, so that the chain holds."""
    entries = [json.loads(line) for line in (root / "ledger.jsonl").read_bytes().splitlines()]
    added = [entry for entry in entries if entry["kind"] == "key.added"][-1]
    added["payload"]["rotations"] = change(added["payload"]["rotations"])
    lines, prev = [], "0" * 64
    for entry in entries:
        lines.append(canonical_bytes(entry | {"prev": prev}))
        prev = verify.sha256(lines[-1]).hex()
    (root / "ledger.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def signed(text: str, *signers: Signer) -> str:
    return sign_note(text, [(one.name, one) for one in signers]).decode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda notes: notes[:1], "the rotations do not lead to this key"),
        (lambda notes: [notes[0], notes[1].replace(notes[1].split("\n")[1], OTHER.public().text())], "the signature is not of the key"),
        (lambda notes: [notes[0], notes[1].replace(ROTATION, "other")], "the signature is not of the key"),
        (lambda notes: [notes[0], signed(notes[1].partition("\n\n")[0] + "\n", OTHER)], "no key rotation that the old"),
        (lambda notes: [notes[0], notes[1].rpartition("\n\n")[0] + "\n\n"], "no signed note"),
        (lambda notes: [notes[0], "x"], "no verifier key"),
        (lambda notes: [signed(f"{ROTATION}\n{2 * (OTHER.public().text() + chr(10))}", OTHER, OTHER)], "no key rotation that"),
    ],
)  # fmt: skip
def test_a_rotation_that_does_not_hold_is_found_and_named(rotated, change, message: str):
    root, keys = rotated
    rewrite_rotations(root, change)
    verifier = verify.Verifier(root, [keys[0].raw], None)
    verifier.run()
    found = [one for one in verifier.findings if "payload.rotations" in one["place"]]
    assert [message in one["message"] for one in found] == [True]
    assert verifier.trust == "SELF_CONSISTENT"
    audited = audit_store(root, level="chain", trusted_keys=[keys[0]])
    assert any("payload.rotations" in one.place for one in audited.findings)


def test_rotation_and_revocation_work_from_the_command_line(
    rotated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    root, (first, _, third) = rotated
    assert verify.main([str(root), "--key", first.text()]) == 0
    out = capsys.readouterr().out
    assert "sound, VERIFIED" in out
    assert "is trusted as the successor of a trusted one" in out
    statement = revoke(third, "the laptop was stolen")
    assert parse_revocation(statement).is_signed
    (tmp_path / "r.note").write_text(statement)
    (tmp_path / "unsigned.note").write_text(statement.partition("\n\n")[0] + "\n")
    for revoked in (third.text(), str(tmp_path / "r.note"), str(tmp_path / "unsigned.note")):
        assert verify.main([str(root), "--key", first.text(), "--revoked", revoked]) == 0
        out = capsys.readouterr().out
        assert "sound, SELF_CONSISTENT" in out
        assert "that signed the newest checkpoint was revoked" in out


def test_a_revocation_that_its_key_did_not_sign_and_nonsense_are_usage_errors(rotated, tmp_path: Path):
    root, (first, _, third) = rotated
    statement = revoke(third, "lost")
    forged = statement.replace("lost", "fine")
    foreign = signed(statement.partition("\n\n")[0] + "\n", OTHER)
    for number, text in enumerate((forged, foreign, "assay/key-revocation/v1", "nonsense")):
        (tmp_path / f"{number}.note").write_text(text)
        with pytest.raises(SystemExit) as caught:
            verify.main([str(root), "--key", first.text(), "--revoked", str(tmp_path / f"{number}.note")])
        assert caught.value.code == 2
