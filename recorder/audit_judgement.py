"""Checks of the judgement: what was locked, what was sent, and gates and verdict evaluated again from raw bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final, NamedTuple

from protocols.canonical import canonical_bytes, parse_real, sha256_hex
from protocols.errors import EvidenceError
from protocols.gates import evaluate_gates
from protocols.lock import Lock, locked_looks, locked_positions, parse_lock
from protocols.looks import levels_agree
from protocols.results import GateResult
from protocols.schedule import expand_schedule, seed_commitment
from protocols.schema import Protocol
from protocols.verdicts import combine
from recorder.audit_context import Audit, place_of
from recorder.campaign_state import CampaignState, LoadEntries, read_campaigns
from recorder.keys import parse_verifier_key
from recorder.ledger import Entry
from recorder.measure import locked_calibrations, measure_campaign, protocol_of_source
from recorder.reviews import review_problem
from recorder.row_values import read_object
from recorder.rows import REQUEST_INDEX, read_verdict

TOLERANCE: Final = 1e-12
"""Largest relative difference of a real number that is computed again."""


class Locked(NamedTuple):
    """What one campaign locked."""

    lock: Lock
    protocol: Protocol


class Judged(NamedTuple):
    """One recorded verdict: the gate results computed again, and what was recorded."""

    entry: Entry
    superseded_by: Entry | None
    results: tuple[GateResult, ...]
    recorded: list[dict[str, Any]]
    verdict: dict[str, Any]


def _locked(audit: Audit, state: CampaignState) -> Locked:
    return audit.once(("locked", state.campaign_id), lambda: _read_locked(audit, state))


def _read_locked(audit: Audit, state: CampaignState) -> Locked:
    lock = parse_lock(audit.read_blob(state.locked.blob("lock")))
    return Locked(lock, protocol_of_source(audit.read_blob(state.locked.blob("protocol"))))


def check_promises(audit: Audit) -> None:
    """(12) What the lock names by hash is what was recorded beside it."""
    for state in audit.chosen():
        with audit.tolerating_redaction(place_of(state.locked), "what the lock froze"):
            _check_promises(audit, state)


def _check_promises(audit: Audit, state: CampaignState) -> None:
    lock, protocol = _locked(audit, state)
    where = place_of(state.locked)
    index = read_object(audit.read_blob(state.locked.blob(REQUEST_INDEX)), where)
    requests = {reference: sha256_hex(audit.read_blob(str(name))) for reference, name in index.items()}
    texts = {str(item["name"]): str(item["sha256"]) for item in state.locked.blobs() if item["role"] == "text"}
    margins = {(gate.id, gate.margin_pct, gate.alpha) for gate in protocol.gates if gate.kind == "loss"}
    locked_margins = {(one.gate, one.margin_pct, one.alpha) for one in lock.margins}
    pairs: tuple[tuple[str, object, object], ...] = (
        ("lock_sha256", state.locked.lock, lock.sha256()),
        ("protocol_id", protocol.id, lock.protocol_id),
        ("protocol_sha256", protocol.sha256(), lock.protocol_sha256),
        ("requests", requests, lock.requests),
        ("text_blobs", texts, lock.text_blobs),
        ("schedule", locked_positions(expand_schedule(protocol.schedule)), lock.schedule),
        ("seed_commitment", seed_commitment(protocol.schedule), lock.seed_commitment),
        ("margins", sorted(margins) if lock.margins else [], sorted(locked_margins)),
        ("looks", True, _levels_hold(lock, protocol)),
        ("request files", set(protocol.request_references()), set(lock.requests)),
    )
    for member, expected, found in pairs:
        audit.items += 1
        if expected != found:
            place = f"{where}: lock of {state.campaign_id}, {member}"
            audit.find(place, message="the lock and what it froze differ", expected=expected, found=found)


def _levels_hold(lock: Lock, protocol: Protocol) -> bool:
    """Whether the locked levels of looks are those of the protocol's own rule, up to the noise of another generator."""
    found = lock.levels()
    expected = lock.model_copy(update={"looks": locked_looks(protocol)}).levels()
    return found.keys() == expected.keys() and all(levels_agree(found[name], expected[name]) for name in found)


