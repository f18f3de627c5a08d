"""Checks a store from its files alone: no engine, no network, nothing written.

What must hold, each with its label and the level from which on it is checked:

 1. ``entries``      structure   every ledger line is the RFC 8785 form of an entry of a known kind, numbered in order
 2. ``chain``        chain       every entry names the hash of the line before it
 3. ``locks``        chain       every entry of a campaign carries the hash of its lock, and no other entry does
 4. ``checkpoints``  chain       every checkpoint is signed by a recorded key over the Merkle root of all lines before
                                 it; one follows every lock, sealed load, verdict and report at once
 5. ``head``         chain       the ledger continues the pinned head, where one is given
 6. ``files``        structure   every file is one that the ledger names, none is missing, none is a link
 7. ``order``        structure   loads are those of the locked schedule: opened once at a time, sealed once, never again
                                 after a COMPLETE one
 8. ``blobs``        hashes      every blob has the hash and the size that its entry names
 9. ``copies``       hashes      lock, protocol, reports, notes and keys are byte for byte what was recorded
10. ``database``     tables      the database is whole, of this schema, and its keys refer to rows that exist
11. ``rows``         tables      every row equals the one derived again from ledger and blobs, and there are no others
12. ``promises``     recompute   protocol, requests, schedule, margins and texts are those that the lock names by hash
13. ``requests``     recompute   every request that was measured is the locked one, and its record obeys the framing
14. ``gates``        recompute   the locked protocol's gates, evaluated again from raw bytes, give what is recorded:
                                 statuses, counts and texts exactly, real numbers to 1e-12
15. ``verdict``      recompute   their combination is the recorded verdict
16. ``manifest``     structure   the manifest of a bundle is of this ledger, and names exactly the files that are there
17. ``reviews``      chain       every review links to a recorded verdict and is signed by the key that it names
18. ``against``      structure   what was locked is the lock that was kept elsewhere, where one is given
19. ``imports``      structure   every imported bundle is the one that its entry names, and holds by itself
20. ``telemetry``    recompute   every reading that was decoded from bytes is what the bytes that were kept give again

Whatever a killed recorder leaves is *partial*, not broken: a load without its seal, a torn last line, a database one
entry behind, a copy or a checkpoint that was still to come. It is listed in ``notes``; tampering is in ``findings``.
The database is evidence of nothing: where it disagrees, blobs and ledger are right.

Trust: ``VERIFIED`` needs a trusted key under the newest checkpoint. Else the store is ``SELF_CONSISTENT``: it agrees
with itself, and whoever made all of it could have made it up. ``open_points`` says what stays unproven.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from protocols.errors import AssayError, HostError, UsageError
from recorder.audit_bundle import AuditFolder, check_imports, check_manifest
from recorder.audit_chain import check_chain, check_checkpoints, check_head, check_locks
from recorder.audit_context import LEVELS, Audit, AuditResult, CheckOutcome, Finding, Level
from recorder.audit_files import check_blobs, check_copies, check_entries, check_files, check_order
from recorder.audit_judgement import (
    check_against,
    check_gates,
    check_promises,
    check_requests,
    check_reviews,
    check_verdict,
)
from recorder.audit_tables import check_database, check_rows
from recorder.audit_telemetry import check_telemetry
from recorder.bundle import opened_evidence
from recorder.keys import VerifierKey
from recorder.presence import no_ledger

__all__ = ["LEVELS", "AuditResult", "CheckOutcome", "Finding", "Level", "audit_store"]

Check = Callable[[Audit], None]

_CHECKS: Final[tuple[tuple[int, str, Level, Check], ...]] = (
    (1, "entries", "structure", check_entries),
    (2, "chain", "chain", check_chain),
    (3, "locks", "chain", check_locks),
    (4, "checkpoints", "chain", check_checkpoints),
    (5, "head", "chain", check_head),
    (6, "files", "structure", check_files),
    (7, "order", "structure", check_order),
    (8, "blobs", "hashes", check_blobs),
    (9, "copies", "hashes", check_copies),
    (10, "database", "tables", check_database),
    (11, "rows", "tables", check_rows),
    (12, "promises", "recompute", check_promises),
    (13, "requests", "recompute", check_requests),
    (14, "gates", "recompute", check_gates),
    (15, "verdict", "recompute", check_verdict),
    (16, "manifest", "structure", check_manifest),
    (17, "reviews", "chain", check_reviews),
    (18, "against", "structure", check_against),
)
_IMPORTS: Final = (19, "imports", "structure")
_TELEMETRY: Final[tuple[int, str, Level, Check]] = (20, "telemetry", "recompute", check_telemetry)


def audit_store(
    root: Path,
    *,
    level: Level = "recompute",
    campaign: str | None = None,
    trusted_keys: Sequence[VerifierKey] = (),
    revoked_keys: Sequence[VerifierKey] = (),
    head: str | None = None,
    against: bytes | None = None,
) -> AuditResult:
    """Check a store, a bundle or an unpacked bundle up to a level; each level includes those before it.

    ``campaign`` limits checks 12 to 15 to one campaign. ``trusted_keys`` are compared by their bytes, whatever their
    names; successors that they signed are trusted too, ``revoked_keys`` never. ``head`` is ``<entries>:<Merkle root in
    hex>``, as an earlier audit or a decision gave it. ``against`` is the lock that the campaign (the newest, if none is
    named) must have.
    Raises `UsageError` where there is no such folder or campaign, `EvidenceError` where ``head`` cannot be read, and
    `HostError` where this user may not read the files.
    """
    begun = partial(Audit, trusted_keys=tuple(trusted_keys), revoked_keys=tuple(revoked_keys))

    def audit_import(folder: Path, pinned: str) -> AuditResult:
        return _audit(begun(folder, campaign=None, head=pinned), level, audit_import)

    with opened_evidence(root) as folder:
        if not folder.is_dir():
            raise no_ledger(root)
        return _audit(begun(folder, campaign=campaign, head=head, against=against), level, audit_import)


def _audit(audit: Audit, level: Level, audit_import: AuditFolder) -> AuditResult:
    with audit:
        outcomes: list[CheckOutcome] = []
        imports = (*_IMPORTS, lambda audit: check_imports(audit, audit_import))
        for number, label, least, check in (*_CHECKS, imports, _TELEMETRY):
            is_due = LEVELS.index(least) <= LEVELS.index(level)
            is_due = is_due and not (audit.has_no_database and least == "tables")
            if not is_due or (audit.is_unreadable and number > 1):
                outcomes.append(CheckOutcome(number=number, label=label, state="skipped", items=0))
                continue
            outcomes.append(_run(audit, number, label, check))
        return audit.result(tuple(outcomes))


def _run(audit: Audit, number: int, label: str, check: Check) -> CheckOutcome:
    before = len(audit.findings)
    audit.begin(label)
    try:
        check(audit)
    except AssayError as error:
        if isinstance(error, HostError) and (isinstance(error.__cause__, PermissionError) or "locked" in str(error)):
            raise
        if isinstance(error, UsageError) and not audit.findings:
            raise  # a mistyped campaign; where the ledger does not hold, it may be the ledger that lacks it
        audit.find(error.where or str(audit.root), message=str(error))
    except PermissionError as error:
        # That this user may not read it says nothing about the evidence.
        hint = "audit as a user who may read the store"
        raise HostError("the store cannot be read", where=error.filename, hint=hint) from error
    except (KeyError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, OSError) as error:
        # Forged evidence may have any shape. That it cannot be read is a finding, never a traceback.
        audit.find(str(audit.root), message=f"cannot be read: {type(error).__name__}: {error}")
    is_broken = len(audit.findings) > before
    return CheckOutcome(number=number, label=label, state="broken" if is_broken else "held", items=audit.items)
