"""A store: the evidence of campaigns in one folder.

======================  =======================================================================================
``ledger.jsonl``        what was recorded, in order (ledger.py)
``blobs/``              content, salted and named by hash (blobs.py)
``assay.sqlite``        everything again as rows, derived (tables.py)
``checkpoints/``        signed heads of the ledger (checkpoint.py);  ``keys/``  the public keys that signed them
``campaigns/<id>/``     copies for people: lock.json, protocol.yaml, reports
``spool/``              loads that are still running (spool.py)
``store.lock``          the one writer (store_lock.py)
======================  =======================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from protocols.canonical import JsonValue, sha256_hex
from protocols.errors import EvidenceError, HostError, ProtocolError
from protocols.lock import Lock, parse_lock
from protocols.measurements import CampaignMeasurements
from protocols.start_failures import LoadEnding, arms_that_do_not_start
from recorder.blobs import SALT_BYTES, BlobStore, salted
from recorder.campaign import CampaignRecorder
from recorder.campaign_state import CampaignState, LoadEntries, name_campaign, read_campaigns, resolve_campaign
from recorder.clock import Clock, SystemClock, compact_utc
from recorder.db import Database
from recorder.files import Files, host_errors
from recorder.journal import Journal, copies_of, due_checkpoint
from recorder.key_ring import own_signer, rotations_to
from recorder.keys import Signer
from recorder.ledger import Entry, Ledger, read_entries, split_torn
from recorder.load_files import encode_line
from recorder.measure import measure_campaign, protocol_of_source
from recorder.presence import no_ledger
from recorder.recovery import recover
from recorder.row_values import read_object
from recorder.rows import REQUEST_INDEX, read_verdict, seal_reason
from recorder.secrets import SecretFilter
from recorder.spool import SealedFile
from recorder.store_lock import StoreLock

FORMAT: Final = 1
DATABASE: Final = "assay.sqlite"
LEDGER: Final = "ledger.jsonl"
LOCK: Final = "store.lock"
_BUSY_MS: Final = 5000


@dataclass(frozen=True, kw_only=True)
class CampaignSummary:
    """One campaign in a list. ``verdict`` is None until there is one."""

    campaign_id: str
    protocol_id: str
    lock_sha256: str
    locked_utc_ns: int
    places: int
    complete_loads: int
    partial_loads: int
    open_loads: int
    is_interrupted: bool
    verdict: str | None
    exit_code: int | None
    arms_that_do_not_start: tuple[str, ...]
    """Arms whose engine ended at its start: resuming cannot help."""


def salted_text(content: bytes, secrets: Iterable[str] = ()) -> bytes:
    """Return the bytes of a salted blob for a free text of a lock, secrets replaced.

    A lock names the SHA-256 of these bytes in ``text_blobs``; `Store.begin_campaign` takes the bytes.
    """
    return salted(SecretFilter(secrets).text(content))


class Store:
    """An open store; a context manager that closes it."""

    def __init__(
        self,
        root: Path,
        *,
        blobs: BlobStore,
        journal: Journal | None = None,
        lock: StoreLock | None = None,
        entries: tuple[Entry, ...] = (),
    ) -> None:
        self.root: Final = root
        self.blobs: Final = blobs
        self._journal: Final = journal
        self._lock: Final = lock
        self._entries: Final = entries
        self._sorted: tuple[int, dict[str, CampaignState]] = (0, {})

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        clock: Clock | None = None,
        signer: Signer | None = None,
        create: bool = False,
        read_only: bool = False,
        files: Files | None = None,
        secrets: Iterable[str] = (),
        busy_ms: int = _BUSY_MS,
    ) -> Store:
        """Open a store, for one writer or read-only; finish first what a killed writer left.

        ``secrets`` are values that must never be written. ``busy_ms`` is how long another user of the database is
        waited for. Raises `HostError` (disk, another writer, a locked database), `EvidenceError` (the evidence does not
        hold) or `UsageError` (there is no store here).
        """
        disk = files or Files()
        blobs = BlobStore(root / "blobs" / "sha256", disk)
        if not create and not (root / LEDGER).is_file():
            raise no_ledger(root)
        if read_only:
            with host_errors("read the ledger", root / LEDGER):
                lines = split_torn((root / LEDGER).read_bytes()).lines
            return cls(root, blobs=blobs, entries=tuple(read_entries(lines)))
        with host_errors("make the store folder", root):
            disk.make_folder(root)
        clock = clock or SystemClock()
        lock = StoreLock(root / LOCK, files=disk, clock=clock)
        journal: Journal | None = None
        try:
            journal = _open_journal(root, root / DATABASE, disk, clock, blobs, SecretFilter(secrets), busy_ms)
            _prepare(journal, signer, must_recover=lock.was_left_open, create=create)
        except BaseException:
            if journal is not None:
                _close_journal(journal)
            lock.release(is_clean=False)
            raise
        return cls(root, blobs=blobs, journal=journal, lock=lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the store. After a step that failed, the lock file keeps its text, so that the next writer recovers."""
        if self._journal is None or self._lock is None:
            return
        try:
            _close_journal(self._journal)
        finally:
            self._lock.release(is_clean=self._journal.is_clean)

    # --- writing -------------------------------------------------------------------------------------------------

    @property
    def writer(self) -> Journal:
        """Return the journal of a store that is open for writing. Raises `HostError` for any other."""
        if self._journal is None:
            raise HostError("the store is open for reading only", where=str(self.root))
        return self._journal

    def begin_campaign(
        self, *, lock: bytes, protocol: bytes, requests: Mapping[str, bytes], texts: Mapping[str, bytes]
    ) -> CampaignRecorder:
        """Record a lock with everything that it names by hash, and sign a checkpoint.

        ``protocol`` is the source text, ``requests`` the body of each request file, ``texts`` the bytes of each salted
        text (see `salted_text`). Raises `EvidenceError` if a hash in the lock does not fit, `ProtocolError` if the
        protocol holds a secret.
        """
        journal, locked = self.writer, parse_lock(lock)
        _check_promises(locked, requests, texts)
        if journal.secrets.text(protocol) != protocol:
            raise ProtocolError("the protocol holds a secret", hint="protocols are published: keep keys out of them")
        for name, text in texts.items():
            if journal.secrets.text(text[SALT_BYTES:]) != text[SALT_BYTES:]:
                raise EvidenceError(f"the text {name} holds a secret", hint="make it with salted_text")
        campaign_id = name_campaign(locked.protocol_id, compact_utc(journal.clock.utc_ns()), os.urandom(3))
        blobs = [
            journal.store_blob("lock.json", "lock", lock),
            journal.store_blob("protocol.yaml", "protocol", protocol),
        ]
        index: dict[str, JsonValue] = {}
        for number, (reference, body) in enumerate(sorted(requests.items())):
            blobs.append(journal.store_blob(f"request-{number}", "request", body))
            index[reference] = blobs[-1].blob.sha256
        blobs.append(journal.store_blob("requests.json", REQUEST_INDEX, encode_line(index)))
        blobs += [SealedFile(name, "text", journal.blobs.put_salted(text)) for name, text in sorted(texts.items())]
        digest, folder = sha256_hex(lock), f"campaigns/{campaign_id}"
        payload: dict[str, JsonValue] = {
            "campaign": campaign_id,
            "lock_sha256": digest,
            "protocol_file_sha256": sha256_hex(protocol),
        }
        copies = {f"{folder}/lock.json": lock, f"{folder}/protocol.yaml": protocol}
        journal.record("campaign.locked", payload, lock=digest, blobs=blobs, copies=copies)
        journal.checkpoint()
        return CampaignRecorder(journal, campaign_id)

    def resume_campaign(self, campaign_id: str) -> CampaignRecorder:
        """Go on with a campaign that has no verdict yet; ``latest`` or a unique beginning of its name will do."""
        journal, state = self.writer, self._campaign(campaign_id)
        if state.verdicts:
            raise EvidenceError(f"campaign {state.campaign_id} has its verdict", hint="see `assay report`")
        if state.is_cancelled:
            raise EvidenceError(f"campaign {state.campaign_id} was cancelled", hint="`assay run` starts another one")
        payload: dict[str, JsonValue] = {"campaign": state.campaign_id}
        journal.record("campaign.resumed", payload, lock=state.lock_sha256)
        return CampaignRecorder(journal, state.campaign_id)

    def campaign_recorder(self, campaign_id: str) -> CampaignRecorder:
        """Add to a campaign (a report, a receipt) without resuming it."""
        return CampaignRecorder(self.writer, self._campaign(campaign_id).campaign_id)

    # --- reading -------------------------------------------------------------------------------------------------

    def entries(self) -> tuple[Entry, ...]:
        """Return every ledger entry, oldest first."""
        return self._entries if self._journal is None else self._journal.ledger.entries()

    def _states(self) -> dict[str, CampaignState]:
        """Return the campaigns; the entries are sorted once, and again only when there are more of them."""
        if len(entries := self.entries()) != self._sorted[0]:
            self._sorted = (len(entries), read_campaigns(entries))
        return self._sorted[1]

    def _campaign(self, text: str) -> CampaignState:
        return self._states()[resolve_campaign(self._states(), text)]

    def resolve_campaign(self, text: str) -> str:
        """Return the campaign that ``latest``, a full name or a unique beginning of one means."""
        return resolve_campaign(self._states(), text)

    def campaigns(self) -> list[CampaignSummary]:
        """Return every campaign, in the order in which they were locked."""
        return [self._summary(state) for state in self._states().values()]

    def _summary(self, state: CampaignState) -> CampaignSummary:
        lock = self.lock_of(state.campaign_id)
        events = [entry.kind for entry in state.others if entry.kind.startswith("campaign.")]
        states = [load.state for load in state.loads.values()]
        newest = state.verdicts[-1] if state.verdicts else None
        return CampaignSummary(
            campaign_id=state.campaign_id,
            protocol_id=lock.protocol_id,
            lock_sha256=state.lock_sha256,
            locked_utc_ns=state.locked.utc_ns,
            places=len(lock.schedule),
            complete_loads=len(state.completed_positions()),
            partial_loads=sum(one in {"PARTIAL", "INVALID"} for one in states),
            open_loads=len(state.open_loads()),
            is_interrupted=bool(events) and events[-1] == "campaign.interrupted",
            verdict=None if newest is None else newest.text("status"),
            exit_code=None if newest is None else newest.number("exit_code"),
            arms_that_do_not_start=arms_that_do_not_start(map(self._ending, state.loads.values())),
        )

    def _ending(self, load: LoadEntries) -> LoadEnding:
        reason = None
        if load.sealed is not None:
            with suppress(EvidenceError):  # left out of an imported bundle
                reason = seal_reason(load.sealed, self.blobs.read)
        return LoadEnding(arm=str(load.position["arm"]), state=load.state, reason=reason)

    def lock_of(self, campaign_id: str) -> Lock:
        """Return the lock of a campaign."""
        return parse_lock(self.blobs.read(self._campaign(campaign_id).locked.blob("lock")))

    def protocol_of(self, campaign_id: str) -> bytes:
        """Return the source text of a campaign's protocol."""
        return self.blobs.read(self._campaign(campaign_id).locked.blob("protocol"))

    def requests_of(self, campaign_id: str) -> dict[str, bytes]:
        """Return the body of each frozen request by its reference."""
        entry = self._campaign(campaign_id).locked
        index = read_object(self.blobs.read(entry.blob(REQUEST_INDEX)), f"ledger entry {entry.seq}")
        return {reference: self.blobs.read(str(name)) for reference, name in index.items()}

    def texts_of(self, campaign_id: str) -> dict[str, bytes]:
        """Return the free texts of a campaign's lock by name, without salt."""
        entry = self._campaign(campaign_id).locked
        found = [item for item in entry.blobs() if item.get("role") == "text"]
        return {str(item["name"]): self.blobs.read(str(item["sha256"])) for item in found}

    def measurements(self, campaign_id: str) -> CampaignMeasurements:
        """Derive the measurements of a campaign from its raw bytes."""
        state = self._campaign(campaign_id)
        protocol = protocol_of_source(self.protocol_of(state.campaign_id))
        return measure_campaign(state, self.lock_of(state.campaign_id), self.blobs.read, protocol=protocol)

    def verdict_of(self, campaign_id: str) -> tuple[list[dict[str, object]], dict[str, object]] | None:
        """Return the newest recorded gate results and verdict of a campaign; None if there is none yet."""
        state = self._campaign(campaign_id)
        return read_verdict(state.verdicts[-1], self.blobs.read) if state.verdicts else None


