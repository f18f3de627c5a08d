"""Takes a bundle into a store: unpacked beside what is there, audited, and put on record.

1. The archive is unpacked below ``imports/``; `bundle` refuses everything that could leave that folder.
2. It is audited by itself. One that does not hold is removed again and never on record.
3. Unless something was left out, its database is derived, so that every command that reads works on it.
4. One ledger entry names the hash of its manifest, and a checkpoint seals that entry.

A crash before step 4 leaves a folder that no entry names: the next writer removes it (`recovery`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from protocols.canonical import JsonValue
from protocols.errors import EvidenceError
from recorder.audit import AuditResult, Level, audit_store
from recorder.bundle import opened_evidence, unpack_bundle
from recorder.imports import FOLDER, KIND, Import, import_folders
from recorder.keys import VerifierKey
from recorder.manifest import MANIFEST, Manifest, read_manifest
from recorder.spool import remove_spool
from recorder.store import Store, rebuild_database


@dataclass(frozen=True, kw_only=True)
class Imported:
    """An imported bundle: where it lies below the store, and the audit that it passed."""

    folder: str
    manifest: Manifest
    audit: AuditResult
    was_here: bool
    """Whether this very bundle had been imported before: then nothing was done."""


def import_bundle(
    store: Store, archive: Path, *, level: Level = "recompute", trusted_keys: Sequence[VerifierKey] = ()
) -> Imported:
    """Import a bundle (a file) into an open store.

    Raises `EvidenceError` where the bundle does not hold or comes from this very store, `HostError` by the disk.
    """
    journal = store.writer
    with opened_evidence(archive) as looked_at:
        manifest = read_manifest(looked_at)
        if manifest is None:
            raise EvidenceError("this is no bundle", where=str(archive), hint="`assay bundle` makes one of a store")
        digest = hashlib.sha256((looked_at / MANIFEST).read_bytes()).hexdigest()
        if manifest.store == journal.origin:
            raise EvidenceError("this bundle comes from this very store", where=str(archive))
        known = import_folders(journal.ledger.entries())
        result = audit_store(looked_at, level=level, trusted_keys=trusted_keys)
        if not result.is_sound:
            first = result.findings[0]
            raise EvidenceError(
                f"the bundle does not hold: {first.place}: {first.message}",
                where=str(archive),
                hint=f"`assay audit {archive}` names everything that does not hold",
            )
    for one in known:
        if one.manifest_sha256 == digest:
            return Imported(folder=one.folder, manifest=manifest, audit=result, was_here=True)
    name = _free_name(manifest, known)
    folder = journal.root / FOLDER / name
    with journal.step():
        try:
            unpack_bundle(archive, folder)
            _check_same(folder, digest, archive)
            if not manifest.left_out:
                rebuild_database(folder)
        except BaseException:
            remove_spool(folder, journal.root, journal.files)
            raise
        payload: dict[str, JsonValue] = {
            "name": name,
            "store": manifest.store,
            "entries": manifest.entries,
            "root": manifest.root,
            "manifest_sha256": digest,
            "left_out_count": len(manifest.left_out),
            "trust": result.trust,
        }
        journal.record(KIND, payload)
        journal.checkpoint()
    return Imported(folder=f"{FOLDER}/{name}", manifest=manifest, audit=result, was_here=False)


def _check_same(folder: Path, digest: str, archive: Path) -> None:
    """Raise `EvidenceError` unless what lies in the folder is the bundle that was audited."""
    if hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest() != digest:
        raise EvidenceError("the bundle changed while it was imported", where=str(archive))


def _free_name(manifest: Manifest, known: Sequence[Import]) -> str:
    name = f"{manifest.store.rpartition('/')[2]}-{manifest.entries}"
    taken = {one.folder for one in known}
    number = 1
    while f"{FOLDER}/{name if number == 1 else f'{name}-{number}'}" in taken:
        number += 1
    return name if number == 1 else f"{name}-{number}"
