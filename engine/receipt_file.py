"""The receipt of a build as it lies in a folder: whoever sent the folder may have written anything into it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.identity import RECEIPT_NAME
from protocols.canonical import MAX_INTEGER, canonical_bytes
from protocols.errors import EvidenceError
from protocols.paths import is_file, read_given

_MOST_FAULTS = 64
_FAULT_LENGTH = 256


def read_receipt(folder: Path) -> dict[str, Any] | None:
    """Return the receipt of a build, None where no plain file has one with the members that an arm is locked by.

    Those are `outputs` (name to SHA-256), `layout_salt` and `faults`. All of it can be written again and hashed: it
    holds no real number, and no text that is not Unicode.
    """
    path = folder / RECEIPT_NAME
    try:
        receipt = json.loads(read_given(path)) if is_file(path) else None
        if not isinstance(receipt, dict) or not _is_whole(receipt):
            return None
        canonical_bytes(receipt)
    except (OSError, ValueError, RecursionError, EvidenceError):
        return None
    return receipt


def _is_whole(receipt: dict[str, Any]) -> bool:
    outputs, salt, faults = (receipt.get(name) for name in ("outputs", "layout_salt", "faults"))
    is_salt = type(salt) is int and 0 <= salt <= MAX_INTEGER
    is_outputs = isinstance(outputs, dict) and all(isinstance(one, str) for one in outputs.values())
    if not is_salt or not is_outputs or not isinstance(faults, list) or len(faults) > _MOST_FAULTS:
        return False
    return all(isinstance(one, str) and 0 < len(one) <= _FAULT_LENGTH for one in faults)
