"""What the ledger says about one campaign: a pure reading of its entries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from protocols.canonical import JsonValue
from protocols.errors import EvidenceError, UsageError
from recorder.archive import is_safe_name
from recorder.ledger import Entry

SealedState = Literal["COMPLETE", "PARTIAL", "INVALID"]
_SUFFIX: Final = re.compile(r"-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}")
STATES: tuple[SealedState, ...] = ("COMPLETE", "PARTIAL", "INVALID")


@dataclass(frozen=True, kw_only=True)
class LoadEntries:
    """One load: the entry that opened it, and the one that sealed it if there is one."""

    opened: Entry
    sealed: Entry | None

    @property
    def load_id(self) -> str:
        """The load's name."""
        return self.opened.text("load")

    @property
    def position(self) -> Mapping[str, JsonValue]:
        """Its place in the schedule, as opened."""
        return cast("Mapping[str, JsonValue]", self.opened.payload["position"])

    @property
    def index(self) -> int:
        """Number of that place, from 0."""
        return cast("int", self.position["index"])

    @property
    def attempt(self) -> int:
        """Which try at this place it is, from 1."""
        return self.opened.number("attempt")

    @property
    def state(self) -> SealedState | None:
        """State in which it was sealed; None while it is open."""
        return None if self.sealed is None else cast("SealedState", self.sealed.text("state"))


@dataclass(kw_only=True)
class CampaignState:
    """The entries of one campaign by what they are. Loads stand in the order in which they were opened."""

    locked: Entry
    loads: dict[str, LoadEntries] = field(default_factory=dict)
    verdicts: list[Entry] = field(default_factory=list)
    reports: list[Entry] = field(default_factory=list)
    others: list[Entry] = field(default_factory=list)

    @property
    def campaign_id(self) -> str:
        """The campaign's name."""
        return self.locked.text("campaign")

    @property
    def lock_sha256(self) -> str:
        """Hash of its lock."""
        return self.locked.lock or ""

    @property
    def is_cancelled(self) -> bool:
        """Whether it was given up for good."""
        return any(entry.kind == "campaign.cancelled" for entry in self.others)

    def open_loads(self) -> list[LoadEntries]:
        """Return the loads that were opened and never sealed."""
        return [load for load in self.loads.values() if load.sealed is None]

    def completed_positions(self) -> frozenset[int]:
        """Return the numbers of the places that have a COMPLETE load."""
        return frozenset(load.index for load in self.loads.values() if load.state == "COMPLETE")

    def attempts(self, index: int) -> int:
        """Return how many loads were opened at one place."""
        return sum(load.index == index for load in self.loads.values())


def read_campaigns(entries: Iterable[Entry]) -> dict[str, CampaignState]:
    """Sort entries by campaign, in the order in which the campaigns were locked.

    Raises `EvidenceError` where an entry belongs to no campaign, or a load is sealed that was not open.
    """
    campaigns: dict[str, CampaignState] = {}
    for entry in entries:
        if "campaign" not in entry.payload:
            continue
        where = f"ledger entry {entry.seq} ({entry.kind})"
        name = entry.text("campaign")
        if not is_safe_name(name) or "/" in name:
            raise EvidenceError(f"{name!r} cannot name a campaign", where=where)
        if entry.kind == "campaign.locked":
            if name in campaigns:
                raise EvidenceError(f"campaign {name} is locked twice", where=where)
            campaigns[name] = CampaignState(locked=entry)
            continue
        if name not in campaigns:
            raise EvidenceError(f"campaign {name} was never locked", where=where)
        _sort_in(campaigns[name], entry, where)
    return campaigns


def _sort_in(state: CampaignState, entry: Entry, where: str) -> None:
    if entry.kind == "load.opened":
        load_id = entry.text("load")
        if not is_safe_name(load_id) or load_id.split("/")[:-1] != [state.campaign_id]:
            raise EvidenceError(f"{load_id!r} cannot name a load of {state.campaign_id}", where=where)
        if load_id in state.loads:
            raise EvidenceError(f"load {load_id} is opened twice", where=where)
        if not isinstance(entry.payload.get("position"), dict):
            raise EvidenceError("payload.position is no object", where=where)
        state.loads[load_id] = LoadEntries(opened=entry, sealed=None)
    elif entry.kind == "load.sealed":
        load = state.loads.get(entry.text("load"))
        if load is None or load.sealed is not None:
            raise EvidenceError(f"load {entry.text('load')} is sealed but was not open", where=where)
        if entry.text("state") not in STATES:
            raise EvidenceError(f"state is {entry.text('state')!r}, expected one of {', '.join(STATES)}", where=where)
        state.loads[load.load_id] = LoadEntries(opened=load.opened, sealed=entry)
    elif entry.kind == "verdict.recorded":
        state.verdicts.append(entry)
    elif entry.kind == "report.recorded":
        state.reports.append(entry)
    else:
        state.others.append(entry)


def name_campaign(protocol_id: str, locked_utc: str, draw: bytes) -> str:
    """Return the name of a campaign: its protocol's id, when it was locked (compact), and three random bytes."""
    return f"{protocol_id}-{locked_utc}-{draw.hex()}"


def resolve_campaign(campaigns: Mapping[str, CampaignState], text: str) -> str:
    """Return the campaign that ``latest``, a full name or a unique beginning of one means.

    A beginning that is a whole protocol id means that protocol's campaigns alone: `release` is not `release-full`.

    Raises `UsageError` where there is none or more than one.
    """
    names = list(campaigns)
    if not names:
        raise UsageError("the store holds no campaign", hint="run one with `assay run`")
    if text == "latest":
        return names[-1]
    if text in campaigns:
        return text
    of_protocol = [name for name in names if name.startswith(text) and _SUFFIX.fullmatch(name.removeprefix(text))]
    found = of_protocol or [name for name in names if name.startswith(text)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"there is no campaign {text!r}", hint="list them with `assay list`")
    raise UsageError(f"{text!r} can mean {len(found)} campaigns: {', '.join(found[:4])}", hint="write more of it")
