"""Reviews: what a person or a tool says about a recorded verdict, signed, and linked to it.

A review never changes a verdict. It names the verdict's entry by number and hash, and either ``agrees`` with it or
``overrides`` it with another status; whoever shows the campaign shows both. The signed text is

    assay/review/v1
    <origin of the ledger>
    <campaign>
    <number of the verdict's entry>
    <SHA-256 of that entry's line>
    <decision>
    <status>
    <name of the salted blob that holds reviewer and statement>

as a C2SP signed note, so that the review holds by itself wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from protocols.canonical import JsonValue
from protocols.errors import EvidenceError, ProtocolError
from protocols.verdicts import EXIT_CODES
from recorder.campaign_state import CampaignState
from recorder.checkpoint import parse_note, sign_note
from recorder.journal import Journal
from recorder.keys import Signer, VerifierKey, parse_verifier_key
from recorder.ledger import Entry
from recorder.receipts import detail_blob
from recorder.row_values import ReadBlob, read_object

DECISIONS: Final = ("agrees", "overrides")
STATUSES: Final = tuple(EXIT_CODES)
_HEADER: Final = "assay/review/v1"


@dataclass(frozen=True, kw_only=True)
class Review:
    """One review. ``verdict_status`` is what was recorded, ``status`` what the reviewer says."""

    seq: int
    verdict_seq: int
    verdict_status: str
    decision: str
    status: str
    reviewer: str
    statement: str
    key: VerifierKey


def record_review(
    journal: Journal,
    state: CampaignState,
    *,
    decision: str,
    status: str | None,
    reviewer: str,
    statement: str,
    by: Signer,
) -> Entry:
    """Record a review of the newest verdict of a campaign, and sign a checkpoint.

    Raises `ProtocolError` where decision and status do not fit the verdict, `EvidenceError` where there is no verdict.
    """
    if not state.verdicts:
        raise EvidenceError("there is no verdict to review", where=state.campaign_id, hint="`assay judge` records one")
    verdict = state.verdicts[-1]
    found = verdict.text("status")
    status = status or found
    if decision not in DECISIONS or status not in STATUSES:
        raise ProtocolError(f"{decision} {status} is no review", hint=f"decisions: {', '.join(DECISIONS)}")
    if (decision == "agrees") != (status == found):
        hint = "an overriding review names another status, an agreeing one none"
        raise ProtocolError(f"the verdict is {found}, and the review that {decision} says {status}", hint=hint)
    blob = detail_blob(journal, {"reviewer": reviewer, "statement": statement})
    text = _text(journal.origin, state.campaign_id, verdict, decision, status, blob.blob.sha256)
    key = by.public()
    payload: dict[str, JsonValue] = {
        "campaign": state.campaign_id,
        "verdict": verdict.seq,
        "verdict_status": found,
        "decision": decision,
        "status": status,
        "key_hash": key.key_hash.hex(),
        "verifier_key": key.text(),
        "note": sign_note(text, [(key.name, by)]).decode(),
    }
    entry = journal.record("review.recorded", payload, lock=state.lock_sha256, blobs=[blob])
    journal.checkpoint()
    return entry


def _text(origin: str, campaign: str, verdict: Entry, decision: str, status: str, blob: str) -> str:
    lines = (_HEADER, origin, campaign, str(verdict.seq), verdict.sha256, decision, status, blob)
    return "".join(f"{line}\n" for line in lines)


def review_problem(entry: Entry, state: CampaignState, origin: str) -> str | None:
    """Say why a recorded review does not hold by itself; None if it does."""
    verdict = next((one for one in state.verdicts if one.seq == entry.number("verdict")), None)
    if verdict is None or verdict.seq > entry.seq:
        return "it links to no verdict of this campaign"
    if entry.text("verdict_status") != verdict.text("status"):
        return f"the verdict is {verdict.text('status')}, not {entry.text('verdict_status')}"
    decision, status = entry.text("decision"), entry.text("status")
    if decision not in DECISIONS or (decision == "agrees") != (status == verdict.text("status")):
        return "decision and status do not fit the verdict"
    expected = _text(origin, state.campaign_id, verdict, decision, status, entry.blob("detail"))
    note, key = parse_note(entry.text("note").encode()), parse_verifier_key(entry.text("verifier_key"))
    if note.text != expected:
        return "the signed text is not that of this review"
    if key.key_hash.hex() != entry.text("key_hash") or not note.is_signed_by(key):
        return "it is not signed by the key that it names"
    return None


def reviews_of(state: CampaignState, read_blob: ReadBlob) -> list[Review]:
    """Return the reviews of a campaign, oldest first."""
    return [_review(entry, read_blob) for entry in _entries(state.others)]


def _entries(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.kind == "review.recorded"]


def _review(entry: Entry, read_blob: ReadBlob) -> Review:
    detail = read_object(read_blob(entry.blob("detail")), f"detail of ledger entry {entry.seq}")
    return Review(
        seq=entry.seq,
        verdict_seq=entry.number("verdict"),
        verdict_status=entry.text("verdict_status"),
        decision=entry.text("decision"),
        status=entry.text("status"),
        reviewer=str(detail.get("reviewer")),
        statement=str(detail.get("statement")),
        key=parse_verifier_key(entry.text("verifier_key")),
    )
