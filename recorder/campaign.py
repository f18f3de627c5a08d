"""Records one campaign: loads, receipts, interruptions, verdict, reports. Made by `Store`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from protocols.canonical import JsonValue, canonical_bytes, sha256_hex
from protocols.errors import EvidenceError
from protocols.gates import GateResult
from protocols.measurements import Arm, Block, CheckObservation
from protocols.schedule import Position
from protocols.verdicts import Verdict
from recorder.campaign_state import CampaignState, LoadEntries, read_campaigns
from recorder.checks import CHECK_RECEIPT, check_receipt, read_checks
from recorder.journal import Journal
from recorder.load_recorder import LoadRecorder, seal_load
from recorder.receipts import detail_blob, record_receipt
from recorder.spool import checked_name

ABANDONED: Final = "the recorder was killed before this load ended"


class CampaignRecorder:
    """One campaign of an open store. ``lock`` is its lock as plain JSON."""

    def __init__(self, journal: Journal, campaign_id: str) -> None:
        self.campaign_id: Final = campaign_id
        self._journal: Final = journal
        lock_bytes = journal.blobs.read(self._state().locked.blob("lock"))
        self.lock: Final[dict[str, Any]] = json.loads(lock_bytes)
        self._lock_sha256: Final = sha256_hex(lock_bytes)

    def _state(self) -> CampaignState:
        return read_campaigns(self._journal.ledger.entries())[self.campaign_id]

    def record_preflight(self, findings: Sequence[Mapping[str, object]]) -> None:
        """Record the findings of the preflight, also when there are none."""
        blob = detail_blob(self._journal, {"findings": [*findings]})
        payload: dict[str, JsonValue] = {"campaign": self.campaign_id, "count": len(findings)}
        self._journal.record("preflight.recorded", payload, lock=self._lock_sha256, blobs=[blob])

    def record_receipt(
        self, kind: str, payload: Mapping[str, object], attachments: Mapping[str, bytes] | None = None
    ) -> None:
        """Record a receipt of a side action; see `receipts.record_receipt`."""
        record_receipt(
            self._journal,
            kind,
            payload,
            attachments or {},
            campaign_id=self.campaign_id,
            lock_sha256=self._lock_sha256,
        )

    def record_check(self, observation: CheckObservation, blocks: Mapping[str, Block]) -> None:
        """Record what a check left of an arm, once."""
        payload, attachments = check_receipt(observation, blocks)
        self.record_receipt(CHECK_RECEIPT, payload, attachments)

    def recorded_checks(self) -> frozenset[tuple[str, Arm]]:
        """Return the checks that are recorded, each with its arm."""
        return frozenset((one.check, one.arm) for one in read_checks(self._state(), self._journal.blobs.read))

    def open_load(self, position: Position) -> LoadRecorder:
        """Open the load of one place of the locked schedule.

        Raises `EvidenceError` if the lock has no such place, if that place has its COMPLETE load already, or if
        another load of this campaign is still open.
        """
        state, place = self._state(), position.payload()
        if place not in self.lock["schedule"]:
            raise EvidenceError(f"the locked schedule has no place {position.index} {position.label} like this one")
        if position.index in state.completed_positions():
            raise EvidenceError(f"{position.label} is COMPLETE already; a second one would be a choice between two")
        if still_open := state.open_loads():
            names = ", ".join(load.load_id for load in still_open)
            raise EvidenceError(f"a load is still open: {names}", hint="seal it, or `assay resume` after a crash")
        attempt = state.attempts(position.index) + 1
        suffix = "" if attempt == 1 else f".{attempt}"
        load_id = f"{self.campaign_id}/{position.index}-{checked_name(position.label)}{suffix}"
        payload: dict[str, JsonValue] = {
            "campaign": self.campaign_id,
            "load": load_id,
            "position": place,
            "attempt": attempt,
        }
        entry = self._journal.record("load.opened", payload, lock=self._lock_sha256)
        return LoadRecorder(self._journal, LoadEntries(opened=entry, sealed=None))

    def record_interruption(self, reason: str) -> None:
        """Record that the campaign was stopped before its end."""
        self._record_reason("campaign.interrupted", reason)

    def record_cancellation(self, reason: str) -> None:
        """Give the campaign up for good: what is open is sealed as PARTIAL, the reason recorded, a checkpoint signed.

        It stays an attempt at its question. Raises `EvidenceError` if it has a verdict, or was cancelled before.
        """
        state = self._state()
        if state.verdicts or state.is_cancelled:
            what = "has its verdict" if state.verdicts else "was cancelled before"
            raise EvidenceError(f"campaign {self.campaign_id} {what}")
        self.seal_abandoned()
        self._record_reason("campaign.cancelled", reason)
        self._journal.checkpoint()

    def _record_reason(self, kind: str, reason: str) -> None:
        blob = self._journal.store_blob("reason.txt", "reason", self._journal.secrets.text(reason.encode()))
        payload: dict[str, JsonValue] = {"campaign": self.campaign_id}
        self._journal.record(kind, payload, lock=self._lock_sha256, blobs=[blob])

    def seal_abandoned(self) -> list[str]:
        """Seal every load that a crash left open as PARTIAL, with what its spool holds. Returns their names."""
        sealed: list[str] = []
        for load in self._state().open_loads():
            seal_load(self._journal, load, state="PARTIAL", reason=ABANDONED, is_abandoned=True)
            sealed.append(load.load_id)
        return sealed

    def completed_positions(self) -> frozenset[int]:
        """Return the numbers of the places that have a COMPLETE load."""
        return self._state().completed_positions()

    def started_loads(self) -> int:
        """Return how many loads were started, the broken and the burn-in ones included."""
        return len(self._state().loads)

    def record_verdict(self, results: Sequence[GateResult], verdict: Verdict) -> None:
        """Record the gate results and the verdict, and sign a checkpoint.

        A later verdict judges the one before it again; that one stays, and the new entry links to it.
        """
        before = self._state().verdicts
        detail = {"results": [result.payload() for result in results], "verdict": verdict.payload()}
        blob = self._journal.store_blob("detail.json", "detail", canonical_bytes(detail))
        payload: dict[str, JsonValue] = {
            "campaign": self.campaign_id,
            "status": verdict.status,
            "exit_code": verdict.exit_code,
            **({"rejudges": before[-1].seq} if before else {}),
            "gates": [
                {"id": one.id, "kind": one.kind, "status": one.status, "required": one.required} for one in results
            ],
        }
        self._journal.record("verdict.recorded", payload, lock=self._lock_sha256, blobs=[blob])
        self._journal.checkpoint()

    def record_report(self, files: Mapping[str, bytes]) -> None:
        """Record report files (known secrets replaced), write them into the campaign's folder, sign a checkpoint."""
        journal = self._journal
        blobs = [
            journal.store_blob(checked_name(name), "report", journal.secrets.known(content))
            for name, content in sorted(files.items())
        ]
        if reserved := {"lock.json", "protocol.yaml"} & files.keys():
            raise ValueError(f"{', '.join(sorted(reserved))} cannot be a report")
        folder = f"campaigns/{self.campaign_id}"
        copies = {f"{folder}/{blob.name}": journal.blobs.read(blob.blob.sha256) for blob in blobs}
        payload: dict[str, JsonValue] = {
            "campaign": self.campaign_id,
            "files": [{"name": blob.name, "sha256": sha256_hex(copies[f"{folder}/{blob.name}"])} for blob in blobs],
        }
        journal.record("report.recorded", payload, lock=self._lock_sha256, blobs=blobs, copies=copies)
        journal.checkpoint()
