"""Bundles of other stores that a store keeps: each unpacked below ``imports/``, named by a ledger entry.

The entry names the hash of the bundle's manifest, and the manifest every file by hash: so the ledger of this store
seals the imported one, which stays what it was, ledger, signatures and redactions included. An imported folder is a
store for every command that only reads (``--store STORE/imports/NAME``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from protocols.errors import EvidenceError
from recorder.archive import is_safe_name
from recorder.ledger import Entry

FOLDER: Final = "imports"
KIND: Final = "bundle.imported"


class Import(NamedTuple):
    """One imported bundle. ``folder`` lies below the store; ``entries`` and ``root`` are the head of its ledger."""

    seq: int
    folder: str
    store: str
    entries: int
    root: str
    manifest_sha256: str

    @property
    def head(self) -> str:
        """Return its head in the form that an audit takes."""
        return f"{self.entries}:{self.root}"


def import_folders(entries: Iterable[Entry]) -> list[Import]:
    """Return every imported bundle, oldest first. Raises `EvidenceError` for a name that could leave the store."""
    found: list[Import] = []
    for entry in entries:
        if entry.kind != KIND:
            continue
        name = entry.text("name")
        if not is_safe_name(name) or "/" in name:
            raise EvidenceError("payload.name could leave the store", where=f"ledger entry {entry.seq} ({KIND})")
        if any(one.folder == f"{FOLDER}/{name}" for one in found):
            raise EvidenceError("payload.name names an earlier import", where=f"ledger entry {entry.seq} ({KIND})")
        members = (entry.text("store"), entry.number("entries"), entry.text("root"), entry.text("manifest_sha256"))
        found.append(Import(entry.seq, f"{FOLDER}/{name}", *members))
    return found
