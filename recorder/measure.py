"""From the sealed loads of a campaign to what the gates see; used by the recorder and again by the audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from protocols.canonical import parse_real
from protocols.errors import ProtocolError
from protocols.lock import Lock, LockedPosition
from protocols.measurements import CampaignMeasurements, LoadMeasurement
from protocols.schema import Protocol
from protocols.stats import Calibration
from protocols.yaml_tree import parse_yaml, plain_value
from recorder.campaign_state import CampaignState, LoadEntries
from recorder.checks import read_checks
from recorder.host_counts import host_counts
from recorder.ledger import Entry
from recorder.load_files import SAMPLES, parse_samples
from recorder.phase_rows import marked_phases
from recorder.request_rows import ReadExchange
from recorder.rows import ReadBlob, read_exchanges, seal_reason


def measure_campaign(
    state: CampaignState, lock: Lock, read_blob: ReadBlob, *, protocol: Protocol
) -> CampaignMeasurements:
    """Derive the measurements of every load from raw bytes, in schedule order, and read what the checks left.

    Telemetry is read only where the protocol has rules of validity that look at it.

    A place that was tried again has one measurement for each sealed try; one that was never sealed has one without
    state. Raises `EvidenceError` if a blob is missing or damaged.
    """
    loads: list[LoadMeasurement] = []
    for place in lock.schedule:
        tries = [load for load in state.loads.values() if load.index == place.index and load.sealed is not None]
        loads += [_measure(place, load, read_blob, protocol) for load in tries] or [_not_run(place)]
    checks = read_checks(state, read_blob) if protocol.checks else ()
    return CampaignMeasurements(loads=tuple(loads), checks=checks)


def _measure(place: LockedPosition, load: LoadEntries, read_blob: ReadBlob, protocol: Protocol) -> LoadMeasurement:
    sealed = load.sealed
    if sealed is None:
        raise ValueError(f"{load.load_id} is not sealed")
    reads = [*read_exchanges(sealed, read_blob)]
    return LoadMeasurement(
        index=place.index,
        label=place.label,
        arm=place.arm,
        block=place.block,
        is_burn_in=place.is_burn_in,
        state=load.state,
        reason=seal_reason(sealed, read_blob),
        requests=tuple(read.measurement() for read in reads if read.is_measured),
        host=_host(sealed, read_blob, reads) if protocol.validity else None,
    )


def _host(sealed: Entry, read_blob: ReadBlob, reads: Sequence[ReadExchange]) -> dict[str, int] | None:
    names = {str(item["name"]): str(item["sha256"]) for item in sealed.blobs()}
    if SAMPLES not in names:
        return None
    return host_counts(parse_samples(read_blob(names[SAMPLES])).samples, marked_phases(reads))


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
