"""What happened to the machine during a load that a reader of its rates must know: a closed list of anomalies.

=====================  ==============================================================================================
clock_collapse         within a phase, at least 4 ticks in a row whose clock is under 0.90 of the median clock of the
                       phase's busy middle third, while the load is 90 % or more; it ends with 2 ticks above 0.95
throttle               a counter of throttling moved, or a bit of it stood, between two samples
foreign_gpu_process    a process that is not the engine's held the GPU
swap                   pages were swapped in or out
major_faults           the engine waited for pages from a disk
memory_floor           under 1/32 of the memory was available
memory_pressure        some task waited for memory (PSI total moved)
io_pressure            tasks waited for a disk in 1 % of the time or more
runq_wait              the engine's threads waited for a CPU, together 1 % of wall time times threads or more
oom_kill               the kernel killed something for memory
governor_changed       a CPU governor or an energy preference changed
profile_changed        the platform's power profile or the GPU's performance level changed
sample_gap             two samples were more than 3 periods apart
=====================  ==============================================================================================

The definitions are fixed by this version, so a protocol that names one in a rule has said all of it beforehand. A
collapse gets a cause only from an independent field, in this order: ``thermal`` (a thermal counter or bit, or 2 degrees
or less to the limit), ``power`` (a power counter or bit, or power at 0.98 of its limit), ``limit`` (the enforced limit
of the clock fell), ``host`` (faults, memory pressure or run-queue wait in the same time), else ``unexplained``. What a
host has no field for is never found: absence of an anomaly is no proof where the field is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final, NamedTuple

from recorder.phases import GAP_PERIODS, Phase
from recorder.telemetry.gpu_metrics import throttle_causes
from recorder.telemetry.sample import Sample
from recorder.trains import Point

CLOCKS: Final = ("gfx_clock_hz", "smu_gfx_clock_hz")
BUSY: Final = "gfx_busy_ppm"
COLLAPSED: Final = Fraction(90, 100)
RECOVERED: Final = Fraction(95, 100)
BUSY_PPM: Final = 900_000
COLLAPSE_TICKS: Final = 4
RECOVERY_TICKS: Final = 2
FLOOR_SHARE: Final = 32
IO_SHARE: Final = Fraction(1, 100)
RUNQ_SHARE: Final = Fraction(1, 100)
MARGIN_MC: Final = 2000
AT_LIMIT: Final = Fraction(98, 100)

_THERMAL_COUNTERS: Final = (
    "throttle_thm_core_raw",
    "throttle_thm_gfx_raw",
    "throttle_thm_soc_raw",
    "event_thermal_policy_ns",
    "event_sw_thermal_ns",
    "event_hw_thermal_ns",
    "violation_socket_thrm_raw",
    "violation_vr_thrm_raw",
    "violation_hbm_thrm_raw",
)
_POWER_COUNTERS: Final = (
    "throttle_spl_raw",
    "throttle_fppt_raw",
    "throttle_sppt_raw",
    "event_power_cap_ns",
    "event_power_brake_ns",
    "violation_ppt_pwr_raw",
)
_PROCHOT_COUNTERS: Final = ("throttle_prochot_raw", "violation_prochot_thrm_raw")
_BITS: Final = ("throttle_bits", "clock_event_bits")
THROTTLE_FIELDS: Final = (
    *_THERMAL_COUNTERS,
    *_POWER_COUNTERS,
    *_PROCHOT_COUNTERS,
    *_BITS,
)
"""Fields of which each can show throttling."""
POWER_THROTTLE_FIELDS: Final = (*_POWER_COUNTERS, *_BITS)
"""Fields of which each can show throttling for power or current."""
THERMAL_THROTTLE_FIELDS: Final = (*_THERMAL_COUNTERS, *_PROCHOT_COUNTERS, *_BITS)
"""Fields of which each can show throttling for heat, or by a protection of the hardware."""
POWER_CAUSES: Final = frozenset({"power", "current"})
"""Causes of throttling that a limit of power explains: a GPU at its cap is at work, not in trouble."""
_EVENT_BITS: Final = ((32 | 64, "thermal"), (4 | 128, "power"), (8, "hardware"))
"""Bits of NVML's event reasons: SwThermal, HwThermal; SwPowerCap, PowerBrake; HwSlowdown."""
_POWERS: Final = ("board_power_instant_uw", "board_power_uw", "socket_power_uw", "smu_socket_power_uw")


