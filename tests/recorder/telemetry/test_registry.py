"""The choice of providers, with the reason of every refused candidate."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

from recorder.telemetry.registry import amdsmi_report, select_providers
from recorder.telemetry.sample import ProbeReport


def no_nvml():
    return None, "NVMLError_LibraryNotFound: NVML Shared Library Not Found"


def no_amdsmi() -> ProbeReport:
    return ProbeReport(provider="amdsmi", state="absent", reason="KeyError: 'libamd_smi.so'")


def test_a_host_without_a_gpu_gets_an_explicit_record(tree) -> None:
    selection = select_providers(new_reader=tree.reader, load_nvml=no_nvml, probe_amdsmi=no_amdsmi)
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
    selection = select_providers(new_reader=apu.reader, load_nvml=no_nvml, probe_amdsmi=no_amdsmi)
    assert [provider.name for provider in selection.providers] == ["host", "amdgpu_sysfs"]
    assert [device.identifier for device in selection.devices()] == ["0000:c5:00.0"]
    assert [report.provider for report in selection.reports] == ["host", "amdgpu_sysfs", "amdsmi"]


def test_a_suspended_card_is_refused_with_its_reason(apu) -> None:
    apu.write({"/sys/devices/pci0000:00/0000:c5:00.0/power/runtime_status": "suspended"})
    selection = select_providers(new_reader=apu.reader, load_nvml=no_nvml, probe_amdsmi=no_amdsmi)
    assert selection.reports[-1].refused["amdgpu_sysfs"] == "0000:c5:00.0: the device is suspended"


def test_a_driver_without_devices_and_a_driver_that_breaks_are_reasons(tree) -> None:
    def broken() -> int:
        raise RuntimeError("bad")

    for count, reason in ((lambda: 0, "the driver works and finds no device"), (broken, "RuntimeError: bad")):
        nvml = SimpleNamespace(nvmlDeviceGetCount=count)
        selection = select_providers(
            new_reader=tree.reader, load_nvml=lambda nvml=nvml: (nvml, None), probe_amdsmi=no_amdsmi
        )
        assert selection.reports[-1].refused["nvml"] == reason


def test_the_process_of_an_engine_is_watched_where_it_lives(tree) -> None:
    tree.write({"/proc/10/stat": "10 (x) S " + " ".join(["1"] * 30)})
    with_process = select_providers(10, new_reader=tree.reader, load_nvml=no_nvml, probe_amdsmi=no_amdsmi)
    assert [provider.name for provider in with_process.providers] == ["process", "gpu"]
    without = select_providers(11, new_reader=tree.reader, load_nvml=no_nvml, probe_amdsmi=no_amdsmi)
    assert [report.reason for report in without.reports if report.provider == "process"] == ["process 11: ENOENT"]


def test_amds_library_is_contained(monkeypatch, capfd) -> None:
    """Without ROCm its import prints two lines and raises KeyError."""

    class Flags:
        INIT_AMD_GPUS = 2

    def library(handles: list[object] | None):
        def get() -> list[object]:
            sys.stdout.write("noise from the library\n")
            if handles is None:
                raise KeyError("libamd_smi.so")
            return handles

        return SimpleNamespace(
            AmdSmiInitFlags=Flags,
            amdsmi_init=lambda flags: None,
            amdsmi_shut_down=lambda: None,
            amdsmi_get_processor_handles=get,
        )

    monkeypatch.setitem(sys.modules, "amdsmi", library(None))
    broken = amdsmi_report()
    assert (broken.state, broken.reason) == ("absent", "KeyError: 'libamd_smi.so' (noise from the library)")
    monkeypatch.setitem(sys.modules, "amdsmi", library([]))
    assert amdsmi_report().reason == "the library works and finds no device"
    monkeypatch.setitem(sys.modules, "amdsmi", library([1, 2]))
    assert amdsmi_report().state == "partial"
    assert capfd.readouterr() == ("", "")


def test_importing_the_telemetry_loads_no_driver_library() -> None:
    code = (
        "import sys, recorder.telemetry.registry, recorder.telemetry.sampler; "
        "sys.exit(bool({'amdsmi', 'pynvml'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=False).returncode == 0
