"""Whether a folder was ever a store: a mistyped path must not read like evidence that does not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from protocols.errors import EvidenceError, UsageError

_PARTS: Final = ("ledger.jsonl", "manifest.json", "assay.sqlite", "blobs", "campaigns", "checkpoints", "spool")


def is_like_store(root: Path) -> bool:
    """Whether a folder holds any part of a store or of an unpacked bundle."""
    return any((root / name).exists() for name in _PARTS)


def no_ledger(root: Path) -> UsageError | EvidenceError:
    """Return the error to raise where a store was expected: of the evidence where only its ledger is gone."""
    if is_like_store(root):
        return EvidenceError("the store has lost its ledger", where=str(root), hint="run `assay audit`")
    hint = "name a store with --store or ASSAY_STORE; `assay run` makes one"
    return UsageError("there is no store here", where=str(root), hint=hint)