class Anomaly(NamedTuple):
    """One anomaly. ``start_ns`` and ``end_ns`` are times of samples; ``value`` is in the unit of ``field``."""

    kind: str
    start_ns: int
    end_ns: int
    field: str
    value: int
    cause: str | None = None
    request: int | None = None
    phase: str | None = None


@dataclass(frozen=True, kw_only=True)
class MarkedPhase:
    """A phase of the request with this number in the load."""

    request: int
    phase: Phase


class Trains:
    """The values of each field of a load over time."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._trains: dict[str, dict[str, list[Point]]] = {}
        for sample in samples:
            for reading in sample.readings:
                if reading.raw is not None:
                    by_instance = self._trains.setdefault(reading.field.name, {})
                    by_instance.setdefault(reading.field.instance, []).append(Point(sample.t_mid_ns, reading.raw))

    def of(self, name: str) -> dict[str, list[Point]]:
        """Return the trains of a field by instance; empty where the host does not give it."""
        return self._trains.get(name, {})

    def first(self, names: Iterable[str], instance: str) -> list[Point]:
        """Return the first train that an instance has; empty without one."""
        return next((self.of(name)[instance] for name in names if instance in self.of(name)), [])

    def steps(self, name: str) -> Iterator[tuple[Point, Point]]:
        """Yield each pair of readings in a row, instance by instance."""
        for points in self.of(name).values():
            yield from pairwise(points)


def sampling_period_ns(samples: Sequence[Sample]) -> int:
    """Return the period that the deadlines of a load keep; 0 with fewer than two ticks."""
    ticks = [sample for sample in samples if not sample.is_edge]
    if len(ticks) < 2 or ticks[-1].tick <= ticks[0].tick:
        return 0
    return (ticks[-1].deadline_ns - ticks[0].deadline_ns) // (ticks[-1].tick - ticks[0].tick)


def find_anomalies(samples: Sequence[Sample], phases: Sequence[MarkedPhase]) -> tuple[Anomaly, ...]:
    """Return every anomaly of a load, in order of its start."""
    trains = Trains(samples)
    found = [
        *_gaps(samples),
        *_throttles(trains),
        *_host(samples, trains),
        *(anomaly for marked in phases for anomaly in _collapses(trains, marked)),
    ]
    return tuple(sorted(found, key=lambda one: (one.start_ns, one.kind, one.field)))


def _gaps(samples: Sequence[Sample]) -> Iterator[Anomaly]:
    limit_ns = GAP_PERIODS * sampling_period_ns(samples)
    ticks = [sample for sample in samples if not sample.is_edge]
    for before, after in pairwise(ticks):
        length_ns = after.t_mid_ns - before.t_mid_ns
        if 0 < limit_ns < length_ns:
            yield Anomaly("sample_gap", before.t_mid_ns, after.t_mid_ns, "gap_ns", length_ns)


def _moved(trains: Trains, name: str) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, gain) for each run of steps in which a counter rose."""
    for points in trains.of(name).values():
        start: Point | None = None
        for before, after in pairwise(points):
            if after.raw > before.raw:
                start = start or before
            elif start is not None:
                yield start.t_ns, before.t_ns, before.raw - start.raw
                start = None
        if start is not None:
            yield start.t_ns, points[-1].t_ns, points[-1].raw - start.raw


