"""Chooses the providers of a load, and says why each other candidate was refused.

For AMD the driver's files come first; ``amdsmi`` is asked only what it is and whether it works here. For
NVIDIA it is NVML. A host without a usable GPU gets an explicit record that says so.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recorder.telemetry.absent import AbsentProvider
from recorder.telemetry.amdgpu_sysfs import AmdgpuSysfsProvider, amd_devices
from recorder.telemetry.host import HostProvider
from recorder.telemetry.nvml import NvmlProvider, load_nvml
from recorder.telemetry.process import ProcessProvider
from recorder.telemetry.provider import Provider
from recorder.telemetry.reader import FileReader, Reader
from recorder.telemetry.sample import DeviceIdentity, ProbeReport

NvmlLoader = Callable[[], tuple[Any, str | None]]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The providers that will be read, and the probe report of every candidate."""

    providers: tuple[Provider, ...]
    reports: tuple[ProbeReport, ...]

    def devices(self) -> tuple[DeviceIdentity, ...]:
        """Return the identity of every device that is read."""
        return tuple(device for provider in self.providers for device in provider.identity())

    def close(self) -> None:
        """Close every provider."""
        for provider in self.providers:
            provider.close()


def select_providers(
    pid: int | None = None,
    *,
    new_reader: Callable[[], Reader] = FileReader,
    load_nvml: NvmlLoader = load_nvml,
    probe_amdsmi: Callable[[], ProbeReport] | None = None,
) -> Selection:
    """Probe this host and choose its providers: host, the engine's process tree, GPUs. Never raises."""
    candidates: list[Provider] = [HostProvider(new_reader())]
    if pid is not None:
        candidates.append(ProcessProvider(pid, new_reader()))
    providers: list[Provider] = []
    reports: list[ProbeReport] = []
    for candidate in candidates:
        report = candidate.probe()
        reports.append(report)
        if report.state == "absent":
            candidate.close()
        else:
            providers.append(candidate)
    gpus, gpu_reports = select_gpus(
        new_reader=new_reader, load_nvml=load_nvml, probe_amdsmi=probe_amdsmi or _amdsmi_report_once
    )
    return Selection(providers=(*providers, *gpus), reports=(*reports, *gpu_reports))


def select_gpus(
    *, new_reader: Callable[[], Reader], load_nvml: NvmlLoader, probe_amdsmi: Callable[[], ProbeReport]
) -> tuple[tuple[Provider, ...], tuple[ProbeReport, ...]]:
    """Return a provider for each usable GPU, or the explicit absence, and all probe reports."""
    providers: list[Provider] = []
    reports: list[ProbeReport] = []
    refused: dict[str, str] = {}
    scan = new_reader()
    devices = amd_devices(scan)
    scan.close()
    if not devices:
        refused["amdgpu_sysfs"] = "no card of vendor 0x1002 below /sys/class/drm"
    candidates: list[Provider] = [AmdgpuSysfsProvider(device, new_reader()) for device in devices]
    nvml, reason = load_nvml()
    if nvml is None:
        refused["nvml"] = reason or "not available"
    else:
        candidates.extend(NvmlProvider(nvml, index) for index in range(_device_count(nvml, refused)))
    for candidate in candidates:
        report = candidate.probe()
        reports.append(report)
        if report.state == "absent":
            refused[candidate.name] = report.reason or "absent"
            candidate.close()
        else:
            providers.append(candidate)
    amdsmi = probe_amdsmi()
    reports.append(amdsmi)
    if amdsmi.state == "absent":
        refused["amdsmi"] = amdsmi.reason or "absent"
    if not providers:
        absent = AbsentProvider("gpu", "no GPU telemetry on this host", refused)
        providers.append(absent)
        reports.append(absent.probe())
    return tuple(providers), tuple(reports)


def amdsmi_report() -> ProbeReport:
    """Say whether AMD's library works here. Never raises, never prints.

    On a host without ROCm, its import prints two lines and raises KeyError. Its values are not read: the
    driver's files give the same ones without its sentinels, and on more devices.
    """
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            amdsmi = importlib.import_module("amdsmi")
            amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
            try:
                count = len(amdsmi.amdsmi_get_processor_handles())
            finally:
                amdsmi.amdsmi_shut_down()
        except Exception as error:  # noqa: BLE001 (KeyError, AttributeError and its own errors are all reasons)
            said = " ".join(output.getvalue().split())
            reason = f"{type(error).__name__}: {error}" + (f" ({said[:200]})" if said else "")
            return ProbeReport(provider="amdsmi", state="absent", reason=reason)
    if count == 0:
        return ProbeReport(provider="amdsmi", state="absent", reason="the library works and finds no device")
    reason = f"the library finds {count} devices; their values are read from the driver's files"
    return ProbeReport(provider="amdsmi", state="partial", reason=reason)


# What the library says does not change while this process runs, and a failing import costs a tenth of a second.
_amdsmi_report_once = functools.cache(amdsmi_report)


def _device_count(nvml: Any, refused: dict[str, str]) -> int:  # noqa: ANN401 (the module has no types)
    try:
        count = int(nvml.nvmlDeviceGetCount())
    except Exception as error:  # noqa: BLE001 (whatever a driver library does must stay a reason)
        refused["nvml"] = f"{type(error).__name__}: {error}"
        return 0
    if count == 0:
        refused["nvml"] = "the driver works and finds no device"
    return count
