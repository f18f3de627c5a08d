"""How values become column values: text that every database takes, JSON text in one form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from protocols.errors import EvidenceError
from recorder.ledger import Entry

ReadBlob = Callable[[str], bytes]
"""From a blob's name to its verified content."""

RowMap = dict[str, list[dict[str, Any]]]
"""Rows by table name."""


def plain_text(value: str) -> str:
    """Return text that every database takes: lone surrogates and NUL are written as escapes."""
    return value.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def optional_text(value: str | None) -> str | None:
    """Return `plain_text` of a value that may be missing."""
    return None if value is None else plain_text(value)


def to_json(value: object) -> str:
    """Return JSON text for a ``_json`` column: compact, keys sorted."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def read_object(data: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object that we wrote. Raises `EvidenceError` for anything else."""
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise EvidenceError("the content is no JSON", where=where) from error
    if not isinstance(value, dict):
        raise EvidenceError("the content is no JSON object", where=where)
    return value


def attachment_rows(entry: Entry, campaign: str) -> Iterator[dict[str, Any]]:
    """Yield an attachment row for each blob of an entry."""
    for item in entry.blobs():
        yield {
            "campaign_id": campaign,
            "name": item["name"],
            "role": item["role"],
            "blob_sha256": item["sha256"],
            "content_bytes": item["bytes"],
            "is_partial": int(bool(item["is_partial"])),
        }