def _check_promises(lock: Lock, requests: Mapping[str, bytes], texts: Mapping[str, bytes]) -> None:
    promised = ((lock.requests, requests, "request"), (lock.text_blobs, texts, "text"))
    for hashes, given, what in promised:
        if missing := sorted(hashes.keys() ^ given.keys()):
            raise EvidenceError(f"the lock and the {what}s given differ in {', '.join(missing)}", where="lock")
        for name, content in given.items():
            if sha256_hex(content) != hashes[name]:
                raise EvidenceError(f"the {what} {name} does not have the hash that the lock promises", where="lock")


def _open_journal(
    root: Path, path: Path, files: Files, clock: Clock, blobs: BlobStore, secrets: SecretFilter, busy_ms: int
) -> Journal:
    ledger = Ledger(root / LEDGER, files=files, clock=clock)
    try:
        database = Database.open(path, files=files, busy_ms=busy_ms)
    except BaseException:
        ledger.close()
        raise
    return Journal(root=root, ledger=ledger, blobs=blobs, database=database, files=files, clock=clock, secrets=secrets)


def _close_journal(journal: Journal) -> None:
    try:
        journal.ledger.close()
    finally:
        journal.database.close()


def _prepare(journal: Journal, signer: Signer | None, *, must_recover: bool, create: bool) -> None:
    if not journal.ledger.entries():
        if not create:
            raise EvidenceError("the ledger of this store is empty", where=str(journal.root))
        store_id = os.urandom(8).hex()
        journal.record("store.created", {"store": store_id, "format": FORMAT, "origin": f"assay/{store_id}"})
    if must_recover or journal.ledger.moved_aside:
        recover(journal)
    else:
        journal.catch_up()
    journal.signer = signer or own_signer()
    _add_key(journal, journal.signer)
    if due_checkpoint(journal.ledger.entries()) is not None:
        journal.checkpoint()


