"""Chooses the providers of a load, and says why each other candidate was refused.

For AMD the driver's files come first; ``amdsmi`` adds what they lack (energy, violations) and serves a device whose
files cannot be read. For NVIDIA it is NVML. A host without a usable GPU gets an explicit record that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recorder.telemetry.absent import AbsentProvider
from recorder.telemetry.amdgpu_sysfs import AmdgpuSysfsProvider, amd_devices
from recorder.telemetry.amdsmi_lib import AmdSmiProvider, amdsmi_handles, load_amdsmi_once
from recorder.telemetry.host import HostProvider
from recorder.telemetry.nvml import NvmlProvider, load_nvml
from recorder.telemetry.process import ProcessProvider
from recorder.telemetry.provider import Provider
from recorder.telemetry.reader import FileReader, Reader
from recorder.telemetry.sample import DeviceIdentity, ProbeReport

Loader = Callable[[], tuple[Any, str | None]]
"""Gives a library that is started, or None and the reason."""
PERIOD_NS = 250_000_000


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
    period_ns: int = PERIOD_NS,
    new_reader: Callable[[], Reader] = FileReader,
    load_nvml: Loader = load_nvml,
    load_amdsmi: Loader = load_amdsmi_once,
) -> Selection:
    """Probe this host and choose its providers: host, the engine's process tree, GPUs. Never raises."""
    process = None if pid is None else ProcessProvider(pid, new_reader())
    own = None if process is None else process.pids
    chosen = _Chosen()
    chosen.offer(HostProvider(new_reader()))
    if process is not None:
        chosen.offer(process)
    is_host = len(chosen.providers)
    scan = new_reader()
    devices = amd_devices(scan)
    scan.close()
    if not devices:
        chosen.refused["amdgpu_sysfs"] = "no card of vendor 0x1002 below /sys/class/drm"
    for device in devices:
        chosen.offer(AmdgpuSysfsProvider(device, new_reader(), own))
    served = frozenset(spec.instance for one in chosen.providers[is_host:] for spec in one.describe())
    amdsmi, handles = _library(load_amdsmi, "amdsmi", amdsmi_handles, chosen)
    for handle in handles:
        chosen.offer(AmdSmiProvider(amdsmi, handle, served))
    nvml, indexes = _library(load_nvml, "nvml", _nvml_indexes, chosen)
    for index in indexes:
        chosen.offer(NvmlProvider(nvml, index, own_processes=own, period_ns=period_ns))
    if len(chosen.providers) == is_host:
        absent = AbsentProvider("gpu", "no GPU telemetry on this host", chosen.refused)
        chosen.providers.append(absent)
        chosen.reports.append(absent.probe())
    return Selection(providers=tuple(chosen.providers), reports=tuple(chosen.reports))


class _Chosen:
    """Candidates that were taken, the probe report of each, and why others were refused."""

    def __init__(self) -> None:
        self.providers: list[Provider] = []
        self.reports: list[ProbeReport] = []
        self.refused: dict[str, str] = {}

    def offer(self, candidate: Provider) -> None:
        report = candidate.probe()
        self.reports.append(report)
        if report.state == "absent":
            if candidate.name not in {"host", "process"}:
                self.refused[candidate.name] = report.reason or "absent"
            candidate.close()
        else:
            self.providers.append(candidate)


def _library(
    load: Loader, name: str, find: Callable[[Any], tuple[tuple[Any, ...], str | None]], chosen: _Chosen
) -> tuple[Any, tuple[Any, ...]]:
    """Return a library and its devices; none, with the reason on record, where either is not there."""
    library, reason = load()
    devices: tuple[Any, ...] = ()
    if library is not None:
        devices, reason = find(library)
    if not devices:
        chosen.refused[name] = reason or "not available"
        chosen.reports.append(ProbeReport(provider=name, state="absent", reason=reason))
    return library, devices


def _nvml_indexes(nvml: Any) -> tuple[tuple[int, ...], str | None]:  # noqa: ANN401 (the module has no types)
    try:
        count = int(nvml.nvmlDeviceGetCount())
    except Exception as error:  # noqa: BLE001 (whatever a driver library does must stay a reason)
        return (), f"{type(error).__name__}: {error}"
    return tuple(range(count)), None if count else "the driver works and finds no device"
