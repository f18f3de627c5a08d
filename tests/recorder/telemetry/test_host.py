"""The host's pressure, paging, memory, clocks and energy."""

from __future__ import annotations

import os

import pytest

from recorder.telemetry.host import GOVERNORS, PREFERENCES, PROFILES, HostProvider

VMSTAT = "pswpin 3\npswpout 4\npgmajfault 5\npgscan_direct 6\nallocstall_dma 1\nallocstall_normal 2\noom_kill 0\nnr_free_pages 9"
MEMINFO = "MemTotal:  100 kB\nMemFree:  10 kB\nMemAvailable:   40 kB\nCached:  20 kB\nSwapFree:  0 kB"
STAT = "cpu  10 1 5 100 7 2 3 4 0 0\ncpu0 5 0 2 50 3 1 1 2 0 0\nintr 1 2 3\nctxt 777\nbtime 1700000000\nprocs_running 3"
POLICY = "/sys/devices/system/cpu/cpufreq/policy0"
PACKAGE = "/sys/class/powercap/intel-rapl:0"


@pytest.fixture
def host(tree):
    tree.write(
        {
            "/proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=11\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0",
            "/proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=13",
            "/proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=14\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=15",
            "/proc/vmstat": VMSTAT,
            "/proc/meminfo": MEMINFO,
            "/proc/loadavg": "1.25 0.80 0.50 3/410 999",
            "/proc/stat": STAT,
            f"{POLICY}/scaling_cur_freq": 3400000,
            f"{POLICY}/scaling_governor": "schedutil",
            f"{POLICY}/energy_performance_preference": "balance_power",
            "/sys/firmware/acpi/platform_profile": "balanced",
            "/sys/class/thermal/thermal_zone0/temp": 45000,
            "/sys/class/thermal/thermal_zone0/type": "acpitz",
            "/sys/class/thermal/thermal_zone4/temp": -3000,
            "/sys/class/thermal/thermal_zone4/type": "acpitz",
            "/sys/class/hwmon/hwmon3/name": "k10temp",
            "/sys/class/hwmon/hwmon3/temp1_input": 61250,
            "/sys/class/hwmon/hwmon3/temp1_label": "Tctl",
            "/sys/class/hwmon/hwmon4/name": "nvme",
            "/sys/class/hwmon/hwmon4/temp1_input": 33000,
            f"{PACKAGE}/energy_uj": 262143328849,
            f"{PACKAGE}/name": "package-0",
            f"{PACKAGE}/max_energy_range_uj": 262143328850,
            f"{PACKAGE}:0/energy_uj": 1,
            f"{PACKAGE}:0/name": "core",
        }
    )
    return tree


def values(readings) -> dict[str, int | None]:
    return {reading.field.key: reading.raw for reading in readings}


EXPECTED = {
    "psi_cpu_some_us": 11,
    "psi_memory_some_us": 12,
    "psi_memory_full_us": 13,
    "psi_io_some_us": 14,
    "psi_io_full_us": 15,
    "swap_in_pages": 3,
    "swap_out_pages": 4,
    "major_fault_count": 5,
    "direct_scan_pages": 6,
    "alloc_stall_count": 3,
    "oom_kill_count": 0,
    "mem_available_bytes": 40960,
    "mem_free_bytes": 10240,
    "mem_total_bytes": 102400,
    "mem_cached_bytes": 20480,
    "swap_free_bytes": 0,
    "load_1min_milli": 1250,
    "runnable_thread_count": 3,
    "cpu_busy_ticks": 21,
    "cpu_idle_ticks": 107,
    "cpu_steal_ticks": 4,
    "context_switch_count": 777,
    "cpu_clock_hz@policy0": 3_400_000_000,
    "zone_temp_mc@acpitz": 45000,
    "zone_temp_mc@acpitz#2": -3000,
    "cpu_temp_mc@k10temp/Tctl": 61250,
    "package_energy_uj@package-0": 262143328849,
    "cpu_governor_code@policy0": GOVERNORS.index("schedutil"),
    "energy_preference_code@policy0": PREFERENCES.index("balance_power"),
    "platform_profile_code": PROFILES.index("balanced"),
}


def test_everything_that_the_host_has_is_read_in_its_unit(host) -> None:
    provider = HostProvider(host.reader())
    report = provider.probe()
    assert (report.state, report.refused) == ("present", {})
    assert values(provider.read(0)) == EXPECTED
    assert {spec.key for spec in provider.describe()} == set(EXPECTED)
    assert all(spec.unit == spec.name.rpartition("_")[2] for spec in provider.describe())


def test_the_energy_counter_knows_where_it_wraps(host) -> None:
    provider = HostProvider(host.reader())
    provider.probe()
    spec = next(spec for spec in provider.describe() if spec.name == "package_energy_uj")
    assert (spec.kind, spec.domain, spec.modulus) == ("counter", "package", 262143328851)


def test_an_edge_reads_the_energy_of_the_packages_and_nothing_else(host) -> None:
    provider = HostProvider(host.reader())
    provider.probe()
    assert values(provider.read_edge()) == {"package_energy_uj@package-0": 262143328849}