def _add_key(journal: Journal, signer: Signer) -> None:
    """Record the public key of this signer, if the ledger does not have it yet."""
    key = signer.public(journal.origin)
    added = [entry for entry in journal.ledger.entries() if entry.kind == "key.added"]
    if any(entry.text("verifier_key") == key.text() for entry in added):
        return
    file = f"{signer.name}.pub"
    if any(entry.text("file") == file for entry in added):
        file = f"{signer.name}-{key.key_hash.hex()}.pub"
    payload: dict[str, JsonValue] = {
        "name": signer.name,
        "file": file,
        "key_hash": key.key_hash.hex(),
        "verifier_key": key.text(),
        "sha256": sha256_hex(f"{key.text()}\n".encode()),
    }
    if rotations := rotations_to(signer.public()):
        payload["rotations"] = [one.note for one in rotations]
    entry = journal.record("key.added", payload)
    journal.write_copies(copies_of(entry, journal.blobs))


def rebuild_database(root: Path, *, files: Files | None = None, clock: Clock | None = None) -> int:
    """Make the database anew from ledger and blobs, and put it in the place of the old one.

    Returns the number of ledger entries that it covers. The store must not be open elsewhere. Raises `EvidenceError`
    if ledger or blobs do not hold: then nothing is replaced.
    """
    disk = files or Files()
    lock = StoreLock(root / LOCK, files=disk, clock=clock or SystemClock())
    temporary, is_clean = root / f".tmp-{os.urandom(8).hex()}.sqlite", not lock.was_left_open
    try:
        blobs = BlobStore(root / "blobs" / "sha256", disk)
        journal = _open_journal(root, temporary, disk, clock or SystemClock(), blobs, SecretFilter(), _BUSY_MS)
        is_clean = is_clean and journal.ledger.moved_aside is None
        try:
            count = journal.catch_up()
        finally:
            _close_journal(journal)
        with host_errors("replace the database", root / DATABASE):
            for suffix in ("-wal", "-shm"):
                (root / (DATABASE + suffix)).unlink(missing_ok=True)
            disk.rename(temporary, root / DATABASE)
            disk.fsync_folder(root)
    except BaseException:
        temporary.unlink(missing_ok=True)
        lock.release(is_clean=False)
        raise
    lock.release(is_clean=is_clean)
    return count
