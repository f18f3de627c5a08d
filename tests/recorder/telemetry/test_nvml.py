"""NVIDIA GPUs through NVML, with a library that does what the tests say."""
# ruff: noqa: N802  (the names are NVML's)

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import ClassVar

import pytest

from recorder.telemetry.nvml import NvmlProvider, load_nvml
from recorder.telemetry.provider import DeviceLostError

BDF = "0000:06:00.0"


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({3: "Not Supported", 4: "No Permission", 15: "GPU is lost"}.get(value, "Unknown"))
        self.value = value


class FakeNvml:
    """One H200. ``errors`` maps a call or a field id to an NVML error code, ``answers`` to another value."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_FI_DEV_POWER_INSTANT, NVML_FI_DEV_POWER_AVERAGE = 186, 185
    NVML_FI_DEV_PERF_POLICY_POWER, NVML_FI_DEV_PERF_POLICY_THERMAL = 74, 75
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN = 269
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN = 270
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN = 271
    FIELDS: ClassVar = {186: 606238, 185: 131448, 74: 5_000_000_000, 75: 0, 269: 7, 270: 8, 271: 9}

    def __init__(self) -> None:
        self.errors: dict[object, int] = {}
        self.answers: dict[object, object] = {}
        self.calls: list[str] = []

    def _give(self, call: str, value: object) -> object:
        self.calls.append(call)
        if call in self.errors:
            raise NVMLError(self.errors[call])
        return self.answers.get(call, value)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self._give("handle", f"handle-{index}")

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=self._give("pci", b"00000000:06:00.0"))

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return self._give(f"clock-{kind}", {1: 1980, 2: 3201}[kind])

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._give("power", 121641)

    def nvmlDeviceGetFieldValues(self, handle, ids):
        self._give("fields", None)
        return [
            SimpleNamespace(
                nvmlReturn=self.errors.get(field, 0),
                valueType=1 if field in {185, 186} else 3,
                value=SimpleNamespace(**{"uiVal" if field in {185, 186} else "ullVal": self.FIELDS[field]}),
            )
            for field in ids
        ]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return self._give("energy", 3282061)

    def nvmlDeviceGetTemperatureV(self, handle, sensor):
        return self._give("temperature", 57)

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return self._give("old-temperature", 56)

    def nvmlDeviceGetUtilizationRates(self, handle):
        return self._give("utilization", SimpleNamespace(gpu=97, memory=23))

    def nvmlDeviceGetMemoryInfo(self, handle):
        return self._give("memory", SimpleNamespace(used=1570635776, total=150754820096))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self._give("reasons", 4)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self._give("old-reasons", 64)

    def nvmlDeviceGetMarginTemperature(self, handle):
        return self._give("margin", 28)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return self._give("processes", [SimpleNamespace(pid=10), SimpleNamespace(pid=77)])

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle):
        return self._give("graphics", [SimpleNamespace(pid=77), SimpleNamespace(pid=78)])

    def nvmlDeviceGetPerformanceState(self, handle):
        return self._give("state", 0)

    def nvmlDeviceGetUUID(self, handle):
        return self._give("uuid", "GPU-1")

    def nvmlDeviceGetName(self, handle):
        return self._give("name", b"NVIDIA H200")

    def nvmlSystemGetDriverVersion(self):
        return self._give("driver", "580.159.04")

    def nvmlDeviceGetVbiosVersion(self, handle):
        return self._give("vbios", "96.00")

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return self._give("limit", 700000)


EXPECTED = {
    "gfx_clock_hz": 1_980_000_000,
    "mem_clock_hz": 3_201_000_000,
    "board_power_uw": 121_641_000,
    "board_power_instant_uw": 606_238_000,
    "board_power_average_uw": 131_448_000,
    "board_energy_uj": 3_282_061_000,
    "temp_gpu_mc": 57_000,
    "gfx_busy_ppm": 970_000,
    "mem_busy_ppm": 230_000,
    "vram_used_bytes": 1570635776,
    "clock_event_bits": 4,
    "performance_state_code": 0,
    "temp_margin_mc": 28_000,
    "power_limit_uw": 700_000_000,
    "event_power_cap_ns": 5_000_000_000,
    "event_thermal_policy_ns": 0,
    "event_sw_thermal_ns": 7,
    "event_hw_thermal_ns": 8,
    "event_power_brake_ns": 9,
    "gpu_foreign_process_count": 2,
}


def values(provider: NvmlProvider, tick: int = 0) -> dict[str, int | None]:
    return {reading.field.name: reading.raw for reading in provider.read(tick)}


def probed(nvml: FakeNvml) -> NvmlProvider:
    provider = NvmlProvider(nvml, 0, own_processes=lambda: frozenset({10}))
    provider.probe()
    return provider


def test_every_query_is_read_in_its_unit() -> None:
    nvml = FakeNvml()
    provider = NvmlProvider(nvml, 0, own_processes=lambda: frozenset({10}))
    report = provider.probe()
    assert (report.state, report.refused) == ("present", {})
    assert values(provider) == EXPECTED
    assert {spec.instance for spec in provider.describe()} == {BDF}


def test_the_averaged_powers_say_so() -> None:
    windows = {
        spec.name: spec.window_us for spec in probed(FakeNvml()).describe() if spec.name.startswith("board_power")
    }
    assert windows == {"board_power_uw": 1_000_000, "board_power_instant_uw": None, "board_power_average_uw": 1_000_000}


def test_power_and_energy_say_how_often_they_change() -> None:
    updates = {spec.name: spec.update_us for spec in probed(FakeNvml()).describe() if spec.update_us is not None}
    assert updates == dict.fromkeys(
        ("board_power_uw", "board_power_instant_uw", "board_power_average_uw", "board_energy_uj"), 100_000
    )


def test_every_field_value_of_a_tick_comes_from_one_call_and_so_does_the_utilisation() -> None:
    nvml = FakeNvml()
    provider = probed(nvml)
    nvml.calls.clear()
    provider.read(1)
    assert (nvml.calls.count("fields"), nvml.calls.count("utilization")) == (1, 1)


def test_a_field_of_floating_point_or_without_a_number_is_read_by_its_type() -> None:
    class Doubles(FakeNvml):
        number = 121.9

        def nvmlDeviceGetFieldValues(self, handle, ids):
            value = SimpleNamespace(dVal=self.number)
            return [SimpleNamespace(nvmlReturn=0, valueType=0, value=value) for _ in ids]

    nvml = Doubles()
    provider = probed(nvml)
    assert values(provider)["board_power_instant_uw"] == 121_000
    nvml.number = float("nan")
    assert values(provider)["board_power_instant_uw"] is None


def test_only_what_changes_within_a_phase_is_asked_at_every_tick() -> None:
    nvml = FakeNvml()
    provider = probed(nvml)
    nvml.calls.clear()
    assert set(values(provider, 1)) == {
        "gfx_clock_hz", "board_power_instant_uw", "gfx_busy_ppm", "mem_busy_ppm", "clock_event_bits",
    }  # fmt: skip
    assert sorted(nvml.calls) == ["clock-1", "fields", "reasons", "utilization"]
    dear = {"temp_margin_mc", "event_thermal_policy_ns", "event_hw_thermal_ns", "event_power_brake_ns"}
    assert set(EXPECTED) - set(values(provider, 4)) == {"board_energy_uj", "power_limit_uw", *dear}
    assert set(EXPECTED) - set(values(provider, 20)) == set()


@pytest.mark.parametrize(("period_ms", "reads"), [(50, 1), (250, 3), (1000, 12), (3000, 30)])
def test_the_energy_counter_is_read_every_five_seconds_whatever_the_period(period_ms: int, reads: int) -> None:
    nvml = FakeNvml()
    provider = NvmlProvider(nvml, 0, period_ns=period_ms * 1_000_000)
    provider.probe()
    nvml.calls.clear()
    for tick in range(60):
        provider.read(tick)
    assert nvml.calls.count("energy") == reads


def test_an_edge_reads_the_energy_counter_and_nothing_else() -> None:
    nvml = FakeNvml()
    provider = probed(nvml)
    nvml.calls.clear()
    assert [(reading.field.name, reading.raw) for reading in provider.read_edge()] == [
        ("board_energy_uj", 3_282_061_000)
    ]
    assert nvml.calls == ["energy"]
    nvml.errors["energy"] = 15
    with pytest.raises(DeviceLostError):
        provider.read_edge()


def test_processes_of_others_are_those_that_are_not_the_engines() -> None:
    nvml = FakeNvml()
    own = {10, 77, 78}
    provider = NvmlProvider(nvml, 0, own_processes=lambda: frozenset(own))
    provider.probe()
    assert values(provider)["gpu_foreign_process_count"] == 0
    own.remove(77)
    assert values(provider)["gpu_foreign_process_count"] == 1
    unknown = NvmlProvider(nvml, 0)
    assert "own processes are not known" in unknown.probe().refused[f"gpu_foreign_process_count@{BDF}"]


def test_an_older_driver_gives_the_event_reasons_under_their_older_name() -> None:
    nvml = FakeNvml()
    nvml.errors["reasons"] = 13
    assert values(probed(nvml))["clock_event_bits"] == 64
    nvml.errors["reasons"] = 4
    provider = NvmlProvider(nvml, 0)
    assert "[4]" in provider.probe().refused[f"clock_event_bits@{BDF}"]


@pytest.mark.parametrize("code", [3, 13, 4, 999])
def test_a_query_that_fails_at_the_probe_has_no_field_and_a_reason(code: int) -> None:
    nvml = FakeNvml()
    nvml.errors["energy"] = code
    provider = NvmlProvider(nvml, 0, own_processes=lambda: frozenset())
    report = provider.probe()
    assert report.state == "partial"
    assert report.refused == {f"board_energy_uj@{BDF}": f"NVMLError: {NVMLError(code)} [{code}]"}
    assert "board_energy_uj" not in values(provider)


@pytest.mark.parametrize(("code", "status"), [(3, "unsupported"), (4, "denied"), (999, "error")])
def test_a_query_that_fails_during_the_load_is_missing_with_its_status(code: int, status: str) -> None:
    nvml = FakeNvml()
    provider = probed(nvml)
    nvml.errors[186] = code
    readings = {reading.field.name: reading for reading in provider.read(0)}
    assert (readings["board_power_instant_uw"].raw, readings["board_power_instant_uw"].status) == (None, status)
    assert readings["board_power_average_uw"].raw == 131_448_000


@pytest.mark.parametrize("answer", [0xFFFF, 0xFFFFFFFF, 2**64 - 1, -1, "N/A", None, True, 1.5])
def test_an_answer_that_stands_for_no_value_is_none(answer: object) -> None:
    nvml = FakeNvml()
    provider = probed(nvml)
    nvml.answers["power"] = answer
    assert values(provider)["board_power_uw"] is None


def test_an_older_driver_gives_the_temperature_through_the_older_call() -> None:
    nvml = FakeNvml()
    nvml.errors["temperature"] = 13
    assert values(probed(nvml))["temp_gpu_mc"] == 56_000


def test_a_lost_gpu_is_lost() -> None:
    nvml = FakeNvml()
    provider = probed(nvml)
    nvml.errors["power"] = 15
    with pytest.raises(DeviceLostError, match=BDF):
        provider.read(0)
    report = NvmlProvider(nvml, 0).probe()
    assert report.state == "absent"
    assert "GPU is lost" in (report.reason or "")


def test_a_device_without_a_handle_is_absent() -> None:
    nvml = FakeNvml()
    nvml.errors["handle"] = 4
    provider = NvmlProvider(nvml, 0)
    assert provider.probe().state == "absent"
    assert provider.identity() == ()
    assert list(provider.read(0)) == []


def test_the_identity_hides_the_uuid_and_leaves_out_what_the_driver_does_not_say() -> None:
    nvml = FakeNvml()
    nvml.errors["vbios"] = 3
    (identity,) = probed(nvml).identity()
    assert (identity.kind, identity.identifier) == ("nvidia", BDF)
    assert identity.facts["name"] == "NVIDIA H200"
    assert identity.facts["vbios_version"] is None
    assert "GPU-1" not in str(identity)
    assert len(str(identity.facts["uuid_sha256"])) == 64


def test_a_library_that_fails_or_prints_is_a_reason_and_silent(monkeypatch, capfd) -> None:
    def init() -> None:
        sys.stdout.write("noise")
        raise KeyError("libnvidia-ml.so")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=init))
    assert load_nvml() == (None, "KeyError: 'libnvidia-ml.so'")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    nvml, reason = load_nvml()
    assert nvml is None
    assert "ModuleNotFoundError" in (reason or "")
    assert capfd.readouterr() == ("", "")
