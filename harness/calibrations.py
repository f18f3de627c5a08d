"""Calibrations of this host: found in a store, measured by A/A campaigns, frozen into locks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from harness.preparation import Prepared
from protocols.calibration import (
    HostCalibration,
    expiry,
    host_of,
    misfits,
    newest,
    noise_of_loads,
    parse_calibration,
    subject_of,
)
from protocols.canonical import real_text
from protocols.errors import EvidenceError, ProtocolError
from protocols.load import LoadedProtocol, parse_protocol
from protocols.lock import LockedCalibration
from protocols.metrics import choose_clock, load_rate
from protocols.schedule import LOADS_PER_BLOCK, expand_schedule
from protocols.schema import BundledEngine, LossGate, Protocol
from protocols.stats import Observation
from protocols.vocabulary import Metric
from recorder.measure import protocol_of_source
from recorder.store import LEDGER, Store
from recorder.telemetry.facts import firmware_facts, host_facts

RECEIPT: Final = "calibration"
METRICS: Final[tuple[Metric, ...]] = ("prefill_rate", "generation_rate")
SUFFIX: Final = ".calibration"
_MOST_MINUTES: Final = 10_080
_MOST_SALT: Final = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Found:
    """The calibration that holds for one workload and metric now; else None, and why the nearest does not."""

    calibration: HostCalibration | None
    misfits: tuple[str, ...] = ()


def this_host() -> dict[str, str | int | None]:
    """Return the facts of this host that calibrations hold for."""
    return host_of({**host_facts(), **firmware_facts()})


def recorded(store: Store) -> tuple[HostCalibration, ...]:
    """Return every calibration of a store, oldest first."""
    return tuple(
        parse_calibration(json.loads(store.blobs.read(entry.blob("detail"))), entry.sha256)
        for entry in store.entries()
        if entry.kind == "receipt.recorded" and entry.payload.get("receipt") == RECEIPT
    )


def calibrations_in(store_root: Path) -> tuple[HostCalibration, ...]:
    """Return every calibration below a folder; empty where there is no store."""
    if not (store_root / LEDGER).is_file():
        return ()
    with Store.open(store_root, read_only=True) as store:
        return recorded(store)


def find(
    protocol: Protocol,
    workload_id: str,
    metric: str,
    known: tuple[HostCalibration, ...],
    *,
    now: datetime | None = None,
) -> Found:
    """Return the newest calibration that holds for one workload and metric on this host now."""
    subject, host = subject_of(protocol, protocol.workload(workload_id)), this_host()
    now = now or datetime.now(UTC)
    alike = [one for one in known if one.metric == metric]
    reasons = {one.receipt_sha256 + one.workload: misfits(one, subject, host, now) for one in alike}
    holding = newest([one for one in alike if not reasons[one.receipt_sha256 + one.workload]])
    if holding is not None or not alike:
        return Found(calibration=holding)
    nearest = min(reasons.values(), key=lambda found: len(found))
    return Found(calibration=None, misfits=tuple(nearest))


def with_calibrations(prepared: Prepared, store_root: Path) -> Prepared:
    """Freeze into the lock the noise that the loss gates of a protocol with `sigma: calibrated` need.

    ProtocolError where a claim of non-inferiority rests on noise that nobody calibrated here: it could not be decided.
    """
    protocol = prepared.protocol
    if protocol.sigma != "calibrated":
        return prepared
    known, rows, seen = calibrations_in(store_root), [], set()
    for gate in protocol.gates:
        if not isinstance(gate, LossGate) or (gate.workload, gate.metric) in seen:
            continue
        found = find(protocol, gate.workload, gate.metric, known)
        if found.calibration is not None:
            seen.add((gate.workload, gate.metric))
            rows.append(_locked(gate, found.calibration))
        elif gate.required and protocol.claim == "non_inferiority":
            why = f": {'; '.join(found.misfits)}" if found.misfits else ""
            raise ProtocolError(
                f"gate {gate.id} rests on calibrated noise, and this host has no calibration that holds{why}",
                where=f"{protocol.id}: sigma",
                hint=f"run `assay calibrate {prepared.loaded.path.name}`, or write claim: screen",
            )
    return replace(prepared, lock=prepared.lock.model_copy(update={"calibrations": tuple(rows)}))


def _locked(gate: LossGate, calibration: HostCalibration) -> LockedCalibration:
    return LockedCalibration(
        workload=gate.workload,
        metric=gate.metric,
        sigma=real_text(calibration.sigma),
        df=calibration.df,
        receipt_sha256=calibration.receipt_sha256,
        expires_utc=calibration.expires_utc,
    )


def calibration_id(protocol_id: str) -> str:
    """Return the id of the A/A protocol of a protocol."""
    return protocol_id[: 64 - len(SUFFIX)].rstrip("-_.") + SUFFIX


def calibration_protocol(loaded: LoadedProtocol, *, loads: int, is_relinked: bool) -> LoadedProtocol:
    """Return the A/A protocol of a protocol: its baseline against itself, or against a relink of the same objects.

    ProtocolError where a relink is asked of an engine that is no build of ours.
    """
    protocol = loaded.protocol
    value: dict[str, Any] = protocol.model_dump(mode="json")
    candidate = json.loads(json.dumps(value["arms"]["baseline"]))
    if is_relinked:
        engine = protocol.arms.baseline.engine
        if not isinstance(engine, BundledEngine):
            message = f"found an engine of kind {engine.kind}, which cannot be relinked"
            raise ProtocolError(message, where=f"{protocol.id}: arms.baseline", hint="leave out --relink")
        candidate["engine"]["layout_salt"] = (engine.layout_salt + 1) % _MOST_SALT
    before = len(expand_schedule(protocol.schedule))
    minutes = math.ceil(protocol.limits.campaign_min * (loads + 1) / before)
    value |= {
        "id": calibration_id(protocol.id),
        "title": f"A/A loads of {protocol.id}"[:200],
        "claim": "screen",
        "purpose": "Calibrates the noise of a fresh load on this host: both arms are the same engine.",
        "schedule": {"kind": "blocks", "blocks": loads // LOADS_PER_BLOCK, "order": "abba", "burn_in": True},
        "sigma": "loads",
        "gates": [{"id": "complete", "kind": "completeness"}],
        "margin_reason": None,
        "expect": None,
    }
    value["arms"]["candidate"] = candidate
    value["limits"] = {**value["limits"], "campaign_min": min(minutes, _MOST_MINUTES)}
    for budget in ("loads", "looks_min"):
        value["limits"].pop(budget, None)
    return parse_protocol((json.dumps(value, indent=1) + "\n").encode(), loaded.path)


def record(store: Store, campaign: str, *, days: int) -> tuple[HostCalibration, ...]:
    """Compute the noise that a complete A/A campaign shows, record it, and return what was recorded.

    EvidenceError where the campaign is not complete, or compares two different engines.
    """
    campaign_id = store.resolve_campaign(campaign)
    lock = store.lock_of(campaign_id)
    protocol = protocol_of_source(store.protocol_of(campaign_id))
    is_relinked = _relinked(protocol, campaign_id)
    verdict = store.verdict_of(campaign_id)
    if verdict is None or any(one["kind"] == "completeness" and one["status"] != "PASS" for one in verdict[0]):
        raise EvidenceError(f"campaign {campaign_id} is not complete", hint="`assay resume` goes on with it")
    made, expires = expiry(datetime.now(UTC), days)
    host = host_of({**lock.host, **firmware_facts()})
    recorder, made_here = store.campaign_recorder(campaign_id), []
    for workload, metric, seen in _observations(store, campaign_id, protocol):
        sigma, df, change = noise_of_loads(seen, is_relinked=is_relinked)
        one = HostCalibration(
            workload=workload,
            metric=metric,
            sigma=sigma,
            df=df,
            loads=len(seen),
            kind="A/A relinked" if is_relinked else "A/A",
            relink_change=change,
            subject=subject_of(protocol, protocol.workload(workload)),
            host=host,
            made_utc=made,
            expires_utc=expires,
            campaign=campaign_id,
        )
        recorder.record_receipt(RECEIPT, one.payload())
        made_here.append(replace(one, receipt_sha256=store.entries()[-1].sha256))
    return tuple(made_here)


def _relinked(protocol: Protocol, campaign_id: str) -> bool:
    """Whether the arms differ in the order of linking; EvidenceError where they differ in more."""
    arms: Mapping[str, Any] = protocol.arms.model_dump(mode="json")
    baseline, candidate = arms["baseline"], json.loads(json.dumps(arms["candidate"]))
    if baseline == candidate:
        return False
    if "layout_salt" in candidate["engine"] and "layout_salt" in baseline["engine"]:
        candidate["engine"]["layout_salt"] = baseline["engine"]["layout_salt"]
        if baseline == candidate:
            return True
    raise EvidenceError(
        f"campaign {campaign_id} compares two engines, which is no A/A", hint="`assay calibrate PROTOCOL` runs one"
    )


def _observations(
    store: Store, campaign_id: str, protocol: Protocol
) -> Iterator[tuple[str, Metric, list[Observation]]]:
    loads = [one for one in store.measurements(campaign_id).loads if one.state == "COMPLETE" and not one.is_burn_in]
    for workload in protocol.workloads:
        for metric in METRICS:
            clock = choose_clock(loads, workload.id, metric)
            rates = [load_rate(load, workload.id, metric, clock) if clock else None for load in loads]
            known = [rate for rate in rates if rate is not None]
            if len(known) == len(loads):
                yield (
                    workload.id,
                    metric,
                    [
                        Observation(
                            index=one.index, is_candidate=one.arm == "candidate", rate=one.rate, block=one.block
                        )
                        for one in known
                    ],
                )
