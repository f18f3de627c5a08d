"""Telemetry around the requests of a load: on before the first request, off after the last, and a record of both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from recorder.load_recorder import LoadRecorder
from recorder.telemetry.sampler import Sampler

END: Final = "telemetry.end"


@contextmanager
def watched_host(load: LoadRecorder, pid: int | None, *, period_ms: int) -> Iterator[None]:
    """Sample the host, the engine's process tree and GPUs while the block runs.

    What each source found, and what it lacks, is noted before the first sample; how the sampling went, after the last.
    """
    sampler = Sampler(sink=load.sample, pid=pid, period_ns=period_ms * 1_000_000)
    for event, fields in sampler.notes():
        load.note(event, **fields)
    try:
        load.note("telemetry.started", has_first_sample=int(sampler.start()))
        yield
    finally:
        sampler.stop()
        ends = [fields for event, fields in sampler.notes() if event == END]
        load.note(END, **(ends[0] if ends else {"reason": "did not stop in time"}))
