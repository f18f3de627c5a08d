"""The doctor's lines about sensors, profilers and what a protocol asks of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from harness.profilers.tools import PROFILERS
from harness.sensors import QUANTITIES, profiler_lines, requirement_lines, sensor_lines
from protocols.validity import READING_WORDS
from protocols.vocabulary import HostReading
from recorder.host_counts import readings_of_fields
from recorder.telemetry.registry import Selection
from recorder.telemetry.sample import FieldSpec, ProbeReport

LONG = " (/opt/rocm/lib/libamd_smi.so: cannot open shared object file: No such file or directory)" * 2


def selection(*fields: str, reports: tuple[ProbeReport, ...] = ()) -> Selection:
    specs = tuple(FieldSpec(name=name, unit="x", kind="gauge", domain="host", source=f"/sys/{name}") for name in fields)
    provider: Any = SimpleNamespace(name="fake", describe=lambda: specs)
    return Selection(providers=(provider,), reports=reports)


def by_name(lines: Any) -> dict[str, Any]:
    return {line.name: line for line in lines}


def test_a_quantity_has_its_source_or_the_reason_that_its_provider_gave() -> None:
    report = ProbeReport(
        provider="host", state="partial", refused={"package_energy_uj@package-0": "/sys/x/energy_uj: EACCES"}
    )
    lines = by_name(sensor_lines(selection("gfx_clock_hz", "smu_gfx_clock_hz", reports=(report,))))
    assert lines["GPU clock"].found == "gfx_clock_hz (/sys/gfx_clock_hz) and 1 more"
    assert (lines["GPU clock"].state, lines["GPU power"].state) == ("ok", "warn")
    assert lines["CPU energy"].found == "none: /sys/x/energy_uj: EACCES"
    assert "intel-rapl" in lines["CPU energy"].next
    assert set(lines) == {quantity.name for quantity in QUANTITIES}


def test_a_host_without_a_gpu_says_so_once_with_every_reason() -> None:
    absent = ProbeReport(
        provider="gpu", state="absent", reason="no GPU telemetry on this host", refused={"nvml": f"no driver{LONG}"}
    )
    lines = by_name(sensor_lines(selection("psi_memory_some_us", reports=(absent,))))
    assert lines["GPU"].found == f"no GPU telemetry on this host: nvml: no driver{LONG}", "a reason is not cut"
    assert not any(quantity.name in lines for quantity in QUANTITIES if quantity.is_gpu)
    assert lines["pressure"].state == "ok"


def test_every_profiler_is_ready_or_says_what_it_lacks_and_what_helps(tmp_path: Any) -> None:
    lines = by_name(profiler_lines(tmp_path))
    assert set(lines) == set(PROFILERS)
    assert "the kernel has no performance events" in lines["perf-stat"].found
    assert all(line.next for line in lines.values())


def test_rules_that_this_host_cannot_check_are_missing(world: Any) -> None:
    from protocols.load import load_protocol

    path = world.protocol(
        extra="validity: [{reading: clock_collapses, most: 0}, {reading: engine_major_faults, most: 1}]"
    )
    lines = by_name(requirement_lines(load_protocol(path).protocol, selection("proc_majflt_count")))
    assert (lines["clock_collapses"].state, lines["engine_major_faults"].state) == ("missing", "ok")
    assert "cannot show it, so the rule is idle" in lines["clock_collapses"].found


def test_every_reading_of_the_protocol_has_words_and_a_host_that_could_give_it() -> None:
    readings = set(HostReading.__args__)  # type: ignore[attr-defined]
    assert set(READING_WORDS) == readings
    everything = frozenset(
        [
            "proc_majflt_count",
            "swap_in_pages",
            "swap_out_pages",
            "oom_kill_count",
            "psi_cpu_some_us",
            "psi_memory_some_us",
            "psi_io_some_us",
            "cpu_governor_code",
            "platform_profile_code",
            "gfx_clock_hz",
            "throttle_bits",
            "gpu_foreign_process_count",
            "mem_total_bytes",
            "mem_available_bytes",
            "proc_thread_count",
            "proc_runq_wait_ns",
        ]
    )
    assert readings_of_fields(everything) == readings
    assert readings_of_fields(frozenset()) == {"longest_sample_gap_ms"}


def test_the_doctor_answers_for_a_protocol(world: Any) -> None:
    path = world.protocol(extra="validity: [{reading: clock_collapses, most: 0}]")
    ended = world.run("doctor", path, "--store", world.store, "--json")
    lines = {(line["topic"], line["name"]): line for line in ended.json()}
    assert ("protocol", "clock_collapses") in lines
    assert any(topic == "profilers" for topic, _ in lines)
