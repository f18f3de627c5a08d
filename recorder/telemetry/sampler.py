"""Takes one sample a period, on a thread of its own, without ever disturbing the run it watches.

Deadlines are absolute: ``start + k * period``. A tick that takes too long costs the deadlines it
overran; they are counted as missed and never made up in a burst. What goes wrong here ends the sampling
with a record and nothing else: an exception of the sink or of a provider never reaches the run.

``edge`` asks for one more sample, of the energy counters only, where a phase begins or ends: between two ticks a
second apart a counter would have to be interpolated. It costs its caller an append and a wake-up. Where a read is dear
(4 ms of a core on an H200) and phases are short, edges would outweigh the ticks: those beyond a fixed share of a core
are skipped and counted. When sampling is told to stop, every field is read a last time, outside the ticks.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Literal, Self

from recorder.telemetry.provider import DeviceLostError, Provider
from recorder.telemetry.registry import PERIOD_NS, Selection, select_providers
from recorder.telemetry.sample import RawRead, Reading, Sample

_NS_PER_S: Final = 1_000_000_000
_EDGE_PPM: Final = 2_000
"""Share of one core that the edges may take, beyond their allowance."""
_EDGE_ALLOWANCE_NS: Final = 100_000_000

Sink = Callable[[Sample], None]
EndReason = Literal["stopped", "sink_failed", "nothing_to_read", "failed"]


@dataclass(frozen=True, kw_only=True)
class ClockOffsets:
    """Other clocks of the host against the monotonic one, at one moment (ns)."""

    monotonic_ns: int
    realtime_minus_monotonic_ns: int
    boottime_minus_monotonic_ns: int | None


@dataclass(frozen=True, kw_only=True)
class SamplerReport:
    """What the sampling was like.

    reason           why it ended; ``stopped`` is the good one
    detail           the error that ended it, if one did. Free text
    ticks_due        deadlines that passed; taken + missed
    edges_taken      samples at the edges of phases, besides the ticks
    edges_skipped    reads of edges that were left out, because those before had used up their share of a core
    worst_edge_ns    longest time from an edge to the end of its sample
    worst_late_ns    latest start of a tick after its deadline
    cpu_ns           CPU time of the sampler's thread, its sink included
    worst_tick_cpu_ns  of one tick
    span_ns          from the first deadline to the end
    lost             providers that ended early, with the reason
    error_counts     readings with status ``error`` or ``denied``, by field key
    clocks           offsets at the start and at the end: a step between them is a clock that was set
    """

    reason: EndReason
    detail: str | None
    period_ns: int
    ticks_due: int
    ticks_taken: int
    ticks_missed: int
    edges_taken: int
    edges_skipped: int
    worst_edge_ns: int
    worst_late_ns: int
    cpu_ns: int
    worst_tick_cpu_ns: int
    span_ns: int
    lost: dict[str, str]
    error_counts: dict[str, int]
    clocks: tuple[ClockOffsets, ...]


@dataclass
class _Tally:
    start_ns: int
    taken: int = 0
    missed: int = 0
    edges: int = 0
    edges_skipped: int = 0
    edges_cpu_ns: int = 0
    worst_edge_ns: int = 0
    worst_late_ns: int = 0
    worst_tick_cpu_ns: int = 0
    lost: dict[str, str] = field(default_factory=dict)
    error_counts: dict[str, int] = field(default_factory=dict)


def clock_offsets() -> ClockOffsets:
    """Read the host's clocks as close together as Python can."""
    before = time.monotonic_ns()
    realtime = time.time_ns()
    boottime = time.clock_gettime_ns(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else None
    middle = (before + time.monotonic_ns()) // 2
    return ClockOffsets(
        monotonic_ns=middle,
        realtime_minus_monotonic_ns=realtime - middle,
        boottime_minus_monotonic_ns=None if boottime is None else boottime - middle,
    )


class Sampler:
    """Samples from ``start`` to ``stop``, or inside a ``with`` block.

    Without ``providers`` or a ``selection`` it probes the host and takes what it finds, with the process tree of
    ``pid``. It closes its providers when it ends. ``latest`` holds the newest value of each field by its key, for a
    display and for nothing else: a value that is missing now keeps its last one there. ``now_ns``, ``thread_cpu_ns``,
    ``offsets`` and ``wait`` (waits so many seconds, returns whether it was told to stop) are for tests; so is ``run``,
    which is the thread's body.
    """

    def __init__(
        self,
        *,
        sink: Sink,
        providers: Sequence[Provider] | None = None,
        selection: Selection | None = None,
        pid: int | None = None,
        period_ns: int = PERIOD_NS,
        now_ns: Callable[[], int] = time.monotonic_ns,
        thread_cpu_ns: Callable[[], int] = time.thread_time_ns,
        wait: Callable[[float], bool] | None = None,
        offsets: Callable[[], ClockOffsets] = clock_offsets,
    ) -> None:
        if period_ns <= 0:
            raise ValueError("the sampling period must be above zero")
        if providers is not None:
            selection = Selection(providers=tuple(providers), reports=tuple(one.probe() for one in providers))
        self.selection = selection or select_providers(pid, period_ns=period_ns)
        self.report: SamplerReport | None = None
        self.latest: dict[str, int] = {}
        self._providers = list(self.selection.providers)
        self._sink = sink
        self._period_ns = period_ns
        self._now_ns = now_ns
        self._thread_cpu_ns = thread_cpu_ns
        self._offsets = offsets
        self._stop = threading.Event()
        self._woken = threading.Event()
        self._wait = wait or self._wait_for_wake
        self._edges: deque[int] = deque()
        self._has_edges = any(spec.unit == "uj" for one in self._providers for spec in one.describe())
        self._first = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *, first_sample_s: float = 5.0) -> bool:
        """Start the thread and wait for its first sample. Returns whether that came in time."""
        self._thread = threading.Thread(target=self._guarded, name="telemetry-sampler", daemon=True)
        self._thread.start()
        return self._first.wait(first_sample_s) and self.report is None

    def stop(self, *, timeout_s: float = 5.0) -> SamplerReport | None:
        """Stop sampling and return what it was like; None if the thread does not end in time."""
        self._stop.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self.report

    def edge(self) -> None:
        """Say that a phase begins or ends now. Does nothing where no provider has an energy counter."""
        if self._has_edges:
            self._edges.append(self._now_ns())
            self._woken.set()

    def notes(self) -> tuple[tuple[str, dict[str, str | int | None]], ...]:
        """Return what belongs beside the samples, as (event, fields): every probe, every device, and the end."""
        notes: list[tuple[str, dict[str, str | int | None]]] = []
        for probe in self.selection.reports:
            fields: dict[str, str | int | None] = {"provider": probe.provider, "state": probe.state}
            notes.append(("telemetry.probe", fields | {"reason": probe.reason, "refused": _json(probe.refused)}))
        for device in self.selection.devices():
            names: dict[str, str | int | None] = {"kind": device.kind, "identifier": device.identifier}
            notes.append(("telemetry.device", names | {"facts": _json(device.facts)}))
        report = self.report
        if report is not None:
            end: dict[str, str | int | None] = {
                name: value for name, value in asdict(report).items() if value is None or isinstance(value, str | int)
            }
            end |= {"lost": _json(report.lost), "error_counts": _json(report.error_counts)}
            notes.append(("telemetry.end", end | {"clocks": _json([asdict(clock) for clock in report.clocks])}))
        return tuple(notes)

    def run(self) -> SamplerReport:
        """Sample until told to stop. Never raises."""
        clocks = [self._offsets()]
        start_ns = self._now_ns()
        tally = _Tally(start_ns=start_ns)
        start_cpu_ns = self._thread_cpu_ns()
        reason: EndReason = "stopped"
        detail: str | None = None
        tick = missed_before = 0
        try:
            while self._sleep_until(start_ns + tick * self._period_ns, tick - 1, tally):
                sample = self._take(tick, start_ns + tick * self._period_ns, missed_before, tally)
                if not self._providers:
                    reason = "nothing_to_read"
                    break
                self._sink(sample)
                self.latest |= {one.field.key: one.raw for one in sample.readings if one.raw is not None}
                tally.taken += 1
                self._first.set()
                following = max(tick + 1, -(-(self._now_ns() - start_ns) // self._period_ns))
                missed_before = following - tick - 1
                tally.missed += missed_before
                tick = following
            if reason == "stopped" and tally.taken:
                self._sink(self._take_last(tick, tally))
        except Exception as error:  # noqa: BLE001 (a full disk must end the sampling, not the run)
            reason, detail = "sink_failed", f"{type(error).__name__}: {error}"
        clocks.append(self._offsets())
        self._close()
        return SamplerReport(
            reason=reason,
            detail=detail,
            period_ns=self._period_ns,
            ticks_due=tally.taken + tally.missed,
            ticks_taken=tally.taken,
            ticks_missed=tally.missed,
            edges_taken=tally.edges,
            edges_skipped=tally.edges_skipped,
            worst_edge_ns=tally.worst_edge_ns,
            worst_late_ns=tally.worst_late_ns,
            cpu_ns=self._thread_cpu_ns() - start_cpu_ns,
            worst_tick_cpu_ns=tally.worst_tick_cpu_ns,
            span_ns=self._now_ns() - start_ns,
            lost=tally.lost,
            error_counts=tally.error_counts,
            clocks=tuple(clocks),
        )

    def _guarded(self) -> None:
        try:
            self.report = self.run()
        finally:
            self._first.set()

    def _wait_for_wake(self, seconds: float) -> bool:
        self._woken.wait(seconds)
        self._woken.clear()
        return self._stop.is_set()

    def _sleep_until(self, deadline_ns: int, tick: int, tally: _Tally) -> bool:
        """Wait for a deadline, sampling at the edges that come before it; False as soon as sampling shall stop."""
        is_over = self._stop.is_set()
        while not is_over and (left_ns := deadline_ns - self._now_ns()) > 0:
            is_over = self._wait(left_ns / _NS_PER_S)
            self._take_edges(tick, tally)
        self._take_edges(tick, tally)  # the last phase ends just before sampling does; a late tick does not wait
        return not is_over

    def _take_edges(self, tick: int, tally: _Tally) -> None:
        """Take one sample for all edges that were announced since the last."""
        if not self._edges:
            return
        announced_ns = self._edges.popleft()
        while self._edges:
            self._edges.popleft()
        cpu_ns, begin_ns = self._thread_cpu_ns(), self._now_ns()
        if tally.edges_cpu_ns > _EDGE_ALLOWANCE_NS + (begin_ns - tally.start_ns) * _EDGE_PPM // 1_000_000:
            tally.edges_skipped += 1
            return
        readings = self._ask(lambda provider: provider.read_edge(), tally)
        end_ns = self._now_ns()
        tally.edges_cpu_ns += self._thread_cpu_ns() - cpu_ns
        if readings:
            tally.edges += 1
            tally.worst_edge_ns = max(tally.worst_edge_ns, end_ns - announced_ns)
            self._sink(
                Sample(
                    tick=max(tick, 0),
                    deadline_ns=announced_ns,
                    t_begin_ns=begin_ns,
                    t_end_ns=end_ns,
                    cpu_ns=self._thread_cpu_ns() - cpu_ns,
                    readings=tuple(readings),
                    is_edge=True,
                )
            )

    def _take_last(self, tick: int, tally: _Tally) -> Sample:
        """Take every field once more at the end: without it, no counter would reach over the last phase."""
        tally.edges += 1
        return replace(self._take(0, self._now_ns(), 0, tally), tick=tick, is_edge=True)

    def _ask(self, read: Callable[[Provider], Iterable[Reading]], tally: _Tally) -> list[Reading]:
        """Return the readings of every provider that is left; one that fails is dropped with its reason."""
        readings: list[Reading] = []
        for provider in tuple(self._providers):
            try:
                readings.extend(read(provider))
            except DeviceLostError as error:
                self._drop(provider, f"device lost: {error}", tally)
            except Exception as error:  # noqa: BLE001 (one provider's defect must not blind the others)
                self._drop(provider, f"{type(error).__name__}: {error}", tally)
        for reading in readings:
            if reading.status in {"error", "denied"}:
                key = reading.field.key
                tally.error_counts[key] = tally.error_counts.get(key, 0) + 1
        return readings

    def _take(self, tick: int, deadline_ns: int, missed: int, tally: _Tally) -> Sample:
        cpu_ns = self._thread_cpu_ns()
        begin_ns = self._now_ns()
        readings = self._ask(lambda provider: provider.read(tick), tally)
        end_ns = self._now_ns()
        raws: list[RawRead] = [raw for provider in self._providers for raw in provider.raws()]
        cost_ns = self._thread_cpu_ns() - cpu_ns
        tally.worst_late_ns = max(tally.worst_late_ns, begin_ns - deadline_ns)
        tally.worst_tick_cpu_ns = max(tally.worst_tick_cpu_ns, cost_ns)
        return Sample(
            tick=tick,
            deadline_ns=deadline_ns,
            t_begin_ns=begin_ns,
            t_end_ns=end_ns,
            cpu_ns=cost_ns,
            missed_ticks=missed,
            readings=tuple(readings),
            raws=tuple(raws),
        )

    def _close(self) -> None:
        for provider in self.selection.providers:
            with contextlib.suppress(Exception):
                provider.close()

    def _drop(self, provider: Provider, reason: str, tally: _Tally) -> None:
        tally.lost[provider.name] = reason
        self._providers.remove(provider)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
