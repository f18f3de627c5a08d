r"""The life of keys in the user's key folder: rotated, revoked, trusted.

======================  =======================================================================================
``NAME.key``            private keys, mode 0600; the public half of each is trusted
``trusted/*.pub``       public keys of others, and own ones that were rotated away: what they signed stays theirs
``rotations/*.note``    statements "the successor of OLD is NEW", signed by both
``revoked/*.note``      keys that must not be trusted any more, and why
======================  =======================================================================================

A rotation is the note (C2SP signed note) over ``assay/key-rotation/v1``, the old and the new verifier key, a line each.
A store records it with the new key, so whoever trusts the old key can trust the new one without another word.
A revocation is ``assay/key-revocation/v1``, the verifier key and one line of reason; its owner signs it with the key
itself, and anybody may revoke any key for his own audits without a signature. A signature carries no trustworthy time,
so a revoked key is good for nothing, whenever it signed: that is why a rotation goes before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.errors import EvidenceError, HostError
from recorder.checkpoint import parse_note, sign_note
from recorder.files import Files, host_errors
from recorder.keys import DEFAULT_NAME, Signer, VerifierKey, key_home, load_signer, parse_verifier_key, write_signer

ROTATION: Final = "assay/key-rotation/v1"
REVOCATION: Final = "assay/key-revocation/v1"
T = TypeVar("T")


class Rotation(NamedTuple):
    """One key and its successor; ``note`` is the statement that both signed."""

    old: VerifierKey
    new: VerifierKey
    note: str


class Revocation(NamedTuple):
    """A key that must not be trusted any more. ``is_signed`` says that the key itself signed the statement."""

    key: VerifierKey
    reason: str
    is_signed: bool


class KeyRing(NamedTuple):
    """What an audit of this user trusts: keys, and those that it must not trust even so."""

    trusted: tuple[VerifierKey, ...]
    revoked: tuple[Revocation, ...]


def parse_rotation(text: str) -> Rotation:
    """Read a rotation and check both signatures. Raises `EvidenceError` if it does not hold."""
    note = parse_note(text.encode())
    lines = note.text.split("\n")
    if len(lines) != 4 or lines[0] != ROTATION:
        raise EvidenceError("this is no statement of a key rotation")
    old, new = parse_verifier_key(lines[1]), parse_verifier_key(lines[2])
    if old.raw == new.raw or not note.is_signed_by(old) or not note.is_signed_by(new):
        raise EvidenceError("the key rotation is not signed by the old and the new key")
    return Rotation(old, new, text)


def parse_revocation(text: str) -> Revocation:
    """Read a revocation; its signature is optional, but a wrong one is refused. Raises `EvidenceError`."""
    body, blank, _ = text.partition("\n\n")
    lines = body.rstrip("\n").split("\n")
    if len(lines) != 3 or lines[0] != REVOCATION:
        raise EvidenceError("this is no statement of a key revocation")
    key = parse_verifier_key(lines[1])
    if blank and not parse_note(text.encode()).is_signed_by(key):
        raise EvidenceError("the key revocation is not signed by the key that it revokes")
    return Revocation(key, lines[2], bool(blank))


def rotate(name: str, *, home: Path | None = None, files: Files | None = None) -> Rotation:
    """Replace a private key by a new one of the same name; the old private key is gone afterwards.

    The statement and the trust in the old public key are on the disk before the key is replaced.
    Raises `HostError` if there is no such key, or by the disk.
    """
    folder, disk = home or key_home(), files or Files()
    if not (folder / f"{name}.key").exists():
        raise HostError(f"there is no key {name}", where=str(folder), hint=f"`assay key make {name}` makes it")
    old = load_signer(name, home=folder)
    new = Signer(name=name, seed=Ed25519PrivateKey.generate().private_bytes_raw())
    text = f"{ROTATION}\n{old.public().text()}\n{new.public().text()}\n"
    note = sign_note(text, [(name, old), (name, new)])
    with host_errors("rotate a key", folder):
        disk.replace_file(folder / "rotations" / f"{_label(old.public())}.note", note)
        disk.replace_file(folder / "trusted" / f"{_label(old.public())}.pub", f"{old.public().text()}\n".encode())
    write_signer(new, folder / f"{name}.key", disk)
    return Rotation(old.public(), new.public(), note.decode())


def revoke(key: VerifierKey, reason: str, *, home: Path | None = None, files: Files | None = None) -> str:
    """Stop trusting a key, for good. Returns the statement, signed if the private key is here."""
    folder, disk = home or key_home(), files or Files()
    text = f"{REVOCATION}\n{key.text()}\n{' '.join(reason.split()) or 'no reason given'}\n"
    own = [
        signer
        for path in sorted(folder.glob("*.key"))
        if (signer := load_signer(path.stem, home=folder)).public().raw == key.raw
    ]
    statement = sign_note(text, [(key.name, own[0])]).decode() if own else text
    return take_revocation(statement, home=folder, files=disk)


def take_revocation(text: str, *, home: Path | None = None, files: Files | None = None) -> str:
    """Keep a revocation that its owner published. Returns it. Raises `EvidenceError` if it does not hold."""
    folder = home or key_home()
    found = parse_revocation(text)
    with host_errors("keep a key revocation", folder):
        (files or Files()).replace_file(folder / "revoked" / f"{_label(found.key)}.note", text.encode())
    return text


def key_ring(*, home: Path | None = None) -> KeyRing:
    """Return the user's key ring. A file that cannot be read raises: leaving it out would change what is trusted."""
    folder = home or key_home()
    revoked = tuple(_parsed(folder / "revoked", "*.note", parse_revocation))
    own = [load_signer(path.stem, home=folder).public() for path in sorted(folder.glob("*.key"))]
    others = _parsed(folder / "trusted", "*.pub", lambda text: parse_verifier_key(text.strip()))
    gone = {one.key.raw for one in revoked}
    return KeyRing(tuple(key for key in (*own, *others) if key.raw not in gone), revoked)


