"""What the machine did in the phases of each load, and how that compares between the arms.

Clock beside rate: both ratios are shown, and whether they agree within a stated band. That they agree says that a lower
clock would explain a lower rate; it never says that it caused it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from protocols.measurements import ARMS, Arm
from reports.tables import Row, Tables

CONSISTENT_PP: Final = 1.0
"""Percentage points within which a change of clock and a change of rate are called consistent."""
CLOCKS: Final = ("gfx_clock_hz", "smu_gfx_clock_hz")
TOKENS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "prefill": (("prompt token evaluated", "prompt_tokens_evaluated"),),
    "generation": (
        ("generated token", "generated_tokens"),
        ("accepted token", "accepted_tokens"),
        ("drafted token", "drafted_tokens"),
    ),
}
"""Tokens that the energy of a phase is divided by: words, and the column of the request."""
NS_PER_S: Final = 1_000_000_000
PPM: Final = 1_000_000

_SENSORS: Final = """
SELECT p.*, r.workload, f.name, f.instance AS device, f.unit FROM phase_sensor p
JOIN request r ON r.entry_seq = p.entry_seq AND r.request = p.request
JOIN telemetry_field f ON f.entry_seq = p.entry_seq AND f.field = p.field
JOIN load_seal s ON s.entry_seq = p.entry_seq
WHERE s.campaign_id = :campaign AND NOT r.is_warmup
ORDER BY p.entry_seq, p.request, p.phase DESC, p.field
"""
_ENERGIES: Final = """
SELECT p.*, r.workload, r.prompt_tokens_evaluated, r.generated_tokens, r.accepted_tokens, r.drafted_tokens
FROM phase_energy p
JOIN request r ON r.entry_seq = p.entry_seq AND r.request = p.request
JOIN telemetry_field f ON f.entry_seq = p.entry_seq AND f.field = p.field
JOIN load_seal s ON s.entry_seq = p.entry_seq
WHERE s.campaign_id = :campaign AND NOT r.is_warmup AND p.is_best
ORDER BY p.entry_seq, p.request, p.phase DESC, p.field
"""
_CORES: Final = """
SELECT p.entry_seq, p.request, p.phase, p.delta, r.workload, r.sent_ns, r.first_token_ns, r.last_token_ns
FROM phase_counter p
JOIN request r ON r.entry_seq = p.entry_seq AND r.request = p.request
JOIN telemetry_field f ON f.entry_seq = p.entry_seq AND f.field = p.field
JOIN load_seal s ON s.entry_seq = p.entry_seq
WHERE s.campaign_id = :campaign AND NOT r.is_warmup AND f.name = 'proc_run_ns'
ORDER BY p.entry_seq, p.request, p.phase DESC, p.field
"""
_ANOMALIES: Final = """
SELECT a.*, r.workload, (SELECT min(t.t_begin_ns) FROM telemetry_sample t WHERE t.entry_seq = a.entry_seq) AS origin_ns
FROM anomaly a
LEFT JOIN request r ON r.entry_seq = a.entry_seq AND r.request = a.request
JOIN load_seal s ON s.entry_seq = a.entry_seq
WHERE s.campaign_id = :campaign ORDER BY a.entry_seq, a.ordinal
"""


@dataclass(frozen=True, kw_only=True)
class SensorFact:
    """A sensor over the interior of one phase of one measured request; values in `unit`, None unless status is OK."""

    workload: str
    request: int
    phase: str
    name: str
    device: str
    unit: str
    status: str
    n: int
    coverage_pct: float
    mean: int | None
    quarters: tuple[int | None, ...]
    minimum: int | None
    maximum: int | None
    is_frozen: bool


@dataclass(frozen=True, kw_only=True)
class EnergyFact:
    """Energy of one phase in one domain, or the reason for none. `per_token_uj` gives uJ by the words of the token."""

    workload: str
    request: int
    phase: str
    domain: str
    device: str
    method: str
    energy_uj: int | None
    bound_uj: int | None
    coverage_pct: float
    n: int
    reason: str | None
    per_token_uj: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class CoresFact:
    """Mean number of CPU cores that the engine kept busy in one phase."""

    workload: str
    request: int
    phase: str
    cores: float


@dataclass(frozen=True, kw_only=True)
class AnomalyFact:
    """One anomaly, with its time from the first sample of its load."""

    kind: str
    start_s: float
    length_s: float
    field: str
    value: int
    cause: str | None
    workload: str | None
    phase: str | None


@dataclass(frozen=True, kw_only=True)
class MachineFact:
    """What the machine did in one load."""

    sensors: tuple[SensorFact, ...] = ()
    energies: tuple[EnergyFact, ...] = ()
    cores: tuple[CoresFact, ...] = ()
    anomalies: tuple[AnomalyFact, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClockView:
    """Clock beside rate in one phase of one workload: candidate over baseline, means over the measured loads."""

    workload: str
    phase: str
    device: str
    n_baseline: int
    n_candidate: int
    clock_ratio: float
    rate_ratio: float
    is_consistent: bool


@dataclass
class _Parts:
    sensors: list[SensorFact] = field(default_factory=list)
    energies: list[EnergyFact] = field(default_factory=list)
    cores: list[CoresFact] = field(default_factory=list)
    anomalies: list[AnomalyFact] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class LoadRates:
    """The rates of one measured load, for the view of clocks: (workload, phase) to tokens per second."""

    arm: Arm
    machine: MachineFact
    rates: Mapping[tuple[str, Literal["prefill", "generation"]], float]


def machine_facts(tables: Tables, campaign: str) -> Mapping[int, MachineFact]:
    """Return what each sealed load's machine did, by the ledger entry that sealed it."""
    found: dict[int, _Parts] = {}

    def part(row: Row) -> _Parts:
        return found.setdefault(int(row["entry_seq"]), _Parts())

    for row in tables.rows(_SENSORS, campaign=campaign):
        part(row).sensors.append(_sensor(row))
    for row in tables.rows(_ENERGIES, campaign=campaign):
        part(row).energies.append(_energy(row))
    for row in tables.rows(_CORES, campaign=campaign):
        cores = _cores(row)
        if cores is not None:
            part(row).cores.append(cores)
    for row in tables.rows(_ANOMALIES, campaign=campaign):
        part(row).anomalies.append(_anomaly(row))
    return {
        seq: MachineFact(
            sensors=tuple(one.sensors),
            energies=tuple(one.energies),
            cores=tuple(one.cores),
            anomalies=tuple(one.anomalies),
        )
        for seq, one in found.items()
    }


