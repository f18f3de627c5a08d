"""Checks of bundles: the manifest of the bundle that is audited, and the bundles that a store imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from protocols.errors import EvidenceError
from recorder.audit_context import Audit, AuditResult
from recorder.imports import import_folders
from recorder.manifest import MANIFEST, VERIFIER, Manifest, file_sha256, read_manifest
from recorder.recovery import referenced_blobs
from recorder.verify import __file__ as verifier_file

AuditFolder = Callable[[Path, str], AuditResult]
"""Audit the folder of an imported bundle whose ledger must continue this head."""


def load_manifest(audit: Audit) -> None:
    """Read the manifest before anything else: it says which blobs were left out. One that is broken ends the audit."""
    try:
        audit.manifest = read_manifest(audit.root)
    except EvidenceError as error:
        audit.find(error.where or MANIFEST, message=str(error))
        audit.is_unreadable = True
        return
    if audit.manifest is None:
        return
    audit.left_out = audit.manifest.left_out
    if not (audit.root / "assay.sqlite").is_file():
        audit.has_no_database = True
        audit.open_points.append("a bundle has no database: the rows are derived from its bytes when it is imported")
    if audit.left_out:
        audit.open_points.append(
            f"{len(audit.left_out)} blobs were left out on purpose: their hashes are sealed, their content is unproven"
        )


def check_manifest(audit: Audit) -> None:
    """(16) The manifest of a bundle is of this ledger, and names exactly the files that are there."""
    manifest = audit.manifest
    if manifest is None:
        if (audit.root / VERIFIER).exists():
            message = f"the bundle has lost it ({VERIFIER} lies here): what was left out on purpose is not known"
            audit.find(MANIFEST, message=message)
        return
    pairs: tuple[tuple[str, object, object], ...] = (
        ("store", audit.entries[0].text("origin"), manifest.store),
        ("entries", len(audit.entries), manifest.entries),
        ("root", audit.tree.root().hex(), manifest.root),
    )
    for member, expected, found in pairs:
        audit.items += 1
        if expected != found:
            message = "the manifest is not of this ledger"
            audit.find(f"{MANIFEST}: {member}", message=message, expected=expected, found=found)
    named = referenced_blobs(audit.entries) | {one.manifest_sha256 for one in import_folders(audit.entries)}
    for sha256 in sorted(manifest.left_out - named):
        audit.find(f"{MANIFEST}: left_out", message="no ledger entry names this blob", found=sha256)
    listed = {file.name for file in manifest.files}
    for name in sorted((audit.expected_files | {"ledger.jsonl", VERIFIER}) ^ listed):
        audit.find(f"{MANIFEST}: files", message=f"ledger and manifest differ in {name}")
    _check_listed(audit, manifest)
    own = file_sha256(Path(verifier_file))
    if any(file.name == VERIFIER and file.sha256 != own for file in manifest.files):
        audit.open_points.append(
            f"{VERIFIER} is not the one of this Assay: whoever made the bundle chose it; run one that you trust"
        )


def _check_listed(audit: Audit, manifest: Manifest) -> None:
    """Compare size and hash of each listed file; what has a hash in the ledger is hashed by the checks of that."""
    for file in manifest.files:
        path = audit.root / file.name
        audit.items += 1
        if not path.is_file():
            if file.name == VERIFIER:
                audit.find(file.name, message="the file is missing")
            continue  # named by check 6
        size = path.stat().st_size
        if size != file.size:
            audit.find(file.name, message="not the size that the manifest names", expected=file.size, found=size)
        elif not file.name.startswith(("blobs/", "imports/")) and (found := file_sha256(path)) != file.sha256:
            audit.find(file.name, message="not the file of the manifest", expected=file.sha256, found=found)
        elif file.name.startswith("blobs/") and file.name.removeprefix("blobs/sha256/").replace("/", "") != file.sha256:
            audit.find(f"{MANIFEST}: files", message=f"wrong hash of {file.name}", found=file.sha256)


def check_imports(audit: Audit, audit_folder: AuditFolder) -> None:
    """(19) Each imported bundle is the one that its entry names, and holds by itself."""
    for one in import_folders(audit.entries):
        audit.items += 1
        folder = audit.root / one.folder
        if one.manifest_sha256 in audit.left_out:
            continue
        if not (folder / MANIFEST).is_file():
            audit.find(one.folder, message=f"the bundle that ledger entry {one.seq} imported is missing")
            continue
        found = file_sha256(folder / MANIFEST)
        if found != one.manifest_sha256:
            place, message = f"{one.folder}/{MANIFEST}", "not the manifest that was imported"
            audit.find(place, message=message, expected=one.manifest_sha256, found=found)
        result = audit_folder(folder, one.head)
        for finding in result.findings:
            place, message = f"{one.folder}: {finding.place}", f"{finding.message} [{finding.check}]"
            audit.find(place, message=message, expected=finding.expected, found=finding.found)
        audit.notes += [f"{one.folder}: {note}" for note in result.notes]
    audit.counts["imports"] = audit.items


def import_prefixes(audit: Audit) -> tuple[str, ...]:
    """Return the folders whose files belong to imported bundles, each with a slash behind it."""
    return tuple(f"{one.folder}/" for one in import_folders(audit.entries))
