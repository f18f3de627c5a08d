"""Which campaigns asked the same question: so that trying again until it passes stays visible.

A question is baseline, model, workload and metric; the candidate and the host are no part of it, so a rebuilt candidate
or another machine does not start a clean slate. Campaigns of one protocol id ask the same named question, whatever was
rebuilt since. Every campaign counts as an attempt from its lock on: judged, cancelled, interrupted, or left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from protocols.canonical import JsonValue, canonical_bytes, sha256_hex
from protocols.lock import Lock
from protocols.schema import Protocol
from recorder.campaign_state import CampaignState, read_campaigns
from recorder.imports import import_folders
from recorder.measure import protocol_of_source
from recorder.store import Store


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question. ``digest`` names baseline, model, the frozen request and the metric by hash."""

    name: str
    workload: str
    metric: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One campaign that asked a question. ``place`` is the store, or the imported bundle, that holds it.

    ``verdict`` is the newest recorded one, None while there is none; ``verdicts`` all of them, oldest first.
    ``same`` says why it counts: ``campaign`` (the one that was asked for), ``digest``, or ``name``.
    """

    campaign_id: str
    place: str
    locked_utc_ns: int
    candidate: str
    state: str
    verdict: str | None
    verdicts: tuple[str, ...]
    same: str


def questions_of(lock: Lock, protocol: Protocol) -> tuple[Question, ...]:
    """Return the questions of a campaign: one for each workload and metric that a gate judges.

    Exact tokens are a metric beside the rates, so that a campaign without a clock meets one with it.
    """
    asked = {(gate.workload, gate.metric) for gate in protocol.gates if gate.kind in {"loss", "screen_loss"}}
    exact = {(gate.workload, "exact") for gate in protocol.gates if gate.kind == "exact_tokens"}
    found = []
    for workload, metric in sorted(asked | exact):
        parts = {
            "baseline": _baseline(lock),
            "model": lock.model_sha256(),
            "request": lock.requests[protocol.workload(workload).request],
            "metric": metric,
        }
        digest = sha256_hex(canonical_bytes(parts))
        found.append(Question(name=lock.protocol_id, workload=workload, metric=metric, digest=digest))
    return tuple(found)


def _baseline(lock: Lock) -> JsonValue:
    baseline = lock.arms["baseline"]
    files: list[JsonValue] = [
        [name, sha256] for name, sha256 in sorted((one.name, one.sha256) for one in baseline.files)
    ]
    return files or dict(baseline.settings)


def earlier_attempts(store: Store, campaign_id: str) -> tuple[Attempt, ...]:
    """Return the campaigns of the store itself that were locked before this one and asked its question, oldest first.

    Each as it stood when this one was locked, so that what is told of it never changes. Only locks and protocols are
    read, which every bundle keeps. Raises `EvidenceError` where one cannot be read.
    """
    campaigns = read_campaigns(store.entries())
    own = campaigns[campaign_id].locked.seq
    lock = store.lock_of(campaign_id)
    digests: frozenset[str] | None = None
    found = []
    for name, state in campaigns.items():
        if state.locked.seq >= own:
            continue
        other = store.lock_of(name)
        same = "name" if other.protocol_id == lock.protocol_id else ""
        if _baseline(other) == _baseline(lock) and other.model_sha256() == lock.model_sha256():
            digests = _digests(store, campaign_id, lock) if digests is None else digests
            same = "digest" if digests & _digests(store, name, other) else same
        if same:
            known = _Known(place="", state=_as_it_stood(state, own), lock=other, questions=())
            found.append(_attempt(known, same))
    return tuple(found)


def _digests(store: Store, campaign_id: str, lock: Lock) -> frozenset[str]:
    protocol = protocol_of_source(store.protocol_of(campaign_id))
    return frozenset(question.digest for question in questions_of(lock, protocol))


def _as_it_stood(state: CampaignState, before: int) -> CampaignState:
    """Return a campaign without what was recorded of it from one ledger entry on; loads are left out."""
    return CampaignState(
        locked=state.locked,
        verdicts=[entry for entry in state.verdicts if entry.seq < before],
        others=[entry for entry in state.others if entry.seq < before],
    )


def attempts_of(root: Path, campaign: str) -> tuple[tuple[Question, ...], list[Attempt]]:
    """Return the questions of a campaign, and every campaign that asked one of them, oldest first.

    Bundles that the store imported count as well. Raises `EvidenceError` where store or campaign cannot be read.
    """
    with Store.open(root, read_only=True) as store:
        name = store.resolve_campaign(campaign)
    known = {(one.place, one.state.campaign_id): one for one in _campaigns(root, root)}
    questions = known[(str(root), name)].questions
    digests, names = {one.digest for one in questions}, {one.name for one in questions}
    found = []
    for one in known.values():
        same = "campaign" if (one.place, one.state.campaign_id) == (str(root), name) else ""
        same = same or ("digest" if digests & {question.digest for question in one.questions} else "")
        same = same or ("name" if names & {question.name for question in one.questions} else "")
        if same:
            found.append(_attempt(one, same))
    return questions, sorted(found, key=lambda attempt: (attempt.locked_utc_ns, attempt.campaign_id))


@dataclass(frozen=True, kw_only=True)
class _Known:
    place: str
    state: CampaignState
    lock: Lock
    questions: tuple[Question, ...]


def _campaigns(root: Path, folder: Path) -> Iterator[_Known]:
    with Store.open(folder, read_only=True) as store:
        entries = store.entries()
        for campaign_id, state in read_campaigns(entries).items():
            lock = store.lock_of(campaign_id)
            protocol = protocol_of_source(store.protocol_of(campaign_id))
            yield _Known(place=str(folder), state=state, lock=lock, questions=questions_of(lock, protocol))
    for one in import_folders(entries):
        if (folder / one.folder / "ledger.jsonl").is_file():
            yield from _campaigns(root, folder / one.folder)


def _attempt(one: _Known, same: str) -> Attempt:
    state, verdicts = one.state, tuple(entry.text("status") for entry in one.state.verdicts)
    events = [entry.kind for entry in state.others if entry.kind.startswith("campaign.")]
    word = "interrupted" if events and events[-1] == "campaign.interrupted" else "not finished"
    word = "cancelled" if state.is_cancelled else "judged" if verdicts else word
    return Attempt(
        campaign_id=state.campaign_id,
        place=one.place,
        locked_utc_ns=state.locked.utc_ns,
        candidate=_candidate(one.lock),
        state=word,
        verdict=verdicts[-1] if verdicts else None,
        verdicts=verdicts,
        same=same,
    )


def _candidate(lock: Lock) -> str:
    """Return a short name of the candidate's files: equal for equal builds."""
    files: Mapping[str, str] = {file.name: file.sha256 for file in lock.arms["candidate"].files}
    return sha256_hex(canonical_bytes(dict(files)))[:12] if files else lock.arms["candidate"].kind
