"""The sampler: deadlines on a clock that the tests turn, and failures that must not reach the run."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise

import pytest

from recorder.telemetry.provider import DeviceLostError, NoExtras
from recorder.telemetry.sample import FieldSpec, ProbeReport, RawRead, Reading, Sample
from recorder.telemetry.sampler import ClockOffsets, Sampler, SamplerReport

MS = 1_000_000
PERIOD = 250 * MS
ENERGY = FieldSpec(name="board_energy_uj", unit="uj", kind="counter", domain="board", source="fake")
FIELD = FieldSpec(name="x_count", unit="count", kind="gauge", domain="host", source="fake")


class Provider(NoExtras):
    """Gives one reading a tick. ``costs`` is how long the read of each tick takes, in ms; ``fails`` what it raises."""

    name = "fake"

    def __init__(
        self, clock: Clock | None = None, costs: dict[int, int] | None = None, fails: dict[int, Exception] | None = None
    ) -> None:
        self.clock, self.costs, self.fails = clock, costs or {}, fails or {}
        self.is_closed = False

    def probe(self) -> ProbeReport:
        return ProbeReport(provider=self.name, state="present")

    def describe(self):
        return (FIELD,)

    def identity(self):
        return ()

    def read(self, tick: int):
        if tick in self.fails:
            raise self.fails[tick]
        if self.clock is not None:
            self.clock.advance(self.costs.get(tick, 0) * MS)
        return [Reading(field=FIELD, raw=tick)]

    def close(self) -> None:
        self.is_closed = True


class Clock:
    """A monotonic clock that moves only when something waits or works. ``late_ms`` is how late each wait ends."""

    def __init__(self, *, until_ms: int, late_ms: int = 0) -> None:
        self.now = 5_000 * MS
        self.cpu = 0
        self.end = self.now + until_ms * MS
        self.late = late_ms * MS

    def now_ns(self) -> int:
        return self.now

    def cpu_ns(self) -> int:
        return self.cpu

    def advance(self, ns: int) -> None:
        self.now += ns
        self.cpu += ns // 10

    def wait(self, seconds: float) -> bool:
        self.now += round(seconds * 1e9) + self.late
        return self.now > self.end


def offsets() -> ClockOffsets:
    return ClockOffsets(monotonic_ns=0, realtime_minus_monotonic_ns=0, boottime_minus_monotonic_ns=None)


def run(clock: Clock, *providers: Provider, sink=None) -> tuple[SamplerReport, list[Sample]]:
    samples: list[Sample] = []
    sampler = Sampler(
        providers=providers, sink=sink or samples.append, period_ns=PERIOD,
        now_ns=clock.now_ns, thread_cpu_ns=clock.cpu_ns, wait=clock.wait, offsets=offsets,
    )  # fmt: skip
    report = sampler.run()
    return report, [sample for sample in samples if not sample.is_edge]


def test_deadlines_are_absolute_and_do_not_drift() -> None:
    clock = Clock(until_ms=1000)
    report, samples = run(clock, Provider(clock, costs=dict.fromkeys(range(9), 100)))
    assert [sample.tick for sample in samples] == [0, 1, 2, 3, 4]
    assert [sample.deadline_ns - samples[0].deadline_ns for sample in samples] == [
        0,
        PERIOD,
        2 * PERIOD,
        3 * PERIOD,
        4 * PERIOD,
    ]
    assert [sample.t_begin_ns for sample in samples] == [sample.deadline_ns for sample in samples]
    assert all(sample.t_end_ns - sample.t_begin_ns == 100 * MS for sample in samples)
    assert (report.ticks_due, report.ticks_taken, report.ticks_missed, report.reason) == (5, 5, 0, "stopped")


def test_an_overrun_skips_the_ticks_that_it_covered_and_never_makes_a_burst() -> None:
    clock = Clock(until_ms=2000)
    report, samples = run(clock, Provider(clock, costs={1: 600}))
    assert [sample.tick for sample in samples] == [0, 1, 4, 5, 6, 7, 8]
    assert [sample.missed_ticks for sample in samples] == [0, 0, 2, 0, 0, 0, 0]
    assert (report.ticks_due, report.ticks_taken, report.ticks_missed) == (9, 7, 2)
    assert all(later.t_begin_ns - earlier.t_begin_ns >= PERIOD for earlier, later in pairwise(samples))


def test_a_tick_that_ends_exactly_at_the_next_deadline_misses_nothing() -> None:
    clock = Clock(until_ms=1000)
    report, samples = run(clock, Provider(clock, costs={0: 250}))
    assert [sample.tick for sample in samples] == [0, 1, 2, 3, 4]
    assert report.ticks_missed == 0


def test_lateness_and_cost_are_measured() -> None:
    clock = Clock(until_ms=1010, late_ms=3)
    report, samples = run(clock, Provider(clock, costs={2: 40}))
    assert report.worst_late_ns == 3 * MS
    assert [sample.cpu_ns for sample in samples][:4] == [0, 0, 4 * MS, 0]
    assert (report.cpu_ns, report.worst_tick_cpu_ns) == (4 * MS, 4 * MS)
    assert len(report.clocks) == 2


def test_a_sink_that_fails_ends_the_sampling_with_a_record() -> None:
    clock = Clock(until_ms=10_000)
    taken: list[Sample] = []

    def sink(sample: Sample) -> None:
        if sample.tick == 2:
            raise OSError(28, "No space left on device")
        taken.append(sample)

    provider = Provider(clock)
    report, _ = run(clock, provider, sink=sink)
    assert (report.reason, report.detail) == ("sink_failed", "OSError: [Errno 28] No space left on device")
    assert (report.ticks_taken, len(taken)) == (2, 2)
    assert provider.is_closed


def test_a_lost_device_and_a_broken_provider_end_alone() -> None:
    clock = Clock(until_ms=1000)
    lost, broken, well = (
        Provider(fails={1: DeviceLostError("off the bus")}),
        Provider(fails={2: ZeroDivisionError("x")}),
        Provider(),
    )
    lost.name, broken.name, well.name = "lost", "broken", "well"
    report, samples = run(clock, lost, broken, well)
    assert [len(sample.readings) for sample in samples] == [3, 2, 1, 1, 1]
    assert report.lost == {"lost": "device lost: off the bus", "broken": "ZeroDivisionError: x"}
    assert report.reason == "stopped"


def test_with_nothing_left_to_read_the_sampling_ends() -> None:
    clock = Clock(until_ms=10_000)
    report, samples = run(clock, Provider(fails={1: DeviceLostError("gone")}))
    assert (report.reason, len(samples)) == ("nothing_to_read", 1)


def test_failed_readings_are_counted_by_field() -> None:
    class Failing(Provider):
        def read(self, tick: int):
            return [Reading(field=FIELD, raw=None, status="error" if tick % 2 else "not_due")]

    report, _ = run(Clock(until_ms=1000), Failing())
    assert report.error_counts == {"x_count": 2}


class Meter(Provider):
    """Has an energy counter of 1 J a second, costly to read, and reads it at edges."""

    name = "meter"

    def describe(self):
        return (ENERGY,)

    def read_edge(self):
        self.clock.advance(4 * MS)
        return [Reading(field=ENERGY, raw=self.clock.now // 1000)]


def test_an_edge_is_sampled_at_once_and_costs_no_tick() -> None:
    clock = Clock(until_ms=1000)
    taken: list[Sample] = []
    meter = Meter(clock)
    sampler = Sampler(
        providers=[meter], sink=taken.append, period_ns=PERIOD,
        now_ns=clock.now_ns, thread_cpu_ns=clock.cpu_ns, wait=lambda s: wait(s), offsets=offsets,
    )  # fmt: skip
    edges = [clock.now + 310 * MS, clock.now + 312 * MS, clock.now + 900 * MS]

    def wait(seconds: float) -> bool:
        """End early where an edge comes first, as the real wait does."""
        deadline = clock.now + round(seconds * 1e9)
        if edges and edges[0] <= deadline:
            clock.now = edges.pop(0)
            sampler.edge()
            if edges and edges[0] - clock.now < 4 * MS:
                edges.pop(0)
                sampler.edge()  # a second edge while the first is not yet read: one read serves both
            return False
        clock.now = deadline
        return clock.now > clock.end

    report = sampler.run()
    assert [(sample.tick, sample.is_edge) for sample in taken] == [
        (0, False), (1, False), (1, True), (2, False), (3, False), (3, True), (4, False), (5, True),
    ]  # fmt: skip
    edge = taken[2]
    assert (edge.t_begin_ns - taken[0].deadline_ns, edge.t_end_ns - edge.t_begin_ns) == (310 * MS, 4 * MS)
    assert edge.deadline_ns == edge.t_begin_ns
    assert [reading.field.name for reading in edge.readings] == ["board_energy_uj"]
    assert [sample.deadline_ns - taken[0].deadline_ns for sample in taken if not sample.is_edge] == [
        tick * PERIOD for tick in range(5)
    ]
    assert (report.ticks_missed, report.edges_taken, report.worst_edge_ns) == (0, 3, 4 * MS)


def test_edges_of_many_short_phases_never_take_more_than_their_share_of_a_core() -> None:
    clock = Clock(until_ms=60_000)
    taken: list[Sample] = []
    sampler = Sampler(
        providers=[Meter(clock)], sink=taken.append, period_ns=PERIOD,
        now_ns=clock.now_ns, thread_cpu_ns=clock.now_ns, wait=lambda s: wait(s), offsets=offsets,
    )  # fmt: skip

    def wait(seconds: float) -> bool:
        clock.now += min(round(seconds * 1e9), 50 * MS)
        sampler.edge()
        return clock.now > clock.end

    report = sampler.run()
    edges = [sample for sample in taken if sample.is_edge]
    assert sum(edge.cpu_ns for edge in edges) <= (100 + 0.002 * 60_000 + 4) * MS
    assert len(edges) == report.edges_taken == 57  # 0.1 s and 0.2 % of 60 s, at 4 ms each; and the last sample
    assert report.edges_skipped > 1000
    assert edges[-2].t_begin_ns > clock.end - 3000 * MS, "the share grows with time"


def test_the_edge_before_the_end_is_still_sampled() -> None:
    samples: list[Sample] = []
    clock = Clock(until_ms=0)
    with Sampler(providers=[Meter(clock)], sink=samples.append, period_ns=60_000 * MS) as sampler:
        sampler.edge()
    assert [sample.is_edge for sample in samples] == [False, True, True]


def test_every_field_is_read_a_last_time_when_sampling_is_told_to_stop() -> None:
    class Slow(Provider):
        def read(self, tick: int):
            return super().read(tick) if tick % 4 == 0 else []

    taken: list[Sample] = []
    with Sampler(providers=[Slow()], sink=taken.append, period_ns=60_000 * MS):
        pass
    first, last = taken
    assert (first.is_edge, last.is_edge) == (False, True)
    assert [reading.field for reading in last.readings] == [FIELD]
    assert last.t_begin_ns > first.t_end_ns


def test_without_an_energy_counter_an_edge_wakes_nobody() -> None:
    samples: list[Sample] = []
    with Sampler(providers=[Provider()], sink=samples.append, period_ns=60_000 * MS) as sampler:
        for _ in range(100):
            sampler.edge()
    assert [sample.is_edge for sample in samples] == [False, True]
    assert sampler.report is not None
    assert sampler.report.edges_taken == 1


def test_bytes_behind_readings_go_with_the_sample() -> None:
    class Table(Provider):
        def raws(self):
            return [RawRead("table", b"\x01\x02")]

    _, samples = run(Clock(until_ms=300), Table())
    assert [sample.raws for sample in samples] == [((("table"), b"\x01\x02"),)] * 2


def test_a_period_must_be_above_zero() -> None:
    with pytest.raises(ValueError, match="above zero"):
        Sampler(providers=(), sink=print, period_ns=0)


def test_the_thread_samples_until_it_is_stopped_and_closes_its_providers() -> None:
    provider, samples = Provider(), []
    with Sampler(providers=[provider], sink=samples.append, period_ns=5 * MS) as sampler:
        assert samples
        time.sleep(0.1)
    assert sampler.report is not None
    assert sampler.report.reason == "stopped"
    assert sampler.report.ticks_taken == len(samples) - 1 >= 3
    assert provider.is_closed
    assert not any(thread.name == "telemetry-sampler" for thread in threading.enumerate())


def test_stopping_does_not_wait_for_the_next_deadline() -> None:
    begin = time.monotonic()
    with Sampler(providers=[Provider()], sink=lambda sample: None, period_ns=60_000 * MS):
        pass
    assert time.monotonic() - begin < 5


def test_a_run_goes_on_when_its_telemetry_cannot_be_written() -> None:
    def sink(sample: Sample) -> None:
        raise OSError("disk full")

    sampler = Sampler(providers=[Provider()], sink=sink, period_ns=5 * MS)
    assert not sampler.start()
    report = sampler.stop()
    assert report is not None
    assert report.reason == "sink_failed"


def test_the_notes_tell_every_probe_and_the_end_in_plain_values() -> None:
    with Sampler(providers=[Provider()], sink=lambda sample: None, period_ns=5 * MS) as sampler:
        pass
    notes = sampler.notes()
    assert [event for event, _ in notes] == ["telemetry.probe", "telemetry.end"]
    assert notes[0][1] == {"provider": "fake", "state": "present", "reason": None, "refused": "{}"}
    assert notes[1][1]["reason"] == "stopped"
    assert all(value is None or isinstance(value, str | int) for _, fields in notes for value in fields.values())


def test_this_host_can_be_sampled() -> None:
    """Live: whatever this host has, with this process as the engine; what it lacks is named."""
    samples: list[Sample] = []
    with Sampler(sink=samples.append, pid=os.getpid(), period_ns=20 * MS) as sampler:
        time.sleep(0.3)
    report = sampler.report
    assert report is not None
    assert report.reason == "stopped"
    states = {probe.provider: probe for probe in sampler.selection.reports}
    assert states["host"].state in {"present", "partial"}
    assert states["process"].state in {"present", "partial"}
    last = {reading.field.key: reading for reading in samples[-1].readings}
    assert last["proc_rss_bytes"].raw > 1_000_000
    assert last["mem_available_bytes"].raw > 1_000_000
    assert last["cpu_busy_ticks"].raw > 0
    promised = {spec.key for provider in sampler.selection.providers for spec in provider.describe()}
    assert {reading.field.key for sample in samples for reading in sample.readings} == promised
    assert [sample.tick for sample in samples] == sorted({sample.tick for sample in samples})
    if not any(provider.name in {"amdgpu_sysfs", "nvml"} for provider in sampler.selection.providers):
        assert set(states["gpu"].refused) == {"amdgpu_sysfs", "nvml", "amdsmi"}