def _throttles(trains: Trains) -> Iterator[Anomaly]:
    for cause, names in (("thermal", _THERMAL_COUNTERS), ("power", _POWER_COUNTERS), ("prochot", _PROCHOT_COUNTERS)):
        for name in names:
            for start_ns, end_ns, gain in _moved(trains, name):
                yield Anomaly("throttle", start_ns, end_ns, name, gain, cause)
    for name, causes in (("throttle_bits", throttle_causes), ("clock_event_bits", _event_causes)):
        for points in trains.of(name).values():
            yield from _stood(name, points, causes)


def _event_causes(bits: int) -> tuple[str, ...]:
    return tuple(cause for mask, cause in _EVENT_BITS if bits & mask)


def _stood(name: str, points: Sequence[Point], causes: Callable[[int], tuple[str, ...]]) -> Iterator[Anomaly]:
    """Yield one anomaly for each row of samples with the same causes."""
    row: list[Point] = []
    for point in [*points, Point(0, 0)]:
        now, then = causes(point.raw), causes(row[0].raw) if row else ()
        if row and now != then:
            yield Anomaly("throttle", row[0].t_ns, row[-1].t_ns, name, row[0].raw, "+".join(then))
            row = []
        if now:
            row.append(point)


def _host(samples: Sequence[Sample], trains: Trains) -> Iterator[Anomaly]:
    for kind, names in (
        ("swap", ("swap_in_pages", "swap_out_pages")),
        ("major_faults", ("proc_majflt_count",)),
        ("memory_pressure", ("psi_memory_some_us",)),
        ("oom_kill", ("oom_kill_count",)),
    ):
        for name in names:
            for start_ns, end_ns, gain in _moved(trains, name):
                yield Anomaly(kind, start_ns, end_ns, name, gain)
    yield from _changes(trains)
    yield from _shares(samples, trains)
    yield from _floor(trains)


def _changes(trains: Trains) -> Iterator[Anomaly]:
    for kind, names in (
        ("governor_changed", ("cpu_governor_code", "energy_preference_code")),
        ("profile_changed", ("platform_profile_code", "gpu_performance_level_code")),
    ):
        for name in names:
            for before, after in trains.steps(name):
                if before.raw != after.raw:
                    yield Anomaly(kind, before.t_ns, after.t_ns, name, after.raw)
    for points in trains.of("gpu_foreign_process_count").values():
        for point in points:
            if point.raw > 0:
                yield Anomaly("foreign_gpu_process", point.t_ns, point.t_ns, "gpu_foreign_process_count", point.raw)


def _floor(trains: Trains) -> Iterator[Anomaly]:
    total = max((point.raw for points in trains.of("mem_total_bytes").values() for point in points), default=0)
    for points in trains.of("mem_available_bytes").values():
        low = [point for point in points if point.raw * FLOOR_SHARE < total]
        if low:
            least = min(point.raw for point in low)
            yield Anomaly("memory_floor", low[0].t_ns, low[-1].t_ns, "mem_available_bytes", least)


def _shares(samples: Sequence[Sample], trains: Trains) -> Iterator[Anomaly]:
    """Yield waits that matter only as a share of the whole time."""
    if len(samples) < 2:
        return
    start_ns, end_ns = samples[0].t_mid_ns, samples[-1].t_mid_ns
    io_us = sum(gain for _, _, gain in _moved(trains, "psi_io_some_us"))
    if io_us * 1000 >= IO_SHARE * (end_ns - start_ns) > 0:
        yield Anomaly("io_pressure", start_ns, end_ns, "psi_io_some_us", io_us)
    wait_ns = sum(gain for _, _, gain in _moved(trains, "proc_runq_wait_ns"))
    threads = max((point.raw for points in trains.of("proc_thread_count").values() for point in points), default=0)
    if wait_ns >= RUNQ_SHARE * (end_ns - start_ns) * threads > 0:
        yield Anomaly("runq_wait", start_ns, end_ns, "proc_runq_wait_ns", wait_ns)


