"""What the checks of an audit share: the ledger as read, what was found, and what the result looks like."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self, TypedDict, TypeVar, cast

from protocols.errors import EvidenceError, UsageError
from recorder.blobs import BlobStore
from recorder.campaign_state import CampaignState, read_campaigns, resolve_campaign
from recorder.db import Database
from recorder.exchange_facts import FactMemory
from recorder.files import Files
from recorder.keys import VerifierKey
from recorder.ledger import Entry, parse_entry, split_torn
from recorder.manifest import Manifest
from recorder.merkle import Tree, consistency_proof
from recorder.store_lock import is_held, read_holder

Level = Literal["structure", "hashes", "chain", "tables", "recompute"]
LEVELS: Final[tuple[Level, ...]] = ("structure", "hashes", "chain", "tables", "recompute")
T = TypeVar("T")
Trust = Literal["VERIFIED", "SELF_CONSISTENT"]

_KEPT_PER_CHECK: Final = 50
_HEAD: Final = re.compile(r"(0|[1-9][0-9]{0,15}):([0-9a-f]{64})")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that does not hold.

    ``check`` is the label of the check, ``place`` the file below the store, the ledger entry, or table, key and
    column; ``entry``, ``file`` and ``field`` are its parts, None where it has no such part. ``expected`` and ``found``
    are texts; None where there is nothing to show.
    """

    check: str
    place: str
    entry: int | None
    file: str | None
    field: str | None
    expected: str | None
    found: str | None
    message: str


@dataclass(frozen=True, kw_only=True)
class CheckOutcome:
    """One of the numbered checks: held, broken, or skipped; and how many things it looked at."""

    number: int
    label: str
    state: Literal["held", "broken", "skipped"]
    items: int


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """What an audit found. ``findings`` stand in the order of the checks: the first is the first that does not hold.

    ``notes`` say why the store is partial, ``open_points`` what stays unproven. ``head`` is the newest head, to be
    pinned elsewhere.
    """

    findings: tuple[Finding, ...]
    trust: Trust
    is_partial: bool
    counts: Mapping[str, int]
    checks: tuple[CheckOutcome, ...]
    notes: tuple[str, ...]
    open_points: tuple[str, ...]
    head: str | None
    consistency_proof: tuple[bytes, ...]
    """RFC 6962 proof that the ledger at ``head`` continues the pinned head; empty without one."""

    @property
    def is_sound(self) -> bool:
        """Whether everything that was checked holds."""
        return not self.findings


class LeftOutError(EvidenceError):
    """A blob that is needed was left out of a redacted bundle."""


class PlaceParts(TypedDict):
    """Where something does not hold, as a text and in parts."""

    place: str
    entry: int | None
    file: str | None
    field: str | None


class PinnedHead(NamedTuple):
    """A head that was kept elsewhere: the first ``size`` entries have this Merkle root."""

    size: int
    root: bytes


