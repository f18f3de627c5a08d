"""Findings about the host, read from a made-up /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.preflight import MIB, Finding, Need, check_disk, disk_need_bytes, inspect_host, refuse_or_warn
from protocols.errors import HostError

NEED = Need(threads=2, model_bytes=100 * MIB, load_disk_bytes=1)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    files = {
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
        "proc/loadavg": "0.12 0.50 0.60 1/200 999\n",
        "proc/meminfo": "MemTotal: 4000000 kB\nMemAvailable: 1000000 kB\n",
        "proc/pressure/cpu": "some avg10=0.50 avg60=1.00 avg300=1.00 total=1\nfull avg10=0.00 avg60=0 avg300=0 total=0\n",
        "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        "proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def look(host: Path, need: Need = NEED, cpus: int = 4) -> dict[str, Finding]:
    findings = inspect_host(need, host, proc=host / "proc", sys=host / "sys", cpus=cpus)
    return {finding.id: finding for finding in findings}


def test_a_quiet_host_only_gives_records(host: Path) -> None:
    found = look(host)
    assert {finding.effect for finding in found.values()} == {"record"}
    assert refuse_or_warn(found.values()) == []


@pytest.mark.parametrize(
    ("file", "content", "name", "effect", "shown"),
    [
        (
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
            "powersave",
            "governor",
            "warn",
            "performance,powersave",
        ),
        ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet", "clock_source", "warn", "hpet"),
        ("proc/loadavg", "2.10 1 1 1/1 1", "load_average", "warn", "2.10"),
        ("proc/meminfo", "MemAvailable: 150000 kB\n", "memory_available", "warn", "146 MiB"),
        ("proc/meminfo", "MemAvailable: 50000 kB\n", "memory_available", "refuse", "48 MiB"),
        ("proc/pressure/cpu", "some avg10=44.10 avg60=1 avg300=1 total=9\n", "pressure_cpu", "warn", "44.10 %"),
        ("proc/pressure/io", "some avg10=12.00 avg60=1 avg300=1 total=9\n", "pressure_io", "warn", "12.00 %"),
    ],
)
def test_each_disturbance_has_its_stated_effect(
    host: Path, file: str, content: str, name: str, effect: str, shown: str
) -> None:
    (host / file).write_text(content)
    finding = look(host)[name]
    assert (finding.effect, finding.found) == (effect, shown)


def test_what_the_host_does_not_show_is_recorded_as_absent(tmp_path: Path) -> None:
    found = look(tmp_path)
    absent = {name for name, finding in found.items() if finding.found is None}
    expected = {
        "governor",
        "clock_source",
        "load_average",
        "memory_available",
        "pressure_cpu",
        "pressure_memory",
        "pressure_io",
    }
    assert absent == expected | {"foreign_gpu_processes"}
    assert {found[name].effect for name in absent} == {"record"}


def test_more_threads_than_cpus_warn(host: Path) -> None:
    assert look(host, cpus=1)["cpus"].effect == "warn"


def test_other_processes_on_a_gpu_are_counted(host: Path) -> None:
    (host / "sys/class/drm/renderD128").mkdir(parents=True)
    (host / "proc/77/fd").mkdir(parents=True)
    (host / "proc/77/fd/3").symlink_to("/dev/dri/renderD128")
    (host / "proc/78/fd").mkdir(parents=True)
    (host / "proc/78/fd/0").symlink_to("/dev/null")
    finding = look(host)["foreign_gpu_processes"]
    assert (finding.effect, finding.found) == ("warn", 1)


def test_a_full_disk_refuses(tmp_path: Path) -> None:
    def statvfs(_: Path) -> os.statvfs_result:
        return SimpleNamespace(f_bavail=5, f_frsize=MIB)  # type: ignore[return-value]

    finding = check_disk(tmp_path, 6 * MIB, statvfs=statvfs)
    assert (finding.effect, finding.found, finding.expected) == ("refuse", "5 MiB", "at least 6 MiB")
    assert check_disk(tmp_path, 5 * MIB, statvfs=statvfs).effect == "record"


def test_the_disk_need_grows_with_tokens_bodies_and_samples() -> None:
    least = disk_need_bytes(generated_tokens=1, request_bytes=1, load_s=1, sample_period_ms=250)
    assert least > 64 * MIB
    assert (
        disk_need_bytes(generated_tokens=100_000, request_bytes=1, load_s=1, sample_period_ms=250) > least + 400_000_000
    )
    assert disk_need_bytes(generated_tokens=1, request_bytes=10**7, load_s=1, sample_period_ms=250) > least + 3 * 10**7
    assert disk_need_bytes(generated_tokens=1, request_bytes=1, load_s=3600, sample_period_ms=250) > least + 10**8


def test_a_refusal_names_everything_that_is_missing(host: Path) -> None:
    (host / "proc/meminfo").write_text("MemAvailable: 5 kB\n")
    with pytest.raises(HostError) as error:
        refuse_or_warn(look(host, Need(threads=1, model_bytes=100 * MIB, load_disk_bytes=1 << 60)).values())
    assert look(host, NEED)["disk_room"].effect == "record"
    checks = Need(threads=1, model_bytes=100 * MIB, load_disk_bytes=1, check_disk_bytes=1 << 60)
    assert look(host, checks)["disk_room"].effect == "refuse"
    assert "the model does not fit into the available memory" in str(error.value)
    assert "the store has no room for the next load" in str(error.value)
    assert error.value.where == "preflight: memory_available, disk_room"
