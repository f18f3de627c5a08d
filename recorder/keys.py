r"""Ed25519 keys: where they lie, how they are written, who is trusted.

Text forms follow C2SP signed-note (the format of golang.org/x/mod/sumdb/note), so that other tools read them:

* verifier key ``<name>+<hash>+<base64(0x01 || public key)>``, with
  ``hash = hex(SHA-256(name || "\n" || 0x01 || public key)[:4])``
* signer key ``PRIVATE+KEY+<name>+<hash>+<base64(0x01 || seed)>``

The private key stays in the user's key folder, mode 0600, and never enters a store. A store holds the public key
under the store's own origin as name, since a checkpoint's key name should be its origin (C2SP tlog-checkpoint).
Trust is therefore a matter of the 32 key bytes, not of names.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocols.errors import EvidenceError, HostError
from recorder.files import Files, host_errors

DEFAULT_NAME: Final = "default"
_ED25519: Final = b"\x01"
_KEY_BYTES: Final = 32
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PRIVATE_PREFIX: Final = "PRIVATE+KEY+"
_TIGHT_MODE: Final = 0o600


@dataclass(frozen=True, kw_only=True)
class VerifierKey:
    """A named Ed25519 public key; ``raw`` holds its 32 bytes."""

    name: str
    raw: bytes

    @property
    def key_hash(self) -> bytes:
        """Return the 4 bytes that name this key in a signature line."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.raw).digest()[:4]

    def text(self) -> str:
        """Return the verifier key as one line without newline."""
        return f"{self.name}+{self.key_hash.hex()}+{base64.b64encode(_ED25519 + self.raw).decode()}"

    def is_signature(self, signature: bytes, message: bytes) -> bool:
        """Whether this key made ``signature`` over ``message``."""
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class Signer:
    """A private key; ``name`` is the name of its file, ``seed`` its 32 secret bytes (kept out of ``repr``)."""

    name: str
    seed: bytes

    def __repr__(self) -> str:
        return f"Signer(name={self.name!r})"

    def public(self, name: str | None = None) -> VerifierKey:
        """Return the public key, under another name if one is given."""
        return VerifierKey(name=name or self.name, raw=self._private().public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of ``message``."""
        return self._private().sign(message)

    def text(self) -> str:
        """Return the signer key as one line without newline. Secret."""
        hash_text = self.public().key_hash.hex()
        return f"{_PRIVATE_PREFIX}{self.name}+{hash_text}+{base64.b64encode(_ED25519 + self.seed).decode()}"

    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)


def is_key_name(name: str) -> bool:
    """Whether a name may stand in a note: not empty, no white space, no plus."""
    return bool(name) and "+" not in name and not any(mark.isspace() for mark in name)


def _parse(text: str, what: str) -> tuple[str, str, bytes]:
    parts = text.split("+", 2)
    if len(parts) != 3 or not is_key_name(parts[0]) or not re.fullmatch(r"[0-9a-f]{8}", parts[1]):
        raise EvidenceError(f"this is no {what}", hint="its form is name+hash+base64")
    try:
        raw = base64.b64decode(parts[2], validate=True)
    except binascii.Error as error:
        raise EvidenceError(f"the base64 of this {what} is broken", where=parts[0]) from error
    if base64.b64encode(raw).decode() != parts[2] or raw[:1] != _ED25519 or len(raw) != 1 + _KEY_BYTES:
        raise EvidenceError(f"this {what} is not an Ed25519 key", where=parts[0])
    return parts[0], parts[1], raw[1:]


def parse_verifier_key(text: str) -> VerifierKey:
    """Read a verifier key line. Raises `EvidenceError` if its form or its hash is wrong."""
    name, hash_text, raw = _parse(text, "verifier key")
    key = VerifierKey(name=name, raw=raw)
    if key.key_hash.hex() != hash_text:
        raise EvidenceError("the hash in this verifier key does not fit its name and key", where=name)
    return key


def parse_signer(text: str) -> Signer:
    """Read a signer key line. Raises `EvidenceError` if its form or its hash is wrong."""
    if not text.startswith(_PRIVATE_PREFIX):
        raise EvidenceError("this is no signer key", hint=f"its form begins with {_PRIVATE_PREFIX}")
    name, hash_text, seed = _parse(text.removeprefix(_PRIVATE_PREFIX), "signer key")
    signer = Signer(name=name, seed=seed)
    if signer.public().key_hash.hex() != hash_text:
        raise EvidenceError("the hash in this signer key does not fit its name and key", where=name)
    return signer


def key_home(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of the user's keys: ``ASSAY_KEY_HOME``, else ``assay/keys`` in the XDG configuration folder."""
    variables = os.environ if environment is None else environment
    if chosen := variables.get("ASSAY_KEY_HOME"):
        return Path(chosen)
    configuration = variables.get("XDG_CONFIG_HOME")
    return (Path(configuration) if configuration else Path.home() / ".config") / "assay" / "keys"


def load_signer(name: str = DEFAULT_NAME, *, home: Path | None = None, files: Files | None = None) -> Signer:
    """Return the signer with this name, made on first use.

    Raises `HostError` if the file can be read by others or cannot be made, `EvidenceError` if its text is broken.
    """
    if not _FILE_NAME.fullmatch(name):
        raise HostError(f"{name!r} is no name for a key", hint="use letters, digits, dot, dash and underscore")
    path = (home or key_home()) / f"{name}.key"
    if not path.exists():
        return _make_signer(name, path, files or Files())
    with host_errors("read the private key", path):
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text("ascii", errors="replace").strip()
    if mode & 0o077:
        raise HostError(
            f"others may read this private key (mode {mode:04o})",
            where=str(path),
            hint=f"chmod 600 {path}, and make a new key if somebody may have copied it",
        )
    return parse_signer(text)


def _make_signer(name: str, path: Path, files: Files) -> Signer:
    signer = Signer(name=name, seed=Ed25519PrivateKey.generate().private_bytes_raw())
    write_signer(signer, path, files)
    return signer


def write_signer(signer: Signer, path: Path, files: Files) -> None:
    """Write a private key, readable by its owner only. Raises `HostError` by the disk."""
    with host_errors("make a private key", path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.replace_file(path, (signer.text() + "\n").encode(), mode=_TIGHT_MODE)