def check_requests(audit: Audit) -> None:
    """(13) Each measured request is the locked one, on its route; its record obeys the framing."""
    for state in audit.chosen():
        lock, protocol = _locked(audit, state)
        for load in state.loads.values():
            if load.sealed is not None:
                with audit.tolerating_redaction(place_of(load.sealed), f"the requests of {load.load_id}"):
                    _check_exchanges(audit, load, load.sealed, lock, protocol)
    audit.counts["requests"] = audit.items


def _check_exchanges(audit: Audit, load: LoadEntries, sealed: Entry, lock: Lock, protocol: Protocol) -> None:
    for facts in audit.facts.facts(sealed):
        exchange = facts.exchange
        place = f"{place_of(sealed)}: {load.load_id}, {exchange.file}"
        audit.items += 1
        for problem in facts.problems:
            audit.find(place, message=f"the record breaks its framing: {problem}")
        if facts.measurement is None or facts.is_unsent:
            continue
        workload = protocol.workload(str(exchange.workload))
        warmup = workload.warmup.request if workload.warmup is not None else None
        reference = warmup if exchange.is_warmup else workload.request
        expected = None if reference is None else lock.requests.get(reference)
        found = facts.body_sha256
        if found != expected:
            audit.find(f"{place}: body", message=f"not the locked request {reference}", expected=expected, found=found)
        for found in (facts.target, exchange.route):
            if found != workload.route:
                audit.find(f"{place}: route", message="not the locked route", expected=workload.route, found=found)


def _judged(audit: Audit) -> list[Judged]:
    """Judge every recorded verdict again, over what was sealed when it was given; later loads do not change it."""
    found: list[Judged] = []
    for state in audit.chosen():
        lock, protocol = _locked(audit, state)
        for entry in state.verdicts:
            then = read_campaigns(audit.entries[: entry.seq])[state.campaign_id]
            with audit.tolerating_redaction(place_of(entry), "gates and verdict"):
                measured = measure_campaign(
                    then, lock, audit.read_blob, protocol=protocol, read_facts=audit.facts.facts
                )
                calibrations, levels = locked_calibrations(lock), lock.levels()
                results = evaluate_gates(protocol, measured, calibrations=calibrations, levels=levels)
                later = next((one for one in state.verdicts if one.payload.get("rejudges") == entry.seq), None)
                found.append(Judged(entry, later, results, *read_verdict(entry, audit.read_blob)))
    return found


def _as_recorded(payload: Mapping[str, object]) -> dict[str, Any]:
    """Return a payload as it reads back from canonical JSON: tuples are lists there."""
    value: dict[str, Any] = json.loads(canonical_bytes(payload))
    return value


def check_gates(audit: Audit) -> None:
    """(14) The gates, evaluated again from raw bytes, give what is recorded."""
    for judged in audit.once(("judged",), lambda: _judged(audit)):
        with _unless_superseded(audit, judged):
            _check_gates(audit, judged)
    audit.counts["gates"] = audit.items


def _check_gates(audit: Audit, judged: Judged) -> None:
    entry, results, recorded = judged.entry, judged.results, judged.recorded
    where = place_of(entry)
    found_ids, expected_ids = [one.get("id") for one in recorded], [result.id for result in results]
    if found_ids != expected_ids:
        audit.find(f"{where}: gates", message="not the locked gates", expected=expected_ids, found=found_ids)
        return
    for result, one in zip(results, recorded, strict=True):
        audit.items += 1
        for path, expected, found in differences(_as_recorded(result.payload()), one):
            place = f"{where}: gate {result.id}{path}"
            audit.find(place, message="not what the raw bytes give", expected=expected, found=found)
    short = [{name: one.get(name) for name in ("id", "kind", "status", "required")} for one in recorded]
    if short != entry.payload["gates"]:
        audit.find(f"{where}: payload.gates", message="not the recorded results", expected=short)


def check_verdict(audit: Audit) -> None:
    """(15) The verdict is the combination of the gates."""
    for judged in audit.once(("judged",), lambda: _judged(audit)):
        with _unless_superseded(audit, judged):
            _check_verdict(audit, judged)
    for state in audit.chosen():
        _check_rejudged(audit, state)
    audit.counts["verdicts"] = audit.items


