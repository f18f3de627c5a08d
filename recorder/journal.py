"""The one way in which a store changes: blobs first, then a ledger entry, then its rows, then copies for people.

1. Blobs are on the disk before an entry names them.
2. The entry is on the disk before anything is derived from it.
3. The rows of an entry are inserted in one transaction that is committed right after the entry is appended, so the
   database is never ahead of the ledger and at most one entry behind it.
4. Copies (``lock.json``, reports, notes, public keys) come last; their content stands in the entry or in its blobs,
   so a missing copy can always be written again.

A fault at any step leaves the state before or after that step; `recovery` brings the rest up to the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from protocols.canonical import JsonValue
from protocols.errors import EvidenceError
from recorder.archive import is_safe_name
from recorder.blobs import BlobStore
from recorder.checkpoint import Checkpoint, sign_checkpoint
from recorder.clock import Clock
from recorder.db import Database
from recorder.files import Files, host_errors
from recorder.keys import Signer
from recorder.ledger import Entry, Ledger
from recorder.rows import derive_rows
from recorder.secrets import SecretFilter
from recorder.spool import SealedFile

CHECKPOINTED: Final = frozenset(
    {
        "campaign.locked",
        "load.sealed",
        "verdict.recorded",
        "report.recorded",
        "review.recorded",
        "campaign.cancelled",
        "bundle.imported",
    }
)
"""Kinds of entries that a signed checkpoint must follow at once."""
HOUSEKEEPING: Final = frozenset({"store.recovered", "key.added"})
"""Kinds that may stand between such an entry and its checkpoint after a crash."""


class Journal:
    """Appends entries with everything that hangs on them. One writer, which holds the store's lock."""

    def __init__(
        self,
        *,
        root: Path,
        ledger: Ledger,
        blobs: BlobStore,
        database: Database,
        files: Files,
        clock: Clock,
        secrets: SecretFilter,
    ) -> None:
        self.root: Final = root
        self.ledger: Final = ledger
        self.blobs: Final = blobs
        self.database: Final = database
        self.files: Final = files
        self.clock: Final = clock
        self.secrets: Final = secrets
        self.signer: Signer | None = None
        self._is_blocked = False
        self._has_unfinished = False

    @property
    def is_clean(self) -> bool:
        """Whether every step so far was finished; else the next writer has to recover."""
        return not (self._is_blocked or self._has_unfinished or self.blobs.has_unfinished)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Mark the store as unfinished for the time of the block, and for good if the block fails."""
        had_unfinished, self._has_unfinished = self._has_unfinished, True
        yield
        self._has_unfinished = had_unfinished

    @property
    def origin(self) -> str:
        """The origin of this ledger's checkpoints, and the name of its keys."""
        return self.ledger.entries()[0].text("origin")

    def record(
        self,
        kind: str,
        payload: Mapping[str, JsonValue],
        *,
        lock: str | None = None,
        blobs: Sequence[SealedFile] = (),
        copies: Mapping[str, bytes] | None = None,
    ) -> Entry:
        """Append one entry, insert its rows, and write the copies (path below the store, content).

        Raises `HostError` if the disk or the database refuses. The caller then closes the store; opening it again
        finishes what was begun.
        """
        if self._is_blocked:
            raise EvidenceError(
                "an earlier step of this store failed", where=str(self.root), hint="close it and run `assay resume`"
            )
        named: dict[str, JsonValue] = {"blobs": [blob.payload() for blob in blobs]} if blobs else {}
        entry = self.ledger.next_entry(kind, {**payload, **named}, lock=lock)
        rows = derive_rows(entry, self.blobs.read)
        self._is_blocked = True
        with self.database.transaction() as connection:
            # Rows that the database refuses must not have an entry, else no later start could catch up.
            self.database.insert(rows, connection)
            self.ledger.append(entry)
        self.write_copies(copies or {})
        self._is_blocked = False
        return entry

    def apply(self, entry: Entry) -> None:
        """Derive and insert the rows of one entry in one transaction."""
        rows = derive_rows(entry, self.blobs.read)
        with self.database.transaction() as connection:
            self.database.insert(rows, connection)

    def write_copies(self, copies: Mapping[str, bytes]) -> None:
        """Write copies for people, each in one step."""
        for name, content in copies.items():
            path = self.root / name
            with host_errors("write a copy", path):
                self.files.replace_file(path, content)

    def catch_up(self) -> int:
        """Insert the rows of entries that the database lacks. Returns how many entries that were."""
        entries, newest = self.ledger.entries(), self.database.last_seq()
        if newest >= len(entries):
            raise EvidenceError(
                f"the database covers ledger entry {newest}, the ledger ends at {len(entries) - 1}",
                where=str(self.root),
                hint="entries were removed from the ledger: run `assay audit`",
            )
        for entry in entries[newest + 1 :]:
            self.apply(entry)
        return len(entries) - 1 - newest

    def checkpoint(self) -> Entry:
        """Sign the ledger as it stands, and record the note."""
        if self.signer is None:
            raise EvidenceError("there is no key to sign with", where=str(self.root))
        head = Checkpoint(origin=self.origin, size=len(self.ledger), root=self.ledger.root())
        note = sign_checkpoint(head, self.signer)
        payload: dict[str, JsonValue] = {
            "size": head.size,
            "root": head.root.hex(),
            "key_hash": self.signer.public(head.origin).key_hash.hex(),
            "note": note.decode(),
        }
        return self.record("checkpoint.signed", payload, copies={note_name(head.size): note})

    def store_blob(self, name: str, role: str, content: bytes) -> SealedFile:
        """Store content that an entry will name."""
        return SealedFile(name, role, self.blobs.put(content))


def note_name(size: int) -> str:
    """Return where the note of a checkpoint lies below the store."""
    return f"checkpoints/{size}.note"


def key_name(payload: Mapping[str, JsonValue]) -> str:
    """Return where the public key of a ``key.added`` payload lies below the store."""
    return f"keys/{payload['file']}"


def copies_of(entry: Entry, blobs: BlobStore, *, left_out: Container[str] = ()) -> dict[str, bytes]:
    """Return the copies that an entry demands: path below the store, and content; those of ``left_out`` blobs aside.

    Raises `EvidenceError` for a name that could leave the store, and where a blob does not hold.
    """
    found = {name: content() for name, content in _copies_of(entry, blobs, left_out).items()}
    if unsafe := [name for name in found if not is_safe_name(name)]:
        raise EvidenceError(f"{unsafe[0]!r} could leave the store", where=f"ledger entry {entry.seq} ({entry.kind})")
    return found


def _copies_of(entry: Entry, blobs: BlobStore, left_out: Container[str]) -> dict[str, Callable[[], bytes]]:
    if entry.kind == "checkpoint.signed":
        return {note_name(entry.number("size")): entry.text("note").encode}
    if entry.kind == "key.added":
        return {key_name(entry.payload): f"{entry.text('verifier_key')}\n".encode}
    if entry.kind not in {"campaign.locked", "report.recorded"}:
        return {}
    folder, roles = f"campaigns/{entry.text('campaign')}", {"lock", "protocol", "report"}
    chosen = [item for item in entry.blobs() if item.get("role") in roles and item["sha256"] not in left_out]
    return {f"{folder}/{item['name']}": partial(blobs.read, str(item["sha256"])) for item in chosen}


def due_checkpoint(entries: Iterable[Entry]) -> Entry | None:
    """Return the newest entry that needs a checkpoint and has none after it."""
    due: Entry | None = None
    for entry in entries:
        if entry.kind in CHECKPOINTED:
            due = entry
        elif entry.kind == "checkpoint.signed":
            due = None
    return due