def _collapses(trains: Trains, marked: MarkedPhase) -> Iterator[Anomaly]:
    phase = marked.phase
    instances = sorted({instance for name in CLOCKS for instance in trains.of(name)})
    for instance in instances:
        clock = _inside(trains.first(CLOCKS, instance), phase)
        busy = {point.t_ns: point.raw for point in trains.of(BUSY).get(instance, [])}
        # Without a load field the phase itself says that the engine is at work.
        working = [point for point in clock if busy.get(point.t_ns, BUSY_PPM) >= BUSY_PPM]
        third = phase.length_ns // 3
        middle = sorted(p.raw for p in working if phase.start_ns + third <= p.t_ns <= phase.end_ns - third)
        if not middle:
            continue
        reference = middle[len(middle) // 2]
        for row in _rows_below(working, reference):
            start_ns, end_ns = row[0].t_ns, row[-1].t_ns
            lowest = min(point.raw for point in row)
            cause = _cause(trains, instance, start_ns, end_ns, reference)
            name = next(name for name in CLOCKS if instance in trains.of(name))
            yield Anomaly("clock_collapse", start_ns, end_ns, name, lowest, cause, marked.request, phase.name)


def _inside(points: Sequence[Point], phase: Phase) -> list[Point]:
    return [point for point in points if phase.start_ns <= point.t_ns <= phase.end_ns]


def _rows_below(points: Sequence[Point], reference: int) -> Iterator[list[Point]]:
    """Yield each collapse: points from the first one below to the last before recovery."""
    row: list[Point] = []
    below_in_row = above_in_row = longest = 0
    for point in points:
        if point.raw < COLLAPSED * reference:
            row.append(point)
            below_in_row, above_in_row = below_in_row + 1, 0
            longest = max(longest, below_in_row)
            continue
        below_in_row = 0
        above_in_row = above_in_row + 1 if point.raw > RECOVERED * reference else 0
        if longest < COLLAPSE_TICKS or above_in_row >= RECOVERY_TICKS:
            if longest >= COLLAPSE_TICKS:
                yield row
            row, longest, above_in_row = [], 0, 0
    if longest >= COLLAPSE_TICKS:
        yield row


def _cause(trains: Trains, instance: str, start_ns: int, end_ns: int, reference: int) -> str:
    """Climb the ladder: the first step whose own field says so."""

    def rose(names: Iterable[str]) -> bool:
        return any(
            after.raw > before.raw and before.t_ns <= end_ns and after.t_ns >= start_ns
            for name in names
            for before, after in trains.steps(name)
        )

    def values(name: str) -> list[int]:
        return [point.raw for point in trains.of(name).get(instance, []) if start_ns <= point.t_ns <= end_ns]

    bits = {cause for raw in values("throttle_bits") for cause in throttle_causes(raw)}
    bits |= {cause for raw in values("clock_event_bits") for cause in _event_causes(raw)}
    margins, limits = values("temp_margin_mc"), trains.of("power_limit_uw").get(instance, [])
    power = [point.raw for point in trains.first(_POWERS, instance) if start_ns <= point.t_ns <= end_ns]
    if rose((*_THERMAL_COUNTERS, *_PROCHOT_COUNTERS)) or bits & {"thermal", "prochot"}:
        return "thermal"
    if margins and min(margins) <= MARGIN_MC:
        return "thermal"
    if rose(_POWER_COUNTERS) or bits & {"power", "current"}:
        return "power"
    if power and limits and max(power) >= AT_LIMIT * limits[-1].raw:
        return "power"
    if any(raw < COLLAPSED * reference for raw in values("gfx_clock_limit_hz")):
        return "limit"
    if rose(("proc_majflt_count", "psi_memory_some_us")) or _waited(trains, start_ns, end_ns):
        return "host"
    return "unexplained"


def _waited(trains: Trains, start_ns: int, end_ns: int) -> bool:
    gain = sum(
        after.raw - before.raw
        for before, after in trains.steps("proc_runq_wait_ns")
        if before.t_ns <= end_ns and after.t_ns >= start_ns
    )
    return gain >= RUNQ_SHARE * (end_ns - start_ns) > 0
