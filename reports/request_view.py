"""What requests took, arm by arm: a description for people, from which nothing is concluded.

Requests of one load share its process, its memory and its minute: they are not observations of their own, and a hundred
of them say little more about another load than ten. So each table also says which share of the spread lies between
loads, and no verdict ever looks here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocols.lock import LockedPosition
from protocols.measurements import ARMS
from recorder.campaign_state import read_campaigns
from recorder.request_rows import ReadExchange
from recorder.rows import read_exchanges
from recorder.store import Store

PERCENTILES: Final = (10, 50, 90, 99)
MEASURES: Final[Mapping[str, str]] = {
    "ttft": "time to first token",
    "itl": "gap between tokens",
    "tpot": "mean time of a token",
    "e2e": "whole request",
}
NOTE: Final = (
    "Description only. Requests of one load are not observations of their own: a verdict counts fresh loads, never "
    "requests."
)
NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """One measure of one workload in one arm, in milliseconds. `count` are values: gaps for itl, else requests.

    `between_loads` is the share of the spread (variance) that lies between the means of loads; None with one load or
    no spread.
    """

    workload: str
    arm: str
    measure: str
    loads: int
    requests: int
    count: int
    least_ms: float
    percentiles_ms: tuple[float, ...]
    most_ms: float
    between_loads: float | None


def view_requests(root: Path, campaign: str) -> tuple[str, tuple[Distribution, ...]]:
    """Return the campaign's name and the distributions of its measured, answered requests in COMPLETE loads.

    EvidenceError where the evidence cannot be read. Warm-ups and burn-in loads are left out.
    """
    with Store.open(root, read_only=True) as store:
        campaign_id = store.resolve_campaign(campaign)
        lock = store.lock_of(campaign_id)
        state = read_campaigns(store.entries())[campaign_id]
        places = {place.index: place for place in lock.schedule}
        values: dict[tuple[str, str, str], list[list[float]]] = {}
        answered: dict[tuple[str, str, str], int] = {}
        for load in state.loads.values():
            place = places[load.index]
            if load.sealed is None or load.state != "COMPLETE" or place.is_burn_in:
                continue
            found: dict[tuple[str, str, str], list[float]] = {}
            for read in read_exchanges(load.sealed, store.blobs.read):
                for key, measured in _measures(place, read):
                    found.setdefault(key, []).extend(measured)
                    answered[key] = answered.get(key, 0) + 1
            for key, all_of_load in found.items():
                values.setdefault(key, []).append(all_of_load)
    order = {name: number for number, name in enumerate((*ARMS, *MEASURES))}
    keys = sorted(values, key=lambda key: (key[0], order[key[2]], order[key[1]]))
    return campaign_id, tuple(_distribution(key, values[key], answered[key]) for key in keys)


def _measures(place: LockedPosition, read: ReadExchange) -> Iterator[tuple[tuple[str, str, str], list[float]]]:
    derived, exchange = read.derived, read.exchange
    if derived is None or exchange.workload is None or exchange.is_warmup or derived.outcome != "ok":
        return
    single = {"ttft": derived.ttft_ns, "tpot": derived.tpot_ns, "e2e": derived.e2e_ns}
    lists: dict[str, Sequence[float]] = {name: [value] for name, value in single.items() if value is not None}
    if derived.itl_ns:
        lists["itl"] = derived.itl_ns
    for name, measured in lists.items():
        yield (exchange.workload, place.arm, name), [value / NS_PER_MS for value in measured]


def _distribution(key: tuple[str, str, str], loads: list[list[float]], requests: int) -> Distribution:
    workload, arm, measure = key
    every = sorted(value for load in loads for value in load)
    return Distribution(
        workload=workload,
        arm=arm,
        measure=measure,
        loads=len(loads),
        requests=requests,
        count=len(every),
        least_ms=every[0],
        percentiles_ms=tuple(percentile(every, part) for part in PERCENTILES),
        most_ms=every[-1],
        between_loads=_between(loads, every),
    )


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return a percentile of ordered values, straight between the two nearest ranks (as NumPy does by default)."""
    place = (len(ordered) - 1) * part / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _between(loads: Sequence[Sequence[float]], every: Sequence[float]) -> float | None:
    """Return the sum of squares between loads over the whole one."""
    mean = math.fsum(every) / len(every)
    whole = math.fsum((value - mean) ** 2 for value in every)
    if len(loads) < 2 or whole == 0 or len(every) == len(loads):
        return None
    return math.fsum(len(load) * (math.fsum(load) / len(load) - mean) ** 2 for load in loads) / whole
