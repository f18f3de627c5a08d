"""How an audit is shown: the numbered checks, what was found, how far it can be trusted, what stays unproven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from harness.console import Console, table
from protocols.errors import EvidenceError, HostError, UsageError
from protocols.lock import parse_lock
from protocols.plain_text import one_line
from recorder.audit import AuditResult, Level
from recorder.bundle import SUFFIX
from recorder.key_ring import key_ring
from recorder.keys import VerifierKey, parse_verifier_key
from recorder.presence import is_like_store, no_ledger

DESCRIPTIONS: Final = {
    "entries": "every ledger line is an entry in canonical form",
    "chain": "every entry names the hash of the one before it",
    "locks": "every entry of a campaign carries its lock",
    "checkpoints": "every checkpoint is signed over all lines before it",
    "head": "the ledger continues the pinned head",
    "files": "every file is named by the ledger, none is missing",
    "order": "loads follow the locked schedule",
    "blobs": "every blob has its hash and size",
    "copies": "lock, protocol, reports, notes and keys are as recorded",
    "database": "the database is whole and of this schema",
    "rows": "every row is what ledger and blobs give",
    "promises": "what the lock names by hash is what was recorded",
    "requests": "every measured request is the locked one",
    "gates": "the gates, evaluated again from raw bytes, give what is recorded",
    "verdict": "their combination is the recorded verdict",
    "manifest": "the manifest of a bundle is of this ledger and these files",
    "reviews": "reviews link to a verdict and are signed by their key",
    "against": "what was locked is the lock that was kept elsewhere",
    "imports": "imported bundles are those of the ledger, and hold",
    "telemetry": "decoded readings are what the kept bytes give again",
}


class Evidence(NamedTuple):
    """Where evidence lies, and the campaign that was named in its place."""

    place: Path
    campaign: str | None


def evidence_place(store: Path, text: str | None) -> Evidence:
    """Tell a bundle or a folder with a ledger from the name of a campaign in the store.

    UsageError where neither is there: nothing was looked at, so nothing is said about evidence.
    """
    if text is not None:
        path = Path(text)
        if path.is_file() or is_like_store(path):
            return Evidence(path, None)
        if path.is_dir() or "/" in text or text.endswith(SUFFIX):
            raise UsageError("there is no such bundle or store", where=text)
    if not is_like_store(store):
        raise no_ledger(store)
    return Evidence(store, text)


def read_lock(path: Path) -> bytes:
    """Return the bytes of a lock file, checked to be one."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HostError(f"the lock cannot be read: {error.strerror}", where=str(path)) from None
    return parse_lock(data).lock_bytes()


class Trusted(NamedTuple):
    """Keys that an audit trusts, and those that it must not trust."""

    trusted_keys: tuple[VerifierKey, ...]
    revoked_keys: tuple[VerifierKey, ...]


def read_keys(given: Sequence[str]) -> Trusted:
    """Return the trusted keys: those given (texts or files), else the user's key ring; and what the user revoked."""
    ring = key_ring()
    revoked = tuple(one.key for one in ring.revoked)
    if not given:
        return Trusted(ring.trusted, revoked)
    keys = []
    for text in given:
        path = Path(text)
        try:
            content = path.read_text("ascii", errors="replace").strip() if path.is_file() else text
        except OSError as error:
            raise HostError(f"the key cannot be read: {error.strerror}", where=text) from None
        keys.append(read_key(content))
    return Trusted(tuple(keys), revoked)


def read_key(text: str) -> VerifierKey:
    """Return the public key that the command line gives. Raises `UsageError` where it is none."""
    try:
        return parse_verifier_key(text)
    except EvidenceError as error:
        raise UsageError(str(error), where=error.where, hint=error.hint or "`assay key show` prints one") from None


def audit_document(result: AuditResult, level: Level) -> dict[str, Any]:
    """Return an audit as plain JSON values."""
    return {
        "is_sound": result.is_sound,
        "is_partial": result.is_partial,
        "trust": result.trust,
        "level": level,
        "checks": [asdict(check) | {"what": DESCRIPTIONS[check.label]} for check in result.checks],
        "findings": [asdict(finding) for finding in result.findings],
        "notes": list(result.notes),
        "open_points": list(result.open_points),
        "counts": dict(result.counts),
        "head": result.head,
        "consistency_proof": [one.hex() for one in result.consistency_proof],
    }


def show_audit(console: Console, result: AuditResult, level: Level) -> None:
    """Print an audit for a person."""
    rows = [
        (str(check.number), check.label, check.state, str(check.items), DESCRIPTIONS[check.label])
        for check in result.checks
    ]
    console.show(table(("", "check", "result", "looked at", "what must hold"), rows))
    for finding in result.findings:
        console.show(
            "", f"does not hold: {one_line(finding.place)}", f"  {one_line(finding.message)} [{finding.check}]"
        )
        if finding.expected is not None or finding.found is not None:
            console.show(f"  expected {one_line(str(finding.expected))}", f"  found    {one_line(str(finding.found))}")
    for title, lines in (("note", result.notes), ("unproven", result.open_points)):
        console.show(*(f"{title}: {one_line(line)}" for line in lines))
    console.show("", one_line(summary(result, level)), f"head: {result.head}")


def summary(result: AuditResult, level: Level) -> str:
    """Return the one sentence that an audit comes to."""
    partial = ", partial" if result.is_partial else ""
    if not result.is_sound:
        first = result.findings[0]
        return f"NOT SOUND{partial}: {len(result.findings)} findings; the first place is {first.place}"
    return f"sound{partial}, {result.trust}, checked up to level {level}"
