"""Signed checkpoints of the ledger: C2SP signed-note and tlog-checkpoint, Ed25519.

A note is text that ends with a newline, an empty line, and signature lines
``U+2014 SP <key name> SP base64(key hash 4 bytes || signature 64 bytes) LF``. The text, with its last newline and
without the empty line, is what is signed. A checkpoint's text is three lines: origin ``assay/<store id>``, the
number of entries, and the base64 of the RFC 6962 root over them.
Sources: C2SP signed-note 1.0 and tlog-checkpoint 1.0.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocols.errors import EvidenceError
from recorder.keys import Signer, VerifierKey, is_key_name

_DASH: Final = "\u2014 "
_SIZE: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_ROOT_BYTES: Final = 32
_HASH_BYTES: Final = 4
_SIGNATURE_LIMIT: Final = 100  # as sumdb/note: nobody needs more, and it bounds the work on hostile input


@dataclass(frozen=True, kw_only=True)
class NoteSignature:
    """One signature line, not yet verified."""

    name: str
    key_hash: bytes
    signature: bytes


@dataclass(frozen=True, kw_only=True)
class Note:
    """A parsed note, not yet verified."""

    text: str
    signatures: tuple[NoteSignature, ...]

    def is_signed_by(self, key: VerifierKey) -> bool:
        """Whether ``key`` signed this text. Every line that claims to be of this key must hold."""
        lines = [line for line in self.signatures if (line.name, line.key_hash) == (key.name, key.key_hash)]
        message = self.text.encode()
        return bool(lines) and all(key.is_signature(line.signature, message) for line in lines)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Head of a ledger: the first ``size`` entries have the Merkle root ``root``."""

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        """Return the text that is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


def sign_note(text: str, keys: Sequence[tuple[str, Signer]]) -> bytes:
    """Make a note with one signature line for each ``(key name, signer)``.

    Raises ValueError if the text does not end with a newline or a key name may not stand in a note.
    """
    if not text.endswith("\n"):
        raise ValueError("the text of a note ends with a newline")
    lines: list[str] = []
    for name, signer in keys:
        if not is_key_name(name):
            raise ValueError(f"{name!r} cannot name a key in a note")
        blob = signer.public(name).key_hash + signer.sign(text.encode())
        lines.append(f"{_DASH}{name} {base64.b64encode(blob).decode()}\n")
    return (text + "\n" + "".join(lines)).encode()


def parse_note(data: bytes) -> Note:
    """Split a note into text and signatures. Raises `EvidenceError` where the form is broken."""
    try:
        whole = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EvidenceError("the note is not UTF-8") from error
    if any(ord(mark) < ord(" ") and mark != "\n" for mark in whole):
        raise EvidenceError("the note holds a control character")
    text, separator, tail = whole.rpartition("\n\n")
    if not separator or not tail or not tail.endswith("\n"):
        raise EvidenceError("the note has no signatures behind an empty line")
    lines = tail[:-1].split("\n")
    if len(lines) > _SIGNATURE_LIMIT:
        raise EvidenceError(f"the note has more than {_SIGNATURE_LIMIT} signatures")
    return Note(text=text + "\n", signatures=tuple(_parse_line(line) for line in lines))


def _parse_line(line: str) -> NoteSignature:
    parts = line.removeprefix(_DASH).split(" ")
    if not line.startswith(_DASH) or len(parts) != 2 or not is_key_name(parts[0]):
        raise EvidenceError("a signature line of the note is malformed")
    try:
        blob = base64.b64decode(parts[1], validate=True)
    except binascii.Error as error:
        raise EvidenceError("the base64 of a signature line is broken", where=parts[0]) from error
    if base64.b64encode(blob).decode() != parts[1] or len(blob) <= _HASH_BYTES:
        raise EvidenceError("the base64 of a signature line is not in its one canonical form", where=parts[0])
    return NoteSignature(name=parts[0], key_hash=blob[:_HASH_BYTES], signature=blob[_HASH_BYTES:])


def parse_checkpoint(text: str) -> Checkpoint:
    """Read a checkpoint's text. Extension lines are refused: we write none, and nothing would check them."""
    lines = text.split("\n")
    if len(lines) != 4 or lines[3] or not lines[0]:
        raise EvidenceError("a checkpoint is three lines: origin, size, root")
    if not _SIZE.fullmatch(lines[1]):
        raise EvidenceError(f"the size of the checkpoint is no plain number: {lines[1]!r}")
    try:
        root = base64.b64decode(lines[2], validate=True)
    except binascii.Error as error:
        raise EvidenceError("the root of the checkpoint is not base64") from error
    if len(root) != _ROOT_BYTES or base64.b64encode(root).decode() != lines[2]:
        raise EvidenceError("the root of the checkpoint is not the canonical base64 of 32 bytes")
    return Checkpoint(origin=lines[0], size=int(lines[1]), root=root)


def sign_checkpoint(checkpoint: Checkpoint, signer: Signer) -> bytes:
    """Return the signed note of a checkpoint. The key stands under the origin's name."""
    return sign_note(checkpoint.text(), [(checkpoint.origin, signer)])
