"""The ledger: one append-only JSONL file, each line the RFC 8785 form of an entry that names the line before it.

An entry is ``{"kind","lock","monotonic_ns","payload","prev","seq","utc_ns"}``. ``seq`` counts from 0 and is the
line number; ``prev`` is the SHA-256 of the line before (without its newline), 64 zeros for the first; ``lock`` is
the SHA-256 of the campaign's lock, null for entries of the store itself; both times are decimal strings.
Payloads hold identifiers, counts, states and hashes, never free text: that stands in salted blobs.

One process writes, under an exclusive flock. Each append is one write and one fsync. A crash can leave the beginning
of a line at the end of the file; `split_torn` tells it from damage, and the next writer moves it aside.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, cast

from protocols.canonical import JsonValue, canonical_bytes
from protocols.errors import EvidenceError
from recorder.clock import Clock, compact_utc
from recorder.files import Files, host_errors
from recorder.merkle import Tree, leaf_hash

FIRST_PREV: Final = "0" * 64
KINDS: Final = frozenset(
    {
        "store.created",
        "store.recovered",
        "key.added",
        "bundle.imported",
        "campaign.locked",
        "preflight.recorded",
        "receipt.recorded",
        "load.opened",
        "load.sealed",
        "campaign.interrupted",
        "campaign.resumed",
        "campaign.cancelled",
        "verdict.recorded",
        "review.recorded",
        "report.recorded",
        "checkpoint.signed",
    }
)
_KEYS: Final = frozenset({"kind", "lock", "monotonic_ns", "payload", "prev", "seq", "utc_ns"})
_HEX64: Final = re.compile(r"[0-9a-f]{64}")
_COUNT: Final = re.compile(r"0|[1-9][0-9]{0,19}")

Payload = Mapping[str, JsonValue]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the ledger. ``line`` holds its bytes without the newline."""

    seq: int
    kind: str
    lock: str | None
    prev: str
    utc_ns: int
    monotonic_ns: int
    payload: Payload
    line: bytes

    @property
    def sha256(self) -> str:
        """Return the hash of the line: the next entry's ``prev``."""
        return hashlib.sha256(self.line).hexdigest()

    def text(self, key: str) -> str:
        """Return a text member of the payload. Raises `EvidenceError` if it is missing or of another type."""
        value = self.payload.get(key)
        if not isinstance(value, str):
            raise EvidenceError(f"payload.{key} is no text", where=f"ledger entry {self.seq} ({self.kind})")
        return value

    def number(self, key: str) -> int:
        """Return an integer member of the payload. Raises `EvidenceError` if it is missing or of another type."""
        value = self.payload.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise EvidenceError(f"payload.{key} is no integer", where=f"ledger entry {self.seq} ({self.kind})")
        return value

    def blobs(self) -> tuple[Mapping[str, JsonValue], ...]:
        """Return the blobs that this entry names, each ``{"bytes","is_partial","name","role","sha256"}``."""
        value = self.payload.get("blobs", [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise EvidenceError("payload.blobs is no list of objects", where=f"ledger entry {self.seq} ({self.kind})")
        return tuple(cast("Mapping[str, JsonValue]", item) for item in value)

    def blob(self, role: str) -> str:
        """Return the name of the first blob with this role. Raises `EvidenceError` if there is none."""
        for item in self.blobs():
            if item.get("role") == role and isinstance(item.get("sha256"), str):
                return str(item["sha256"])
        raise EvidenceError(f"no blob with the role {role}", where=f"ledger entry {self.seq} ({self.kind})")


def encode_entry(
    *, seq: int, kind: str, lock: str | None, prev: str, utc_ns: int, monotonic_ns: int, payload: Payload
) -> Entry:
    """Make an entry and its line. Raises `EvidenceError` if the payload may not be hashed."""
    line = canonical_bytes(
        {
            "kind": kind,
            "lock": lock,
            "monotonic_ns": str(monotonic_ns),
            "payload": payload,
            "prev": prev,
            "seq": seq,
            "utc_ns": str(utc_ns),
        }
    )
    return Entry(
        seq=seq, kind=kind, lock=lock, prev=prev, utc_ns=utc_ns, monotonic_ns=monotonic_ns, payload=payload, line=line
    )


def parse_entry(line: bytes, *, seq: int) -> Entry:
    """Read one line. Raises `EvidenceError` that names the entry and the member that does not hold.

    A line that is JSON but not in canonical form is refused: two texts for one entry would be two hashes.
    """
    where = f"ledger entry {seq}"
    try:
        value = json.loads(line.decode("utf-8"))
        is_canonical = isinstance(value, dict) and canonical_bytes(value) == line
    except (ValueError, RecursionError, EvidenceError) as error:
        raise EvidenceError("the line is no canonical JSON", where=where) from error
    if not is_canonical:
        raise EvidenceError("the line is not in RFC 8785 form", where=where)
    if value.keys() != _KEYS:
        names = ", ".join(sorted(_KEYS ^ value.keys()))
        raise EvidenceError(f"missing or unknown members: {names}", where=where)
    if value["seq"] != seq or isinstance(value["seq"], bool):
        raise EvidenceError(f"seq is {value['seq']}, expected {seq}", where=where)
    if not isinstance(value["kind"], str) or value["kind"] not in KINDS:
        raise EvidenceError(f"kind is {value['kind']!r}, which is not known", where=where)
    for member, is_valid in (
        ("prev", _matches(_HEX64, value["prev"])),
        ("lock", value["lock"] is None or _matches(_HEX64, value["lock"])),
        ("monotonic_ns", _matches(_COUNT, value["monotonic_ns"])),
        ("utc_ns", _matches(_COUNT, value["utc_ns"])),
        ("payload", isinstance(value["payload"], dict)),
    ):
        if not is_valid:
            raise EvidenceError(f"{member} has the wrong form", where=where)
    return Entry(
        seq=seq,
        kind=value["kind"],
        lock=value["lock"],
        prev=value["prev"],
        utc_ns=int(value["utc_ns"]),
        monotonic_ns=int(value["monotonic_ns"]),
        payload=value["payload"],
        line=line,
    )


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


class LedgerBytes(NamedTuple):
    """The whole lines of a ledger file, and what lies behind the last newline."""

    lines: tuple[bytes, ...]
    torn: bytes


def split_torn(data: bytes) -> LedgerBytes:
    """Separate the whole lines from the unfinished one that a crash in the middle of an append leaves."""
    whole, newline, torn = data.rpartition(b"\n")
    return LedgerBytes(tuple(whole.split(b"\n")) if newline else (), torn)


def is_torn_append(torn: bytes) -> bool:
    """Whether these bytes can be the beginning of an entry's line, as a cut append leaves them.

    A line that is whole but followed by something else than a newline was not cut: it was changed.
    """
    start = b'{"kind":"'
    if not (start.startswith(torn) if len(torn) <= len(start) else torn.startswith(start)) or b"\x00" in torn:
        return False
    text = torn.decode("utf-8", "surrogateescape")
    try:
        _, stop = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return True
    return stop == len(text)


def read_entries(lines: tuple[bytes, ...]) -> Iterator[Entry]:
    """Parse whole lines in order and check the chain. Raises `EvidenceError` at the first entry that breaks it."""
    prev = FIRST_PREV
    for seq, line in enumerate(lines):
        entry = parse_entry(line, seq=seq)
        if entry.prev != prev:
            raise EvidenceError(f"prev is {entry.prev}, expected {prev}", where=f"ledger entry {seq}")
        prev = entry.sha256
        yield entry


class Ledger:
    """A ledger that is open for appending. The caller holds the store's lock."""

    def __init__(self, path: Path, *, files: Files, clock: Clock) -> None:
        """Open the file, checking every line. Raises `EvidenceError` if the chain is broken, `HostError` by the disk.

        A torn last line is moved into ``ledger.torn-<utc>`` beside it; `moved_aside` then names that file.
        """
        self.path: Final = path
        self._files: Final = files
        self._clock: Final = clock
        self._tree: Final = Tree()
        self._entries: list[Entry] = []
        self._is_broken = False
        self.moved_aside: str | None = None
        with host_errors("open the ledger", path):
            data = path.read_bytes() if path.exists() else b""
        lines, torn = split_torn(data)
        for entry in read_entries(lines):
            self._remember(entry)
        if torn:
            self._move_aside(torn, keep=len(data) - len(torn))
        with host_errors("open the ledger", path):
            self._descriptor: int | None = files.open_append(path)
            files.fsync_folder(path.parent)

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> tuple[Entry, ...]:
        """Return all entries, oldest first."""
        return tuple(self._entries)

    def root(self) -> bytes:
        """Return the Merkle root over all lines."""
        return self._tree.root()

    def next_entry(self, kind: str, payload: Payload, *, lock: str | None) -> Entry:
        """Make the entry that would come next, stamped now, without appending it.

        Raises `EvidenceError` if the payload may not be hashed.
        """
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of ledger entry")
        return encode_entry(
            seq=len(self._entries),
            kind=kind,
            lock=lock,
            prev=self._entries[-1].sha256 if self._entries else FIRST_PREV,
            utc_ns=self._clock.utc_ns(),
            monotonic_ns=self._clock.monotonic_ns(),
            payload=payload,
        )

    def append(self, entry: Entry) -> None:
        """Append the entry that `next_entry` made, and force it to the disk before returning.

        Raises `HostError` if the disk refuses; the ledger then takes nothing more until the store is opened again,
        because what reached the disk is not known.
        """
        if self._is_broken or self._descriptor is None:
            raise EvidenceError("the ledger is closed", where=str(self.path), hint="open the store again")
        if entry.seq != len(self._entries):
            raise ValueError(f"entry {entry.seq} cannot follow {len(self._entries)} entries")
        self._is_broken = True
        with host_errors("append to the ledger", self.path):
            self._files.write(self._descriptor, entry.line + b"\n")
            self._files.fsync(self._descriptor)
        self._is_broken = False
        self._remember(entry)

    def close(self) -> None:
        """Close the file; doing it twice is harmless."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with host_errors("close the ledger", self.path):
                self._files.close(descriptor)

    def _remember(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._tree.append(leaf_hash(entry.line))

    def _move_aside(self, torn: bytes, *, keep: int) -> None:
        if not is_torn_append(torn):
            raise EvidenceError(
                "the last line is damaged: it is not the beginning of an entry",
                where=f"ledger entry {len(self._entries)}",
                hint="run `assay audit`",
            )
        name = f"ledger.torn-{compact_utc(self._clock.utc_ns())}"
        target, number = self.path.with_name(name), 1
        while target.exists():
            number += 1
            target = self.path.with_name(f"{name}-{number}")
        with host_errors("move a torn ledger line aside", target):
            # The copy is on the disk before the line is cut, so that a crash between the two repeats this step.
            self._files.replace_file(target, torn)
            self._files.truncate(self.path, keep)
        self.moved_aside = target.name