@contextmanager
def _unless_superseded(audit: Audit, judged: Judged) -> Iterator[None]:
    """Take what the block finds for an open point where a later verdict judges this one again: that one counts."""
    before = len(audit.findings)
    yield
    later = judged.superseded_by
    if later is not None and len(audit.findings) > before:
        del audit.findings[before:]
        audit.open_points.append(
            f"{place_of(judged.entry)}: not the verdict that this Assay gives; {place_of(later)} judges it again"
        )


def _check_rejudged(audit: Audit, state: CampaignState) -> None:
    """Each further verdict links to the one before it."""
    for before, entry in pairwise(state.verdicts):
        found = entry.payload.get("rejudges")
        if found != before.seq:
            place = f"{place_of(entry)}: payload.rejudges"
            audit.find(place, message="it must link to the verdict before it", expected=before.seq, found=found)
    if state.verdicts and "rejudges" in state.verdicts[0].payload:
        audit.find(f"{place_of(state.verdicts[0])}: payload.rejudges", message="there is no verdict before it")


def _check_verdict(audit: Audit, judged: Judged) -> None:
    entry, results, recorded = judged.entry, judged.results, judged.verdict
    audit.items += 1
    where, verdict = place_of(entry), combine(results)
    for path, expected, found in differences(_as_recorded(verdict.payload()), recorded):
        audit.find(f"{where}: verdict{path}", message="not what the gates give", expected=expected, found=found)
    for member, expected in (("status", verdict.status), ("exit_code", verdict.exit_code)):
        if entry.payload[member] != expected:
            place = f"{where}: payload.{member}"
            audit.find(place, message="not what the gates give", expected=expected, found=entry.payload[member])


def check_against(audit: Audit) -> None:
    """(18) The campaign promised exactly what a lock says that was kept elsewhere."""
    if audit.against is None:
        return
    state = audit.chosen()[-1]
    expected, found = json.loads(audit.against), json.loads(audit.read_blob(state.locked.blob("lock")))
    audit.items += 1
    where = f"{place_of(state.locked)}: lock of {state.campaign_id}"
    named = [*differences(expected, found)]
    for path, wanted, other in named:
        audit.find(f"{where}{path}", message="not what was promised", expected=wanted, found=other)
    if expected != found and not named:
        audit.find(where, message="a real number differs in its last digits from the lock that was kept elsewhere")


def check_reviews(audit: Audit) -> None:
    """(17) Each review links to a recorded verdict, and is signed by the key that it names."""
    origin = audit.entries[0].text("origin")
    for state in audit.campaigns().values():
        for entry in state.others:
            if entry.kind != "review.recorded":
                continue
            audit.items += 1
            if (problem := review_problem(entry, state, origin)) is not None:
                audit.find(place_of(entry), message=problem)
            elif not any(parse_verifier_key(entry.text("verifier_key")).raw == key.raw for key in audit.trusted_keys):
                audit.open_points.append(f"{place_of(entry)}: its reviewer's key is not one of the trusted keys")


def differences(expected: object, found: object, path: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield path, expected and found of each member that differs. Texts of real numbers may differ by 1e-12.

    Where a number differs within that, the sentences beside it may differ in their last digit: they are let pass.
    """
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for name in sorted(expected.keys() | found.keys()):
            if name == "reason" and not _same_text(expected, found):
                continue
            yield from differences(expected.get(name), found.get(name), f"{path}.{name}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for place, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{path}[{place}]")
    elif type(expected) is not type(found) or (expected != found and not _is_close(expected, found)):
        yield path, expected, found


def _same_text(expected: Mapping[str, object], found: Mapping[str, object]) -> bool:
    """Whether all members but the reason agree to the last digit."""
    return all(expected.get(name) == found.get(name) for name in expected.keys() | found.keys() if name != "reason")


def _is_close(expected: object, found: object) -> bool:
    if not isinstance(expected, str) or not isinstance(found, str):
        return False
    try:
        return math.isclose(parse_real(expected), parse_real(found), rel_tol=TOLERANCE, abs_tol=0.0)
    except EvidenceError:
        return False
