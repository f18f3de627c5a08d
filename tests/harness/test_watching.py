"""Telemetry around a load: what the requests tell it, what it notes, and what a display shows of it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from harness.watching import Unwatched, machine_words, watched_host
from recorder.telemetry.sample import Sample


class Load:
    """Stands for the recorder of a load."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.samples: list[Sample] = []

    def note(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    def sample(self, sample: Sample) -> None:
        self.samples.append(sample)

    def names(self) -> list[str]:
        return [event for event, _ in self.events]


def test_a_watched_load_has_samples_between_its_probes_and_its_end() -> None:
    load = Load()
    with watched_host(load, os.getpid(), period_ms=50) as watch:
        watch.edge()
        assert watch.latest["mem_available_bytes"] > 0
    names = load.names()
    assert names[0] == "telemetry.probe"
    assert names[-2:] == ["telemetry.started", "telemetry.end"]
    assert load.samples
    assert load.events[-1][1]["reason"] == "stopped"


def test_a_load_without_sampling_says_so_and_has_no_samples() -> None:
    load = Load()
    with watched_host(load, os.getpid(), period_ms=50, is_off=True) as watch:
        watch.edge()
        assert isinstance(watch, Unwatched)
        assert machine_words(watch.latest) == ""
    assert load.names() == ["telemetry.off"]
    assert load.samples == []


def test_the_display_prefers_the_gpu_and_leaves_out_what_is_not_there() -> None:
    gpu = {
        "gfx_clock_hz@0000:06:00.0": 1_980_000_000,
        "cpu_clock_hz@policy0": 3_000_000_000,
        "board_power_instant_uw@0000:06:00.0": 606_238_000,
        "board_power_uw@0000:06:00.0": 121_000_000,
        "temp_gpu_mc@0000:06:00.0": 57_000,
        "vram_used_bytes@0000:06:00.0": 3 << 30,
        "proc_rss_bytes": 5 << 20,
    }
    assert machine_words(gpu) == "1,980 MHz, 606 W, 57 °C, GPU 3.0 GiB, engine 5.0 MiB"
    cpu = {"cpu_clock_hz@policy0": 1_200_000_000, "cpu_clock_hz@policy1": 3_400_000_000, "proc_rss_bytes": 5 << 20}
    assert machine_words(cpu) == "3,400 MHz, engine 5.0 MiB"
    assert machine_words({"socket_power_uw@x": 9_500_000}) == "9.5 W"
