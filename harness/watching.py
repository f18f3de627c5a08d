"""Telemetry around the requests of a load: on before the first request, off after the last, and a record of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from recorder.load_recorder import LoadRecorder
from recorder.telemetry.registry import Selection
from recorder.telemetry.sampler import Sampler
from reports import style

END: Final = "telemetry.end"
SWITCHED_OFF: Final = "telemetry.off"
"""Noted in a load that the protocol wants without sampling, to show what sampling costs."""
MADE_UP: Final = "telemetry.made_up"
"""Noted in a load of a control that reads a made-up GPU."""

_CLOCKS: Final = ("gfx_clock_hz", "smu_gfx_clock_hz", "cpu_clock_hz")
_POWERS: Final = ("board_power_instant_uw", "board_power_uw", "socket_power_uw", "smu_socket_power_uw")
_TEMPERATURES: Final = ("temp_gpu_mc", "temp_junction_mc", "temp_edge_mc", "smu_temp_gfx_mc", "cpu_temp_mc")
_MEMORIES: Final = (("GPU", "vram_used_bytes"), ("GTT", "gtt_used_bytes"), ("engine", "proc_rss_bytes"))


class Watch(Protocol):
    """What the requests of a load tell the telemetry, and what the display asks of it."""

    def edge(self) -> None:
        """Say that a phase begins or ends now."""

    @property
    def latest(self) -> Mapping[str, int]:
        """The newest value of each field, by its key."""


class Unwatched:
    """A load without sampling."""

    latest: Mapping[str, int] = {}

    def edge(self) -> None:
        """Do nothing."""


@contextmanager
def watched_host(
    load: LoadRecorder, pid: int | None, *, period_ms: int, is_off: bool = False, selection: Selection | None = None
) -> Iterator[Watch]:
    """Sample the host, the engine's process tree and GPUs while the block runs; with `is_off`, only note that.

    A `selection` of providers takes the place of what this host has, and is noted as made up. What each source found,
    and what it lacks, is noted before the first sample; how the sampling went, after the last.
    """
    if is_off:
        load.note(SWITCHED_OFF)
        yield Unwatched()
        return
    if selection is not None:
        load.note(MADE_UP)
    sampler = Sampler(sink=load.sample, selection=selection, pid=pid, period_ns=period_ms * 1_000_000)
    for event, fields in sampler.notes():
        load.note(event, **fields)
    try:
        load.note("telemetry.started", has_first_sample=int(sampler.start()))
        yield sampler
    finally:
        sampler.stop()
        ends = [fields for event, fields in sampler.notes() if event == END]
        load.note(END, **(ends[0] if ends else {"reason": "did not stop in time"}))


def machine_words(latest: Mapping[str, int]) -> str:
    """Return clock, power, temperature and memory in a few words; what this host does not give is left out."""
    by_name: dict[str, list[int]] = {}
    for key, value in dict(latest).items():
        by_name.setdefault(key.partition("@")[0], []).append(value)
    words = []
    for names, show in ((_CLOCKS, style.megahertz), (_POWERS, style.watts), (_TEMPERATURES, style.celsius)):
        found = next((by_name[name] for name in names if name in by_name), None)
        if found is not None:
            words.append(show(max(found)))
    words += [f"{title} {style.size(sum(by_name[name]))}" for title, name in _MEMORIES if name in by_name]
    return ", ".join(words)