def trusted_keys(*, home: Path | None = None) -> tuple[VerifierKey, ...]:
    """Return the keys that this user trusts: see `key_ring`."""
    return key_ring(home=home).trusted


def own_signer(name: str = DEFAULT_NAME, *, home: Path | None = None) -> Signer:
    """Return the signer with this name, made on first use. Raises `HostError` if it was revoked."""
    signer = load_signer(name, home=home)
    if any(one.key.raw == signer.public().raw for one in key_ring(home=home).revoked):
        hint = f"`assay key rotate {name}` makes its successor"
        raise HostError(f"the key {name} was revoked: nothing may be signed with it", where=name, hint=hint)
    return signer


def rotations_to(key: VerifierKey, *, home: Path | None = None) -> list[Rotation]:
    """Return the rotations that led to a key, oldest first."""
    known = _parsed((home or key_home()) / "rotations", "*.note", parse_rotation)
    found: list[Rotation] = []
    raw = key.raw
    while before := [one for one in known if one.new.raw == raw and one not in found]:
        found.insert(0, before[0])
        raw = before[0].old.raw
    return found


def trusted_closure(trusted: Iterable[bytes], rotations: Sequence[Rotation], revoked: Iterable[bytes]) -> set[bytes]:
    """Return the keys that are trusted directly or as the successor of a trusted one, revoked ones aside."""
    gone = set(revoked)
    found = set(trusted) - gone
    for _ in rotations:
        found |= {one.new.raw for one in rotations if one.old.raw in found} - gone
    return found


def _parsed(folder: Path, pattern: str, parse: Callable[[str], T]) -> list[T]:
    found = []
    for path in sorted(folder.glob(pattern)):
        with host_errors("read the key ring", path):
            text = path.read_text("utf-8", errors="replace")
        try:
            found.append(parse(text))
        except EvidenceError as error:
            raise EvidenceError(str(error), where=str(path), hint="mend or remove this file") from error
    return found


def _label(key: VerifierKey) -> str:
    return hashlib.sha256(key.raw).hexdigest()[:16]