def test_slow_fields_are_not_read_at_every_tick(host) -> None:
    provider = HostProvider(host.reader())
    provider.probe()
    assert "cpu_governor_code@policy0" not in values(provider.read(19))
    assert "cpu_governor_code@policy0" in values(provider.read(20))
    assert "platform_profile_code" not in values(provider.read(19))
    assert "zone_temp_mc@acpitz" not in values(provider.read(1))
    assert "zone_temp_mc@acpitz" in values(provider.read(4))
    assert "cpu_clock_hz@policy0" in values(provider.read(1))


def test_clocks_of_many_cpus_are_read_more_rarely(host) -> None:
    host.write({f"/sys/devices/system/cpu/cpufreq/policy{number}/scaling_cur_freq": 1000 for number in range(1, 17)})
    provider = HostProvider(host.reader())
    provider.probe()
    assert not any(key.startswith("cpu_clock_hz") for key in values(provider.read(1)))
    assert sum(key.startswith("cpu_clock_hz") for key in values(provider.read(4))) == 17


def test_an_unknown_governor_is_other_and_a_vanished_one_is_missing(host) -> None:
    provider = HostProvider(host.reader())
    provider.probe()
    host.write({f"{POLICY}/scaling_governor": "turbo9000"})
    assert values(provider.read(0))["cpu_governor_code@policy0"] == GOVERNORS.index("other")
    host.remove(f"{POLICY}/scaling_governor")
    assert values(provider.read(0))["cpu_governor_code@policy0"] is None


def test_a_host_with_nothing_says_so(tree) -> None:
    provider = HostProvider(tree.reader())
    report = provider.probe()
    assert (report.state, report.reason) == ("absent", "nothing could be read")
    assert report.refused["/proc/vmstat"] == "ENOENT"
    assert provider.describe() == ()
    assert list(provider.read(0)) == []


def test_what_is_refused_at_the_probe_has_no_field(host) -> None:
    reader = host.reader()
    reader.faults = {
        "/proc/pressure/io": host.EOPNOTSUPP,
        f"{PACKAGE}/energy_uj": host.EACCES,
        "/proc/loadavg": b"garbage",
    }
    provider = HostProvider(reader)
    report = provider.probe()
    assert report.state == "partial"
    assert report.refused == {
        "/proc/pressure/io": "EOPNOTSUPP",
        "/proc/loadavg": "none of the expected values stands in it",
        "package_energy_uj@package-0": f"{PACKAGE}/energy_uj: EACCES",
    }
    keys = {spec.key for spec in provider.describe()}
    assert keys == set(EXPECTED) - {
        "psi_io_some_us", "psi_io_full_us", "package_energy_uj@package-0", "load_1min_milli", "runnable_thread_count",
    }  # fmt: skip


@pytest.mark.parametrize("fault", ["ENOENT", "EACCES", "EIO", "EOPNOTSUPP", b"", b"N/A\n", b"9" * 40, b"\xff\xfe\x00"])
@pytest.mark.parametrize(
    "path",
    [
        "/proc/pressure/cpu",
        "/proc/vmstat",
        "/proc/meminfo",
        "/proc/loadavg",
        "/proc/stat",
        f"{POLICY}/scaling_cur_freq",
        f"{PACKAGE}/energy_uj",
    ],
)
def test_a_file_that_fails_during_the_load_gives_missing_values_and_never_zeros(host, path: str, fault: object) -> None:
    reader = host.reader()
    provider = HostProvider(reader)
    provider.probe()
    reader.faults[path] = getattr(host, fault) if isinstance(fault, str) else fault or b"\n"
    readings = list(provider.read(0))
    hit = [reading for reading in readings if reading.field.source == path]
    assert hit
    assert all(reading.raw is None and reading.status in {"error", "denied"} for reading in hit)
    assert len(readings) == len(EXPECTED)
    assert sum(reading.raw is not None for reading in readings) == len(EXPECTED) - len(hit)


def test_a_file_that_vanishes_or_blocks_gives_missing_values_and_the_next_tick_goes_on(host) -> None:
    provider = HostProvider(host.reader())
    provider.probe()
    provider.close()
    zone = host.root / "sys/class/thermal/thermal_zone0/temp"
    zone.unlink()
    assert values(provider.read(0)) == EXPECTED | {"zone_temp_mc@acpitz": None}
    os.mkfifo(zone)  # a read that would never end
    assert values(provider.read(0)) == EXPECTED | {"zone_temp_mc@acpitz": None}
    zone.unlink()
    host.write({"/sys/class/thermal/thermal_zone0/temp": 45000})
    assert values(provider.read(0)) == EXPECTED


def test_a_clock_of_zero_is_no_clock(host) -> None:
    provider = HostProvider(host.reader())
    provider.probe()
    host.write({f"{POLICY}/scaling_cur_freq": 0})
    assert values(provider.read(0))["cpu_clock_hz@policy0"] is None
