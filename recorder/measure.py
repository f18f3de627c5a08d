"""From the sealed loads of a campaign to what the gates see; used by the recorder and again by the audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from protocols.canonical import parse_real
from protocols.errors import ProtocolError
from protocols.lock import Lock, LockedPosition
from protocols.measurements import CampaignMeasurements, LoadMeasurement, RequestMeasurement
from protocols.schema import Protocol
from protocols.stats import Calibration
from protocols.yaml_tree import parse_yaml, plain_value
from recorder.anomalies import MarkedPhase
from recorder.campaign_state import CampaignState, LoadEntries
from recorder.checks import read_checks
from recorder.exchange_facts import ReadFacts, facts_reader
from recorder.host_counts import host_counts, partial_counts
from recorder.ledger import Entry
from recorder.load_files import SAMPLES, parse_samples
from recorder.rows import ReadBlob, seal_reason
from recorder.telemetry.sample import Sample


def measure_campaign(
    state: CampaignState, lock: Lock, read_blob: ReadBlob, *, protocol: Protocol, read_facts: ReadFacts | None = None
) -> CampaignMeasurements:
    """Derive the measurements of every load from raw bytes, in schedule order, and read what the checks left.

    Telemetry is read only where the protocol has rules of validity that look at it.

    A place that was tried again has one measurement for each sealed try; one that was never sealed has one without
    state. ``read_facts`` gives the exchanges of a load, where the caller has read them already.
    Raises `EvidenceError` if a blob is missing or damaged.
    """
    facts, shared = read_facts or facts_reader(read_blob), _Shared()
    loads: list[LoadMeasurement] = []
    for place in lock.schedule:
        tries = [load for load in state.loads.values() if load.index == place.index and load.sealed is not None]
        loads += [_measure(place, load, read_blob, protocol, facts, shared) for load in tries] or [_not_run(place)]
    checks = read_checks(state, read_blob) if protocol.checks else ()
    return CampaignMeasurements(loads=tuple(loads), checks=checks)


class _Shared(dict[tuple[int, ...], tuple[int, ...]]):
    """Token ids that loads have in common, kept once: a campaign may have millions."""

    def request(self, one: RequestMeasurement) -> RequestMeasurement:
        """Return a measurement with the ids that stand here already."""
        ids = one.token_ids
        return one if ids is None or (same := self.setdefault(ids, ids)) is ids else replace(one, token_ids=same)


def _measure(
    place: LockedPosition,
    load: LoadEntries,
    read_blob: ReadBlob,
    protocol: Protocol,
    read_facts: ReadFacts,
    shared: _Shared,
) -> LoadMeasurement:
    sealed = load.sealed
    if sealed is None:
        raise ValueError(f"{load.load_id} is not sealed")
    requests: list[RequestMeasurement] = []
    phases: list[MarkedPhase] = []
    for facts in read_facts(sealed):
        phases += facts.phases
        if facts.measurement is not None:
            requests.append(shared.request(facts.measurement))
    samples = _samples(sealed, read_blob) if protocol.validity else None
    return LoadMeasurement(
        index=place.index,
        label=place.label,
        arm=place.arm,
        block=place.block,
        is_burn_in=place.is_burn_in,
        state=load.state,
        reason=seal_reason(sealed, read_blob),
        requests=tuple(requests),
        host=None if samples is None else host_counts(samples, phases),
        host_partial=frozenset() if samples is None else partial_counts(samples),
    )


def _samples(sealed: Entry, read_blob: ReadBlob) -> Sequence[Sample] | None:
    names = {str(item["name"]): str(item["sha256"]) for item in sealed.blobs()}
    if SAMPLES not in names:
        return None
    return parse_samples(read_blob(names[SAMPLES])).samples


def _not_run(place: LockedPosition) -> LoadMeasurement:
    return LoadMeasurement(
        index=place.index,
        label=place.label,
        arm=place.arm,
        block=place.block,
        is_burn_in=place.is_burn_in,
        state=None,
    )


def protocol_of_source(source: bytes) -> Protocol:
    """Read the protocol that a campaign locked. Raises `ProtocolError` or ValueError if it cannot be read."""
    tree = parse_yaml(source, "protocol.yaml")
    if tree.problems:
        raise ProtocolError.from_problems("protocol.yaml", tree.problems)
    return Protocol.model_validate(plain_value(tree.root))


def locked_calibrations(lock: Lock) -> dict[tuple[str, str], Calibration]:
    """Return the calibrated noise that the lock froze, by (workload, metric)."""
    return {
        (one.workload, cast("str", one.metric)): Calibration(sigma=parse_real(one.sigma), df=one.df)
        for one in lock.calibrations
    }
