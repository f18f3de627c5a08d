"""AMD GPUs through the driver's files."""

from __future__ import annotations

import hashlib
import shutil

import pytest

from recorder.telemetry.amdgpu_sysfs import AmdgpuSysfsProvider, amd_devices, gfx_name, gfx_target_of
from recorder.telemetry.gpu_metrics import decode
from recorder.telemetry.provider import DeviceLostError

CARD = "/sys/class/drm/card1/device"
DEVICE = "/sys/devices/pci0000:00/0000:c5:00.0"
BDF = "0000:c5:00.0"
V3_TABLE = b"\x08\x01\x03\x00" + bytes(260)
V3 = decode(V3_TABLE).values


def provider_of(tree, reader=None) -> AmdgpuSysfsProvider:
    return AmdgpuSysfsProvider(CARD, reader or tree.reader())


def values(readings) -> dict[str, int | None]:
    return {reading.field.key: reading.raw for reading in readings}


FILES = {
    f"gfx_busy_ppm@{BDF}": 970_000,
    f"vram_used_bytes@{BDF}": 169148416,
    f"vis_vram_used_bytes@{BDF}": 169148416,
    f"gtt_used_bytes@{BDF}": 64424509440,
    f"gfx_clock_hz@{BDF}": 2_870_000_000,
    f"temp_edge_mc@{BDF}": 71000,
    f"socket_power_uw@{BDF}": 106_210_000,
    f"socket_power_instant_uw@{BDF}": 106_220_000,
}
METRICS = {f"{name}@{BDF}": value for name, value in V3.items()}
LEVEL = {f"gpu_performance_level_code@{BDF}": 0}
EXPECTED = FILES | METRICS


def test_only_amd_cards_are_devices_and_connectors_are_not(apu) -> None:
    assert amd_devices(apu.reader()) == (CARD,)


def test_an_apu_gives_its_readings_in_their_units(apu) -> None:
    provider = provider_of(apu)
    report = provider.probe()
    assert report.state == "partial"
    assert report.refused == {
        f"mem_busy_ppm@{BDF}": f"{CARD}/mem_busy_percent: ENOENT",
        f"power_limit_uw@{BDF}": f"{CARD}/hwmon/hwmon7/power1_cap: ENOENT",
        f"gpu_foreign_process_count@{BDF}": "the engine's own processes are not known, so others cannot be told from it",
        f"gfx_voltage_mv@{BDF}": f"{CARD}/hwmon/hwmon7/in0_input: holds 0, which the driver writes for a missing sensor",
    }
    assert values(provider.read(0)) == EXPECTED | LEVEL
    assert values(provider.read(1)) == EXPECTED
    assert list(provider.raws()) == [(f"gpu_metrics@{BDF}", V3_TABLE)]
    assert list(provider.read_edge()) == []


def test_bytes_of_an_unknown_metrics_table_are_kept_and_not_decoded(apu) -> None:
    unknown = b"\x08\x01\x09\x09" + bytes(260)
    apu.write({f"{DEVICE}/gpu_metrics": unknown})
    provider = provider_of(apu)
    assert provider.probe().refused[f"gpu_metrics@{BDF}"] == f"{CARD}/gpu_metrics: revision v9.9 is not known"
    assert values(provider.read(1)) == FILES
    assert list(provider.raws()) == [(f"gpu_metrics@{BDF}", unknown)]


def test_a_metrics_table_that_cannot_be_read_is_named_and_read_no_more(apu) -> None:
    apu.remove(f"{DEVICE}/gpu_metrics")
    provider = provider_of(apu)
    assert provider.probe().refused[f"gpu_metrics@{BDF}"] == f"{CARD}/gpu_metrics: ENOENT"
    assert values(provider.read(1)) == FILES
    assert list(provider.raws()) == []


def test_a_member_that_the_driver_does_not_fill_is_no_field(apu) -> None:
    apu.write({f"{DEVICE}/gpu_metrics": V3_TABLE[:112] + b"\xff" * 4 + V3_TABLE[116:]})
    provider = provider_of(apu)
    assert "not supported" in provider.probe().refused[f"smu_socket_power_uw@{BDF}"]
    assert f"smu_socket_power_uw@{BDF}" not in values(provider.read(0))


def test_processes_of_others_on_the_gpu_are_counted_through_kfd(apu) -> None:
    proc = "/sys/class/kfd/kfd/proc"
    apu.write({"/sys/class/kfd/kfd/topology/nodes/1/gpu_id": 2222})
    apu.write({f"{proc}/10/vram_2222": 1 << 30, f"{proc}/77/vram_2222": 4096, f"{proc}/78/vram_2222": 0})
    apu.write({f"{proc}/79/vram_1": 4096})
    provider = AmdgpuSysfsProvider(CARD, apu.reader(), lambda: frozenset({10}))
    provider.probe()
    assert values(provider.read(4))[f"gpu_foreign_process_count@{BDF}"] == 1
    assert f"gpu_foreign_process_count@{BDF}" not in values(provider.read(5))