def clock_views(loads: Sequence[LoadRates]) -> tuple[ClockView, ...]:
    """Compare clock and rate of the arms, for each workload, phase and device whose clocks have a mean in both."""
    clocks: dict[tuple[str, str, str], dict[Arm, list[float]]] = {}
    rates: dict[tuple[str, str], dict[Arm, list[float]]] = {}
    for load in loads:
        for key, rate in load.rates.items():
            rates.setdefault(key, {}).setdefault(load.arm, []).append(rate)
        for place, mean in _clock_means(load.machine):
            clocks.setdefault(place, {}).setdefault(load.arm, []).append(mean)
    views = []
    for (workload, phase, device), by_arm in clocks.items():
        of_rate = rates.get((workload, phase), {})
        if any(not by_arm.get(arm) or not of_rate.get(arm) for arm in ARMS):
            continue
        clock_ratio, rate_ratio = _ratio(by_arm), _ratio(of_rate)
        views.append(
            ClockView(
                workload=workload,
                phase=phase,
                device=device,
                n_baseline=len(by_arm["baseline"]),
                n_candidate=len(by_arm["candidate"]),
                clock_ratio=clock_ratio,
                rate_ratio=rate_ratio,
                is_consistent=100 * abs(clock_ratio - rate_ratio) <= CONSISTENT_PP,
            )
        )
    return tuple(views)


def _clock_means(machine: MachineFact) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Yield the mean clock of each workload, phase and device, over the requests of a load."""
    chosen: dict[tuple[str, str, str], dict[str, list[int]]] = {}
    for one in machine.sensors:
        if one.name in CLOCKS and one.mean is not None:
            place = (one.workload, one.phase, one.device)
            chosen.setdefault(place, {}).setdefault(one.name, []).append(one.mean)
    for place, by_name in chosen.items():
        values = next(by_name[name] for name in CLOCKS if name in by_name)
        yield place, sum(values) / len(values)


def _ratio(values: Mapping[Arm, Sequence[float]]) -> float:
    """Return candidate over baseline of the geometric means."""
    logs = {arm: sum(math.log(one) for one in values[arm]) / len(values[arm]) for arm in ARMS}
    return math.exp(logs["candidate"] - logs["baseline"])


def _sensor(row: Row) -> SensorFact:
    return SensorFact(
        workload=row["workload"],
        request=int(row["request"]),
        phase=row["phase"],
        name=row["name"],
        device=row["device"],
        unit=row["unit"],
        status=row["status"],
        n=int(row["n"]),
        coverage_pct=100 * int(row["coverage_ppm"]) / PPM,
        mean=_integer(row["mean"]),
        quarters=tuple(_integer(row[name]) for name in ("q1", "q2", "q3", "q4")),
        minimum=_integer(row["minimum"]),
        maximum=_integer(row["maximum"]),
        is_frozen=bool(row["is_frozen"]),
    )


def _energy(row: Row) -> EnergyFact:
    energy = _integer(row["energy_uj"])
    counts = {words: _integer(row[column]) for words, column in TOKENS[row["phase"]]}
    return EnergyFact(
        workload=row["workload"],
        request=int(row["request"]),
        phase=row["phase"],
        domain=row["domain"],
        device=row["instance"],
        method=row["method"],
        energy_uj=energy,
        bound_uj=_integer(row["bound_uj"]),
        coverage_pct=100 * int(row["coverage_ppm"]) / PPM,
        n=int(row["n"]),
        reason=row["reason"],
        per_token_uj={} if energy is None else {words: energy / count for words, count in counts.items() if count},
    )


def _cores(row: Row) -> CoresFact | None:
    edges = ("sent_ns", "first_token_ns") if row["phase"] == "prefill" else ("first_token_ns", "last_token_ns")
    start, end = (_integer(row[name]) for name in edges)
    delta = _integer(row["delta"])
    if delta is None or start is None or end is None or end <= start:
        return None
    return CoresFact(
        workload=row["workload"], request=int(row["request"]), phase=row["phase"], cores=delta / (end - start)
    )


def _anomaly(row: Row) -> AnomalyFact:
    return AnomalyFact(
        kind=row["kind"],
        start_s=(int(row["start_ns"]) - int(row["origin_ns"])) / NS_PER_S,
        length_s=(int(row["end_ns"]) - int(row["start_ns"])) / NS_PER_S,
        field=row["field"],
        value=int(row["value"]),
        cause=row["cause"],
        workload=row["workload"],
        phase=row["phase"],
    )


def _integer(value: object) -> int | None:
    return None if value is None else int(str(value))
