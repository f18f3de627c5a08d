"""Receipts: records of one side action (build, transfer, model, profiler, smoke, cleanup), successful or not.

The payload and what comes with it stand in salted blobs; the ledger entry holds the kind and the hashes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from protocols.canonical import JsonValue
from recorder.journal import Journal
from recorder.ledger import Entry
from recorder.load_files import encode_line
from recorder.spool import SealedFile, checked_name

_KIND: Final = re.compile(r"[a-z][a-z0-9]*(?:[-_.][a-z0-9]+)*")


def record_receipt(
    journal: Journal,
    kind: str,
    payload: Mapping[str, object],
    attachments: Mapping[str, bytes],
    *,
    campaign_id: str | None = None,
    lock_sha256: str | None = None,
) -> Entry:
    """Record one receipt, secrets replaced; of a campaign if one is given, else of the store itself.

    Raises ValueError for a kind or an attachment name that could not stand in a ledger payload, `HostError` where the
    disk refuses.
    """
    if not _KIND.fullmatch(kind):
        raise ValueError(f"{kind!r} is no kind of receipt: use words like build or cleanup")
    blobs = [detail_blob(journal, payload)]
    for name, content in attachments.items():
        blobs.append(journal.store_blob(checked_name(name), "attachment", filtered(journal, content)))
    named: dict[str, JsonValue] = {"receipt": kind}
    if campaign_id is not None:
        named["campaign"] = campaign_id
    return journal.record("receipt.recorded", named, lock=lock_sha256, blobs=blobs)


def detail_blob(journal: Journal, value: Mapping[str, object]) -> SealedFile:
    """Store a JSON object as the detail of an entry, secrets replaced."""
    return journal.store_blob("detail.json", "detail", encode_line(journal.secrets.value(value)))


def filtered(journal: Journal, content: bytes) -> bytes:
    """Return content with secrets replaced if it is text; bytes that are no text stay as they are."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return journal.secrets.known(content)
    return journal.secrets.text(content)
