"""The manifest of a bundle: which ledger it is, every file with size and hash, and the blobs that were left out.

RFC 8785 JSON: ``{"entries","files":[{"bytes","name","sha256"}],"format","left_out":[sha256],"root","store"}``. Every
member can be checked against the ledger and the files, so that nothing in it has to be believed. The manifest does
not list itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from protocols.canonical import canonical_bytes
from protocols.errors import EvidenceError
from recorder.archive import LARGEST_BYTES, is_safe_name
from recorder.blobs import SALT_BYTES
from recorder.files import read_chunks
from recorder.ledger import Entry

FORMAT: Final = "assay.bundle.v1"
MANIFEST: Final = "manifest.json"
VERIFIER: Final = "verify.py"
LIMIT_BYTES: Final = 64 << 20
"""Largest manifest that is read: about 400,000 files."""
_HEX: Final = re.compile(r"[0-9a-f]{64}")


class BundleFile(NamedTuple):
    """One file of a bundle by its bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a bundle holds. ``store`` is the origin of its ledger; ``root`` the Merkle root over ``entries`` lines."""

    store: str
    entries: int
    root: str
    files: tuple[BundleFile, ...]
    left_out: frozenset[str]

    def encode(self) -> bytes:
        """Return its bytes. Raises `EvidenceError` if they are more than a reader takes."""
        data = canonical_bytes(
            {
                "format": FORMAT,
                "store": self.store,
                "entries": self.entries,
                "root": self.root,
                "files": [{"name": file.name, "bytes": file.size, "sha256": file.sha256} for file in self.files],
                "left_out": sorted(self.left_out),
            }
        )
        if len(data) > LIMIT_BYTES:
            raise EvidenceError(f"the manifest would have {len(data)} bytes; at most {LIMIT_BYTES} are taken")
        return data

    def total_bytes(self) -> int:
        """Return the size of all files together, the manifest aside."""
        return sum(file.size for file in self.files)


def parse_manifest(data: bytes) -> Manifest:
    """Read a manifest. Raises `EvidenceError` that names the member that is not as this format demands."""
    if len(data) > LIMIT_BYTES:
        raise EvidenceError(f"the manifest has {len(data)} bytes; at most {LIMIT_BYTES} are taken", where=MANIFEST)
    try:
        value = json.loads(data.decode("utf-8"))
        is_canonical = isinstance(value, dict) and canonical_bytes(value) == data
    except (ValueError, RecursionError, EvidenceError) as error:
        raise EvidenceError("the manifest is no canonical JSON", where=MANIFEST) from error
    if not is_canonical or value.get("format") != FORMAT:
        raise EvidenceError(f"the manifest is not of the form {FORMAT}", where=MANIFEST)
    files, left_out = value.get("files"), value.get("left_out")
    members = (
        ("store", isinstance(value.get("store"), str)),
        ("entries", _is_count(value.get("entries"))),
        ("root", _is_hash(value.get("root"))),
        ("files", isinstance(files, list) and all(_is_file(item) for item in files)),
        ("left_out", isinstance(left_out, list) and all(_is_hash(item) for item in left_out)),
    )
    for member, is_valid in members:
        if not is_valid:
            raise EvidenceError(f"{member} has the wrong form", where=f"{MANIFEST}: {member}")
    names = [item["name"] for item in files]
    if names != sorted(set(names)) or MANIFEST in names or left_out != sorted(set(left_out)):
        raise EvidenceError("files or left_out are not sorted, or repeat", where=f"{MANIFEST}: files")
    folders = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents}
    if clash := sorted(folders.intersection(names)):
        raise EvidenceError(f"{clash[0]} is a file and a folder", where=f"{MANIFEST}: files")
    return Manifest(
        store=value["store"],
        entries=value["entries"],
        root=value["root"],
        files=tuple(BundleFile(item["name"], item["bytes"], item["sha256"]) for item in files),
        left_out=frozenset(left_out),
    )


def read_manifest(root: Path) -> Manifest | None:
    """Return the manifest of an unpacked bundle, None where there is none. Raises `EvidenceError` if it is broken."""
    path = root / MANIFEST
    if not path.is_file() or path.is_symlink():
        return None
    if path.stat().st_size > LIMIT_BYTES:
        raise EvidenceError(f"the manifest is larger than {LIMIT_BYTES} bytes", where=MANIFEST)
    return parse_manifest(path.read_bytes())


def blob_file(entry: Entry) -> Iterator[BundleFile]:
    """Yield each blob of an entry as a bundle holds it: salt and content, named by the hash of both."""
    for item in entry.blobs():
        sha256 = str(item["sha256"])
        if not _is_hash(sha256) or not _is_count(item["bytes"]):
            raise EvidenceError("a blob is named in the wrong form", where=f"ledger entry {entry.seq} ({entry.kind})")
        yield BundleFile(f"blobs/sha256/{sha256[:2]}/{sha256[2:]}", int(str(item["bytes"])) + SALT_BYTES, sha256)


def described(name: str, content: bytes) -> BundleFile:
    """Return the line of a file with this content."""
    return BundleFile(name, len(content), hashlib.sha256(content).hexdigest())


def file_sha256(path: Path) -> str:
    """Return the hash of a file, read in pieces."""
    digest = hashlib.sha256()
    for piece in read_chunks(path):
        digest.update(piece)
    return digest.hexdigest()


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and _HEX.fullmatch(value) is not None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_BYTES


def _is_file(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"name", "bytes", "sha256"}
        and isinstance(value["name"], str)
        and is_safe_name(value["name"])
        and _is_count(value["bytes"])
        and _is_hash(value["sha256"])
    )