def test_a_performance_level_that_somebody_sets_is_seen(apu) -> None:
    provider = provider_of(apu)
    provider.probe()
    apu.write({f"{DEVICE}/power_dpm_force_performance_level": "low"})
    assert values(provider.read(20))[f"gpu_performance_level_code@{BDF}"] == 1
    apu.write({f"{DEVICE}/power_dpm_force_performance_level": "something new"})
    assert values(provider.read(40))[f"gpu_performance_level_code@{BDF}"] == 7


def test_power_of_an_apu_is_that_of_the_socket_and_of_a_card_that_of_the_board(apu) -> None:
    provider = provider_of(apu)
    provider.probe()
    powers = {spec.name: spec.domain for spec in provider.describe() if spec.unit == "uw"}
    assert powers["socket_power_uw"] == powers["smu_socket_power_uw"] == "socket"
    assert powers["smu_gfx_power_uw"] == "gfx"
    apu.write({f"{DEVICE}/gpu_metrics": b"\x78\x00\x01\x03" + bytes(116)})
    provider = provider_of(apu)
    provider.probe()
    assert {spec.name: spec.domain for spec in provider.describe() if spec.unit == "uw"} == {
        "board_power_uw": "board",
        "board_power_instant_uw": "board",
        "smu_board_power_uw": "board",
    }


def test_a_kernel_without_the_averaged_power_gives_the_instantaneous_one(apu) -> None:
    apu.remove(f"{DEVICE}/hwmon/hwmon7/power1_average")
    provider = provider_of(apu)
    provider.probe()
    found = values(provider.read(0))
    assert f"socket_power_uw@{BDF}" not in found
    assert found[f"socket_power_instant_uw@{BDF}"] == 106_220_000


def test_the_identity_comes_from_kernel_and_kfd_and_hides_the_serial_number(apu) -> None:
    (identity,) = provider_of(apu).identity()
    assert (identity.kind, identity.identifier) == ("amdgpu", BDF)
    assert identity.facts == {
        "vendor": "0x1002",
        "device": "0x1586",
        "revision": "0xc1",
        "vbios_version": "113-STRXLGEN-001",
        "unique_id_sha256": hashlib.sha256(b"0123456789abcdef").hexdigest(),
        "driver_version": "6.14.14",
        "memory": "apu",
        "performance_level": "auto",
        "gfx_target": "gfx1151",
        "smu_firmware": None,
        "vram_total_bytes": 536870912,
        "vis_vram_total_bytes": 536870912,
        "gtt_total_bytes": 128849018880,
    }


@pytest.mark.parametrize(
    ("version", "name"), [(110501, "gfx1151"), (90010, "gfx90a"), (110003, "gfx1103"), (90402, "gfx942"), (0, None)]
)
def test_target_versions_have_their_names(version: int, name: str | None) -> None:
    assert gfx_name(version) == name


def test_a_device_that_kfd_does_not_know_has_no_target(apu) -> None:
    assert gfx_target_of(apu.reader(), "0000:01:00.0") is None
    assert gfx_target_of(apu.reader(), "card1") is None


def test_a_suspended_card_is_not_woken(apu) -> None:
    apu.write({f"{DEVICE}/power/runtime_status": "suspended"})
    provider = provider_of(apu)
    report = provider.probe()
    assert (report.state, report.reason) == ("absent", f"{BDF}: the device is suspended")
    assert list(provider.read(0)) == []


@pytest.mark.parametrize("fault", ["ENOENT", "EACCES", "EIO", "EOPNOTSUPP", b"N/A\n", b"-1\n", b"99999999999999999999"])
def test_a_file_that_fails_during_the_load_gives_a_missing_value(apu, fault: object) -> None:
    reader = apu.reader()
    provider = provider_of(apu, reader)
    provider.probe()
    reader.faults[f"{CARD}/hwmon/hwmon7/power1_average"] = getattr(apu, fault) if isinstance(fault, str) else fault
    assert values(provider.read(1)) == EXPECTED | {f"socket_power_uw@{BDF}": None}


@pytest.mark.parametrize("fault", ["ENOENT", "EACCES", "EIO", "EOPNOTSUPP", b"\x00", b"garbage" * 9])
def test_a_metrics_table_that_fails_during_the_load_gives_missing_values(apu, fault: object) -> None:
    reader = apu.reader()
    provider = provider_of(apu, reader)
    provider.probe()
    reader.faults[f"{CARD}/gpu_metrics"] = getattr(apu, fault) if isinstance(fault, str) else fault
    assert values(provider.read(1)) == FILES | dict.fromkeys(METRICS)


def test_a_device_that_is_gone_is_lost(apu) -> None:
    reader = apu.reader()
    provider = provider_of(apu, reader)
    provider.probe()
    provider.close()
    shutil.rmtree(apu.root / DEVICE.lstrip("/"))
    with pytest.raises(DeviceLostError, match=f"{BDF}: ENOENT"):
        provider.read(0)


def test_sensors_that_all_fail_for_a_moment_are_no_lost_device(apu) -> None:
    reader = apu.reader()
    provider = provider_of(apu, reader)
    provider.probe()
    for spec in provider.describe():
        reader.faults[spec.source.partition(" ")[0]] = apu.EIO
    assert set(values(provider.read(0)).values()) == {None}
