"""What the next writer does when the last one did not close the store: finish, note, never drop.

1. The database is brought up to the ledger.
2. Torn ledger lines that were moved aside, blobs that nothing names, and temporary files are put on record in one
   ``store.recovered`` entry; blobs and torn lines stay, temporary files (unfinished by definition) go.
   A bundle that was not imported to its end is a temporary file too: its entry would have come last.
3. Spools of sealed loads are removed. Spools of open loads stay: `seal_abandoned` makes them partial evidence.
4. Copies that are missing, or that show an older recorded version, are written again. A copy with any other content
   is left for the audit to name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from protocols.canonical import JsonValue, sha256_hex
from recorder.blobs import TEMPORARY_PREFIX, BlobReference, BlobStore
from recorder.campaign_state import read_campaigns
from recorder.files import host_errors
from recorder.imports import FOLDER, import_folders
from recorder.journal import Journal, copies_of
from recorder.ledger import Entry
from recorder.spool import SealedFile, remove_spool, spool_files

TORN_PREFIX = "ledger.torn-"


def recover(journal: Journal) -> None:
    """Bring a store that was left open back in order. Raises `HostError` by the disk, `EvidenceError` by the files."""
    journal.catch_up()
    torn = unrecorded_torn_files(journal.root, journal.ledger.entries())
    temporary = temporary_files(journal.root)
    orphans = orphan_blobs(journal.blobs, journal.ledger.entries())
    unfinished = unfinished_imports(journal.root, journal.ledger.entries())
    if torn or temporary or orphans or unfinished:
        payload: dict[str, JsonValue] = {
            "torn_count": len(torn),
            "torn": [_torn_payload(path) for path in torn],
            "temporary_count": len(temporary) + len(unfinished),
        }
        sealed = [SealedFile("", "orphan", blob) for blob in orphans]
        journal.record("store.recovered", payload, blobs=sealed)
    with host_errors("remove a temporary file", journal.root):
        for path in temporary:
            journal.files.unlink(path)
    for folder in unfinished:
        remove_spool(folder, journal.root, journal.files)
    _remove_sealed_spools(journal)
    _restore_copies(journal)


def _torn_payload(path: Path) -> JsonValue:
    data = path.read_bytes()
    return {"file": path.name, "bytes": len(data), "sha256": sha256_hex(data)}


def recorded_torn_files(entries: Iterable[Entry]) -> dict[str, str]:
    """Return name and SHA-256 of every torn ledger line that is on record."""
    found: dict[str, str] = {}
    for entry in entries:
        items = entry.payload.get("torn") if entry.kind == "store.recovered" else None
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict):
                found[str(item.get("file"))] = str(item.get("sha256"))
    return found


def unrecorded_torn_files(root: Path, entries: tuple[Entry, ...]) -> list[Path]:
    """Return the torn ledger lines that were moved aside and not yet put on record."""
    recorded = recorded_torn_files(entries)
    return [path for path in sorted(root.glob(f"{TORN_PREFIX}*")) if path.name not in recorded]


def temporary_files(root: Path) -> list[Path]:
    """Return the files that a killed writer did not finish, those in the spool aside."""
    spool = root / "spool"
    return [path for path in sorted(root.rglob(f"{TEMPORARY_PREFIX}*")) if spool not in path.parents]


def unfinished_imports(root: Path, entries: tuple[Entry, ...]) -> list[Path]:
    """Return the folders of imported bundles that no entry names."""
    named, folder = {one.folder for one in import_folders(entries)}, root / FOLDER
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in found if path.is_dir() and f"{FOLDER}/{path.name}" not in named]


def referenced_blobs(entries: Iterable[Entry]) -> set[str]:
    """Return the name of every blob that an entry names."""
    return {str(item.get("sha256")) for entry in entries for item in entry.blobs()}


def orphan_blobs(blobs: BlobStore, entries: tuple[Entry, ...]) -> list[BlobReference]:
    """Return the sound blobs that no entry names: stored, and then the writer was killed."""
    named = referenced_blobs(entries)
    found = [(name, blobs.digest(name)) for name in blobs.names() if name not in named]
    return [blob for name, blob in found if blob is not None and blob.sha256 == name]


def _remove_sealed_spools(journal: Journal) -> None:
    root = journal.root / "spool"
    for state in read_campaigns(journal.ledger.entries()).values():
        for load in state.loads.values():
            folder = root / load.load_id
            if load.sealed is None or not folder.is_dir():
                continue
            sealed = {str(item.get("name")) for item in load.sealed.blobs()}
            left = {name for name, path in spool_files(folder) if not path.name.startswith(TEMPORARY_PREFIX)}
            if left <= sealed:
                remove_spool(folder, root, journal.files)


def _restore_copies(journal: Journal) -> None:
    newest: dict[str, bytes] = {}
    older: dict[str, set[str]] = {}
    for entry in journal.ledger.entries():
        for name, content in copies_of(entry, journal.blobs).items():
            if name in newest:
                older.setdefault(name, set()).add(hashlib.sha256(newest[name]).hexdigest())
            newest[name] = content
    for name, content in newest.items():
        path = journal.root / name
        if not path.exists() or sha256_hex(path.read_bytes()) in older.get(name, set()):
            journal.write_copies({name: content})
