"""The requests of one load: which are sent, in which order, through one client, and what ends the load.

Timing: everything that a rate rests on is stamped in `engine.client` (what we see) or reported by the engine; the code
here runs between exchanges. While a stream runs it only counts events for the display, after the bytes were recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

from engine.client import ExchangeEnd, build_request, exchange
from harness.api_key import request_headers
from harness.client_watch import watched
from harness.preparation import Prepared, PreparedArm
from harness.progress import Progress
from harness.watching import Unwatched, Watch, machine_words
from protocols.schema import Workload
from recorder.derive import DerivedRequest, derive_request
from recorder.load_recorder import ExchangeSink, LoadRecorder
from recorder.wire import Read, Wire

PROBE_TOTAL_S: Final = 10.0
"""Seconds that `/health` and `/props` may take."""
TICK_S: Final = 1.0
_OK: Final = b" 200"


class RequestFailed(Exception):  # noqa: N818 - not an error of Assay: it becomes the state of a load
    """A request did not end as it must; `reason` is a sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where the engine listens."""

    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Step:
    """One request to send. `workload` is None for what no gate looks at."""

    name: str
    method: Literal["GET", "POST"]
    route: str
    kind: Literal["native", "openai", "http"]
    workload: str | None
    repeat: int
    is_warmup: bool
    body: bytes | None
    total_s: float
    idle_s: float


def workload_steps(prepared: Prepared) -> Iterator[Step]:
    """Yield the requests of every workload: its warm-ups, then its measured requests."""
    for workload in prepared.protocol.workloads:
        warmup = workload.warmup
        for repeat in range(1, (warmup.repeats if warmup else 0) + 1):
            assert warmup is not None  # noqa: S101 - the range is empty otherwise
            yield _step(prepared, workload, f"{workload.id}.warmup-{repeat}", warmup.request, repeat, is_warmup=True)
        for repeat in range(1, workload.repeats + 1):
            yield _step(prepared, workload, f"{workload.id}.{repeat}", workload.request, repeat, is_warmup=False)


def _step(prepared: Prepared, workload: Workload, name: str, reference: str, repeat: int, *, is_warmup: bool) -> Step:
    limits = prepared.protocol.limits
    return Step(
        name=name,
        method="POST",
        route=workload.route,
        kind="native" if workload.route == "/completion" else "openai",
        workload=workload.id,
        repeat=repeat,
        is_warmup=is_warmup,
        body=prepared.loaded.requests[reference],
        total_s=limits.request_s,
        idle_s=limits.idle_s,
    )


def _probe(name: str) -> Step:
    return Step(
        name=name,
        method="GET",
        route=f"/{name}",
        kind="http",
        workload=None,
        repeat=1,
        is_warmup=False,
        body=None,
        total_s=PROBE_TOTAL_S,
        idle_s=PROBE_TOTAL_S,
    )


class _Watched:
    """Hands everything to the recorder first, then keeps it to judge this request, and counts for the display."""

    def __init__(self, sink: ExchangeSink, watch: Watch) -> None:
        self._sink = sink
        self._watch = watch
        self.sent_ns: int | None = None
        self.reads: list[Read] = []
        self.event_count = 0

    def on_sent(self, t_ns: int) -> None:
        self._sink.on_sent(t_ns)
        self.sent_ns = t_ns
        self._watch.edge()

    def on_read(self, t_ns: int, data: bytes) -> None:
        self._sink.on_read(t_ns, data)
        self.reads.append(Read(t_ns, data))
        new_count = data.count(b"data:")
        if new_count and not self.event_count:
            self._watch.edge()  # prefill ends with the first event
        self.event_count += new_count

    def close(self) -> None:
        """Say that the answer has ended."""
        self._watch.edge()

    def seconds(self) -> float:
        """Return the seconds since the first read."""
        return (time.monotonic_ns() - self.reads[0].t_ns) / 1e9 if self.reads else 0.0


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """The requests of one load."""

    prepared: Prepared
    arm: PreparedArm
    load: LoadRecorder
    target: Target
    progress: Progress
    deadline_s: float
    watch: Watch = field(default_factory=Unwatched)

    async def run(self) -> None:
        """Send everything in order. Raises RequestFailed at the first request that does not end as it must."""
        async with watched(lambda event, fields: self.load.note(event, **fields)):
            for name in ("health", "props"):
                if name in self.arm.resolved.capabilities:
                    await self._probe(_probe(name))
            for step in workload_steps(self.prepared):
                self.progress.phase(f"warms up {step.workload}" if step.is_warmup else f"measures {step.workload}")
                await self._measure(step)

    async def _probe(self, step: Step) -> None:
        watched, end = await self._exchange(step)
        if end.reason not in {"complete", "closed"}:
            raise RequestFailed(f"{step.route} did not answer: {_ended(end, step)}")
        status = b"".join(read.data for read in watched.reads).split(b"\r\n", 1)[0]
        if _OK not in status:
            raise RequestFailed(f"{step.route} answered {status[:80].decode('latin-1')!r}")

    async def _measure(self, step: Step) -> None:
        with _quiet_collector():
            watched, end = await self._exchange(step)
        derived = _derive(step, watched, end)
        if derived.outcome != "ok":
            what = "warm-up" if step.is_warmup else "request"
            detail = derived.error_text or derived.reason or "it did not end as it must"
            raise RequestFailed(f"the {what} {step.name} ended as {derived.outcome}: {detail} ({_ended(end, step)})")

    async def _exchange(self, step: Step) -> tuple[_Watched, ExchangeEnd]:
        host = f"{self.target.host}:{self.target.port}"
        headers = {"Accept": "*/*", **request_headers()}
        request = build_request(step.method, step.route, host, headers, step.body)
        sink = self.load.exchange(
            name=step.name,
            route=step.route,
            kind=step.kind,
            workload=step.workload,
            repeat=step.repeat,
            is_warmup=step.is_warmup,
            request=request,
        )
        watched = _Watched(sink, self.watch if step.workload else Unwatched())
        total_s = min(step.total_s, max(0.0, self.deadline_s - time.monotonic()))
        ticker = asyncio.create_task(self._tick(watched)) if step.workload else None
        try:
            end = await exchange(
                self.target.host, self.target.port, request, watched, total_s=total_s, idle_s=step.idle_s
            )
        except BaseException:
            sink.close("cancelled", time.monotonic_ns())
            raise
        finally:
            if ticker:
                ticker.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await ticker
        watched.close()
        sink.close(end.reason, end.end_ns)
        return watched, end

    async def _tick(self, watched: _Watched) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            machine = machine_words(self.watch.latest)
            self.progress.tick(event_count=watched.event_count, seconds=watched.seconds(), machine=machine)


def _derive(step: Step, watched: _Watched, end: ExchangeEnd) -> DerivedRequest:
    wire = Wire(
        request=b"",
        sent_ns=watched.sent_ns,
        reads=tuple(watched.reads),
        end_ns=end.end_ns,
        end_reason=end.reason,
        is_cut=False,
    )
    return derive_request(wire, "native" if step.kind == "native" else "openai")


def _ended(end: ExchangeEnd, step: Step) -> str:
    words = {
        "complete": "the answer was whole",
        "closed": "the engine closed the connection",
        "reset": "the connection broke",
        "total_timeout": f"it took longer than {step.total_s:g} s, or the campaign's time was over",
        "idle_timeout": f"nothing came for {step.idle_s:g} s",
        "refused": "no connection could be made",
        "error": "the answer is not HTTP",
    }[end.reason]
    return f"{words}: {end.detail}" if end.detail else words


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """Keep Python's garbage collector out of a measured exchange."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
