"""The choice of providers, with the reason of every refused candidate."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

from recorder.telemetry.registry import select_providers


def no_nvml():
    return None, "NVMLError_LibraryNotFound: NVML Shared Library Not Found"


def no_amdsmi():
    return None, "KeyError: 'libamd_smi.so'"


def amdsmi_with_energy():
    """A library with two devices that gives nothing but their energy."""
    library = SimpleNamespace(
        amdsmi_get_processor_handles=lambda: ["0000:c5:00.0", "0000:01:00.0"],
        amdsmi_get_gpu_device_bdf=lambda handle: handle,
        amdsmi_get_energy_count=lambda handle: {"energy_accumulator": 4, "counter_resolution": 0.5, "timestamp": 1},
    )
    return library, None


def test_a_host_without_a_gpu_gets_an_explicit_record(tree) -> None:
    selection = select_providers(new_reader=tree.reader, load_nvml=no_nvml, load_amdsmi=no_amdsmi)
    assert [provider.name for provider in selection.providers] == ["gpu"]
    record = selection.reports[-1]
    assert (record.provider, record.state, record.reason) == ("gpu", "absent", "no GPU telemetry on this host")
    assert record.refused == {
        "amdgpu_sysfs": "no card of vendor 0x1002 below /sys/class/drm",
        "nvml": "NVMLError_LibraryNotFound: NVML Shared Library Not Found",
        "amdsmi": "KeyError: 'libamd_smi.so'",
    }
    (absent,) = selection.providers
    assert (absent.describe(), tuple(absent.read(0)), absent.identity()) == ((), (), ())
    assert absent.probe() == record


def test_an_amd_host_reads_the_drivers_files_and_has_no_absent_record(apu) -> None:
    apu.write({"/proc/loadavg": "1.00 1.00 1.00 1/2 3"})
    selection = select_providers(new_reader=apu.reader, load_nvml=no_nvml, load_amdsmi=no_amdsmi)
    assert [provider.name for provider in selection.providers] == ["host", "amdgpu_sysfs"]
    assert [device.identifier for device in selection.devices()] == ["0000:c5:00.0"]
    assert [report.provider for report in selection.reports] == ["host", "amdgpu_sysfs", "amdsmi", "nvml"]


def test_amds_library_adds_what_the_files_lack_and_serves_a_device_that_has_none(apu) -> None:
    selection = select_providers(new_reader=apu.reader, load_nvml=no_nvml, load_amdsmi=amdsmi_with_energy)
    fields = [(one.name, spec.name, spec.instance) for one in selection.providers for spec in one.describe()]
    energies = [field for field in fields if field[1] == "socket_energy_uj"]
    assert energies == [
        ("amdsmi", "socket_energy_uj", "0000:c5:00.0"),
        ("amdsmi", "socket_energy_uj", "0000:01:00.0"),
    ]
    asked = [len(report.refused) for report in selection.reports if report.provider == "amdsmi"]
    assert asked == [5, 15]  # the violations; everything but the energy


def test_processes_of_others_are_counted_only_beside_an_engine_of_ours(apu) -> None:
    apu.write({"/sys/class/kfd/kfd/topology/nodes/1/gpu_id": 2222, "/sys/class/kfd/kfd/proc/77/vram_2222": 4096})
    apu.write({"/proc/10/stat": "10 (x) S " + " ".join(["1"] * 30)})
    for pid, expected in ((None, set()), (10, {"gpu_foreign_process_count"})):
        selection = select_providers(pid, new_reader=apu.reader, load_nvml=no_nvml, load_amdsmi=no_amdsmi)
        names = {spec.name for one in selection.providers for spec in one.describe()}
        assert names & {"gpu_foreign_process_count"} == expected


def test_a_suspended_card_is_refused_with_its_reason(apu) -> None:
    apu.write({"/sys/devices/pci0000:00/0000:c5:00.0/power/runtime_status": "suspended"})
    selection = select_providers(new_reader=apu.reader, load_nvml=no_nvml, load_amdsmi=no_amdsmi)
    assert selection.reports[-1].refused["amdgpu_sysfs"] == "0000:c5:00.0: the device is suspended"


def test_a_driver_without_devices_and_a_driver_that_breaks_are_reasons(tree) -> None:
    def broken() -> int:
        raise RuntimeError("bad")

    for count, reason in ((lambda: 0, "the driver works and finds no device"), (broken, "RuntimeError: bad")):
        nvml = SimpleNamespace(nvmlDeviceGetCount=count)
        selection = select_providers(
            new_reader=tree.reader, load_nvml=lambda nvml=nvml: (nvml, None), load_amdsmi=no_amdsmi
        )
        assert selection.reports[-1].refused["nvml"] == reason


def test_the_process_of_an_engine_is_watched_where_it_lives(tree) -> None:
    tree.write({"/proc/10/stat": "10 (x) S " + " ".join(["1"] * 30)})
    with_process = select_providers(10, new_reader=tree.reader, load_nvml=no_nvml, load_amdsmi=no_amdsmi)
    assert [provider.name for provider in with_process.providers] == ["process", "gpu"]
    without = select_providers(11, new_reader=tree.reader, load_nvml=no_nvml, load_amdsmi=no_amdsmi)
    assert [report.reason for report in without.reports if report.provider == "process"] == ["process 11: ENOENT"]


def test_importing_the_telemetry_loads_no_driver_library() -> None:
    code = (
        "import sys, recorder.telemetry.registry, recorder.telemetry.sampler; "
        "sys.exit(bool({'amdsmi', 'pynvml'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=False).returncode == 0