class Audit:
    """The state of one audit. A context manager: it may hold a database and a temporary copy of it."""

    def __init__(
        self,
        root: Path,
        *,
        campaign: str | None,
        trusted_keys: tuple[VerifierKey, ...],
        head: str | None,
        against: bytes | None = None,
        revoked_keys: tuple[VerifierKey, ...] = (),
    ) -> None:
        self.root: Final = root
        self.blobs: Final = BlobStore(root / "blobs" / "sha256", Files())
        self.trusted_keys: Final = trusted_keys
        self.revoked_keys: Final = revoked_keys
        self.head: Final = _parse_head(head)
        self.against: Final = against
        """Bytes of a lock that was kept elsewhere."""
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.open_points: list[str] = []
        self.counts: dict[str, int] = {}
        self.items = 0
        self.trust: Trust = "SELF_CONSISTENT"
        self.entries: tuple[Entry, ...] = ()
        self.is_unreadable = False
        self.manifest: Manifest | None = None
        """The manifest, where this is a bundle."""
        self.left_out: frozenset[str] = frozenset()
        self.has_no_database = False
        self.expected_files: set[str] = set()
        self.has_schema = False
        self.tree: Final = Tree()
        self.facts: Final = FactMemory(self.read_blob)
        self.broken_blobs: set[str] = set()
        self._campaign: Final = campaign
        self.is_pinned: Final = head is not None or campaign is not None
        self._check = ""
        self._made: Final[dict[tuple[str, ...], object]] = {}
        self._resources: Final = ExitStack()
        self.database: Database | None = None
        # The lock is looked at before the ledger is read: a recorder that starts in between only adds.
        self.is_live: Final = is_held(root / "store.lock")
        self.was_left_open: Final = bool(read_holder(root / "store.lock"))
        if self.is_live:
            self.notes.append("a recorder has the store open")
        elif self.was_left_open:
            self.notes.append("the last recorder was killed; the next one finishes what it left")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    def begin(self, check: str) -> None:
        """Start a check."""
        self._check, self.items = check, 0

    def find(self, place: str | Path, *, message: str, expected: object = None, found: object = None) -> None:
        """Report something that does not hold; a check keeps its first 50."""
        self.items += 1
        if sum(finding.check == self._check for finding in self.findings) >= _KEPT_PER_CHECK:
            self.counts["findings_left_out"] = self.counts.get("findings_left_out", 0) + 1
            return
        self.findings.append(
            Finding(
                check=self._check,
                **_parts_of(self._short(place)),
                expected=_shown(expected),
                found=_shown(found),
                message=message,
            )
        )

    def tolerate(self, place: str | Path, *, message: str, expected: object = None, found: object = None) -> None:
        """Report what a killed or running recorder may leave: a note if the store was left open, else a finding."""
        if self.is_live or self.was_left_open:
            self.notes.append(f"{self._short(place)}: {message}")
        else:
            self.find(place, message=message, expected=expected, found=found)

    def _short(self, place: str | Path) -> str:
        text = str(place)
        return text.removeprefix(f"{self.root}/") if text != str(self.root) else "."

    def read_ledger(self) -> tuple[tuple[bytes, ...], bytes]:
        """Return the whole lines of the ledger, and what lies behind the last newline."""
        path = self.root / "ledger.jsonl"
        return split_torn(path.read_bytes() if path.is_file() else b"")

    def entries_by_now(self) -> tuple[Entry, ...]:
        """Return the entries that were checked, and those that a running recorder added since.

        A file that a recorder writes while this audit reads is named by the ledger, so a held lock
        excuses nothing.
        """
        entries = list(self.entries)
        if self.is_live:
            lines, _ = self.read_ledger()
            for seq in range(len(entries), len(lines)):
                try:
                    entries.append(parse_entry(lines[seq], seq=seq))
                except EvidenceError:
                    break  # the next audit reads it first and names it
        return tuple(entries)

    def campaigns(self) -> dict[str, CampaignState]:
        """Return every campaign."""
        return read_campaigns(self.entries)

    def chosen(self) -> list[CampaignState]:
        """Return the campaigns whose judgement is checked."""
        campaigns = self.campaigns()
        if self._campaign is None:
            return list(campaigns.values())
        return [campaigns[resolve_campaign(campaigns, self._campaign)]]

    def read_blob(self, sha256: str) -> bytes:
        """Return the content of a blob, verified.

        Raises `LeftOutError` if a redacted bundle left it out, `EvidenceError` if it does not hold.
        """
        if sha256 in self.left_out:
            raise LeftOutError("the blob was left out", where=str(self.blobs.path_of(sha256)))
        return self.blobs.read(sha256)

    @contextmanager
    def tolerating_redaction(self, place: str, what: str) -> Iterator[None]:
        """Run the block; where it needs a blob that was left out, say that this stays unproven."""
        try:
            yield
        except LeftOutError:
            self.open_points.append(f"{place}: {what} cannot be checked without what was left out")

    def once(self, key: tuple[str, ...], make: Callable[[], T]) -> T:
        """Return what ``make`` gives, made once for this key: several checks look at the same thing."""
        if key not in self._made:
            self._made[key] = make()
        return cast("T", self._made[key])

    def open_database(self) -> Database:
        """Return the database, opened once. Raises `EvidenceError` if it cannot be read."""
        if self.database is None:
            self.database = Database.open_read_only(self.root / "assay.sqlite", is_live=self.is_live)
            self._resources.callback(self.database.close)
        return self.database

    def _consistency_proof(self) -> tuple[bytes, ...]:
        if self.head is None or self.findings or not 0 < self.head.size <= len(self.tree):
            return ()
        return tuple(consistency_proof(self.tree.leaves(), self.head.size))

    def result(self, checks: tuple[CheckOutcome, ...]) -> AuditResult:
        """Return what was found."""
        return AuditResult(
            findings=tuple(self.findings),
            trust=self.trust if not self.findings else "SELF_CONSISTENT",
            is_partial=bool(self.notes),
            counts=dict(self.counts),
            checks=checks,
            notes=tuple(dict.fromkeys(self.notes)),
            open_points=tuple(self.open_points),
            head=f"{len(self.tree)}:{self.tree.root().hex()}" if len(self.tree) else None,
            consistency_proof=self._consistency_proof(),
        )


def place_of(entry: Entry, member: str | None = None) -> str:
    """Return how a finding names an entry, and a member of it."""
    text = f"ledger entry {entry.seq} ({entry.kind})"
    return text if member is None else f"{text}: {member}"


def _parts_of(place: str) -> PlaceParts:
    """Split a place into ledger entry, file and field."""
    entry = re.match(r"ledger entry ([0-9]+)(?: \([a-z.]+\))?(?:: (.+))?$", place, re.DOTALL)
    if entry is not None:
        return PlaceParts(place=place, entry=int(entry[1]), file="ledger.jsonl", field=entry[2])
    file, _, field = place.partition(": ")
    row = re.search(r"\b(?:entry_)?seq ([0-9]+)", field)
    return PlaceParts(place=place, entry=int(row[1]) if row else None, file=file, field=field or None)


def _shown(value: object) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"


def _parse_head(head: str | None) -> PinnedHead | None:
    if head is None:
        return None
    match = _HEAD.fullmatch(head)
    if match is None:
        raise UsageError(f"{head!r} is no head of a ledger", hint="its form is <entries>:<Merkle root in hex>")
    return PinnedHead(int(match.group(1)), bytes.fromhex(match.group(2)))
