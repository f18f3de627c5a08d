"""The measurements of a campaign laid over its schedule: which loads stand, and what is missing.

A load that is partial, invalid or absent never gives a number. Every gate asks `View.missing_for` first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocols.measurements import CampaignMeasurements, LoadMeasurement, RequestMeasurement
from protocols.metrics import measured_requests
from protocols.results import in_short, some_of
from protocols.schedule import Position, expand_schedule
from protocols.schema import Protocol, Workload
from protocols.validity import invalid_blocks, unchecked_readings


@dataclass(frozen=True, kw_only=True)
class View:
    """One campaign as the gates see it."""

    protocol: Protocol
    measurements: CampaignMeasurements
    positions: tuple[Position, ...]
    loads: Mapping[int, LoadMeasurement]
    """The COMPLETE load of each position that has exactly one."""
    missing_loads: tuple[str, ...]
    """A phrase for each position without a COMPLETE load, and for each load outside the schedule."""
    is_cut_short: bool
    """Whether loads are missing only because they were not run, or were broken off."""
    invalid_loads: tuple[str, ...]
    """Labels of positions whose load did not run what was locked, and was not done again."""
    blocks: int | None = None
    """The blocks that this view ends with, at a look; None for the whole schedule."""
    invalid_blocks: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Blocks that a rule about the host takes out of the losses, each with why."""
    unchecked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Readings of rules about the host that some loads do not give, each with these loads."""

    @classmethod
    def of(cls, protocol: Protocol, measurements: CampaignMeasurements, *, blocks: int | None = None) -> View:
        """Lay the measurements over the protocol's schedule, up to a number of blocks where one is given."""
        every = expand_schedule(protocol.schedule)
        positions = tuple(place for place in every if blocks is None or (place.block or 0) <= blocks)
        by_index = {position.index: position for position in positions}
        complete: dict[int, LoadMeasurement] = {}
        missing: list[str] = []
        invalid: list[str] = []
        cut_short = 0
        for position in positions:
            tries = [load for load in measurements.loads if _is_at(load, position)]
            done = [load for load in tries if load.state == "COMPLETE"]
            if len(done) == 1:
                complete[position.index] = done[0]
                continue
            missing.append(_missing_phrase(position, tries, len(done)))
            cut_short += not done and all(load.state in {None, "PARTIAL"} for load in tries)
            if not done and tries and tries[-1].state == "INVALID":
                invalid.append(position.label)
        for load in measurements.loads:
            place = by_index.get(load.index)
            if place is None and load.index < len(every) and _is_at(load, every[load.index]):
                continue  # beyond this look
            if place is None or not _is_at(load, place):
                missing.append(f"{load.label} stands outside the schedule")
        measured = [complete[place.index] for place in positions if place.index in complete and not place.is_burn_in]
        return cls(
            protocol=protocol,
            measurements=measurements,
            positions=positions,
            loads=complete,
            missing_loads=tuple(missing),
            is_cut_short=bool(missing) and cut_short == len(missing),
            invalid_loads=tuple(invalid),
            blocks=blocks,
            invalid_blocks=invalid_blocks(measured, protocol.validity),
            unchecked=unchecked_readings(measured, protocol.validity),
        )

    def measured_loads(self) -> tuple[LoadMeasurement, ...]:
        """Return the complete loads in order, without the burn-in load: it is discarded by rule."""
        return tuple(
            self.loads[place.index] for place in self.positions if place.index in self.loads and not place.is_burn_in
        )

    def planned_blocks(self) -> int:
        """Return how many blocks the whole schedule has; 0 where it is not made of blocks."""
        return max((place.block or 0 for place in expand_schedule(self.protocol.schedule)), default=0)

    def missing_requests(self, workload: Workload) -> tuple[str, ...]:
        """Return a phrase for each load whose requests of one workload are not all there and not all answered."""
        phrases: list[str] = []
        for place in self.positions:
            load = self.loads.get(place.index)
            if load is None:
                continue
            warm = [request for request in load.requests if request.workload == workload.id and request.is_warmup]
            expected = 0 if workload.warmup is None else workload.warmup.repeats
            phrases.extend(_request_phrases(load.label, f"warm-ups of {workload.id}", warm, expected))
            measured = measured_requests(load, workload.id)
            phrases.extend(_request_phrases(load.label, f"requests of {workload.id}", measured, workload.repeats))
        return tuple(phrases)

    def missing_for(self, workload_id: str) -> str | None:
        """Return what is missing to judge one workload, as a phrase, or None where nothing is."""
        phrases = [*self.missing_loads, *self.missing_requests(self.protocol.workload(workload_id))]
        return some_of(phrases) if phrases else None


def _is_at(load: LoadMeasurement, position: Position) -> bool:
    return (load.index, load.label, load.arm, load.block, load.is_burn_in) == (
        position.index,
        position.label,
        position.arm,
        position.block,
        position.is_burn_in,
    )


def _missing_phrase(position: Position, tries: Sequence[LoadMeasurement], complete: int) -> str:
    if complete > 1:
        return f"{position.label} is recorded as COMPLETE {complete} times"
    if not tries or tries[-1].state is None:
        return f"{position.label} was not run"
    reason = f" ({in_short(tries[-1].reason)})" if tries[-1].reason else ""
    return f"{position.label} is {tries[-1].state}{reason}"


def _request_phrases(label: str, what: str, found: Sequence[RequestMeasurement], expected: int) -> list[str]:
    phrases: list[str] = []
    if len({request.repeat for request in found}) != len(found) or len(found) != expected:
        phrases.append(f"{label} has {len(found)} {what}, expected {expected}")
    phrases.extend(
        f"{label} has {what} that ended as {request.outcome}" for request in found if request.outcome != "ok"
    )
    return phrases
