"""NVIDIA GPUs through NVML.

The library is imported inside ``load_nvml`` only, with its output contained: a host without a driver gets
a reason, not a traceback. A device is known by its PCI address; NVML's index is not CUDA's.
``nvmlDeviceGetPowerUsage`` is an average over about 1 s on Ampere (GA100 aside) and newer, and the
instantaneous and the averaged power are asked for by field id as well. The energy counter costs
milliseconds a read and is read about once a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple

from recorder.telemetry.provider import DeviceLostError
from recorder.telemetry.sample import DeviceIdentity, Domain, FieldSpec, Kind, ProbeReport, Reading, Status

_NOT_SUPPORTED: Final = frozenset({3, 13, 18})
"""NotSupported, FunctionNotFound, LibRmVersionMismatch."""
_NO_PERMISSION: Final = 4
_GPU_IS_LOST: Final = 15
_NOT_AVAILABLE: Final = frozenset({0xFFFF, 0xFFFF_FFFF, 2**64 - 1})
_SLOW_TICKS: Final = 4
_AVERAGE_WINDOW_US: Final = 1_000_000

Nvml = Any  # the module has no types


class _Query(NamedTuple):
    name: str
    unit: str
    kind: Kind
    domain: Domain
    call: Callable[[Nvml, Any], int]
    source: str
    scale: int = 1
    window_us: int | None = None
    every: int = 1


def _field_value(nvml: Nvml, handle: Any, field_id: int) -> int:  # noqa: ANN401 (opaque handle)
    value = nvml.nvmlDeviceGetFieldValues(handle, [field_id])[0]
    if value.nvmlReturn != 0:
        raise nvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _temperature(nvml: Nvml, handle: Any) -> int:  # noqa: ANN401 (opaque handle)
    try:
        return int(nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU))
    except (AttributeError, nvml.NVMLError):
        return int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))


_QUERIES: Final = (
    _Query(
        "gfx_clock_hz",
        "hz",
        "gauge",
        "gfx",
        lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
        "nvmlDeviceGetClockInfo(SM)",
        1_000_000,
    ),
    _Query(
        "mem_clock_hz",
        "hz",
        "gauge",
        "gfx",
        lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM),
        "nvmlDeviceGetClockInfo(MEM)",
        1_000_000,
    ),
    _Query(
        "board_power_uw",
        "uw",
        "gauge",
        "board",
        lambda n, h: n.nvmlDeviceGetPowerUsage(h),
        "nvmlDeviceGetPowerUsage",
        1000,
        _AVERAGE_WINDOW_US,
    ),
    _Query(
        "board_power_instant_uw",
        "uw",
        "gauge",
        "board",
        lambda n, h: _field_value(n, h, n.NVML_FI_DEV_POWER_INSTANT),
        "NVML_FI_DEV_POWER_INSTANT",
        1000,
    ),
    _Query(
        "board_power_average_uw",
        "uw",
        "gauge",
        "board",
        lambda n, h: _field_value(n, h, n.NVML_FI_DEV_POWER_AVERAGE),
        "NVML_FI_DEV_POWER_AVERAGE",
        1000,
        _AVERAGE_WINDOW_US,
    ),
    _Query(
        "board_energy_uj",
        "uj",
        "counter",
        "board",
        lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h),
        "nvmlDeviceGetTotalEnergyConsumption",
        1000,
        None,
        _SLOW_TICKS,
    ),
    _Query("temp_gpu_mc", "mc", "gauge", "gfx", _temperature, "nvmlDeviceGetTemperatureV", 1000),
    _Query(
        "gfx_busy_ppm",
        "ppm",
        "gauge",
        "gfx",
        lambda n, h: n.nvmlDeviceGetUtilizationRates(h).gpu,
        "nvmlDeviceGetUtilizationRates.gpu",
        10_000,
    ),
    _Query(
        "mem_busy_ppm",
        "ppm",
        "gauge",
        "gfx",
        lambda n, h: n.nvmlDeviceGetUtilizationRates(h).memory,
        "nvmlDeviceGetUtilizationRates.memory",
        10_000,
    ),
    _Query(
        "vram_used_bytes",
        "bytes",
        "gauge",
        "gfx",
        lambda n, h: n.nvmlDeviceGetMemoryInfo(h).used,
        "nvmlDeviceGetMemoryInfo",
    ),
    _Query(
        "clock_event_bits",
        "code",
        "state",
        "gfx",
        lambda n, h: n.nvmlDeviceGetCurrentClocksEventReasons(h),
        "nvmlDeviceGetCurrentClocksEventReasons",
    ),
    _Query(
        "performance_state_code",
        "code",
        "state",
        "gfx",
        lambda n, h: n.nvmlDeviceGetPerformanceState(h),
        "nvmlDeviceGetPerformanceState",
    ),
)


def load_nvml() -> tuple[Nvml | None, str | None]:
    """Import and start NVML. Returns the module, or None and the reason. Never raises, never prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
        except Exception as error:  # noqa: BLE001 (whatever a driver library does must stay a reason)
            return None, f"{type(error).__name__}: {error}"
    return nvml, None


class NvmlProvider:
    """Readings of one NVIDIA GPU, by NVML index (its identity is the PCI address)."""

    name = "nvml"

    def __init__(self, nvml: Nvml, index: int) -> None:
        self._nvml = nvml
        self._index = index
        self._handle: Any = None
        self._bdf = f"index-{index}"
        self._queries: tuple[tuple[_Query, FieldSpec], ...] = ()

    def probe(self) -> ProbeReport:
        """Ask every query once."""
        nvml = self._nvml
        try:
            self._handle = nvml.nvmlDeviceGetHandleByIndex(self._index)
            self._bdf = _pci_address(nvml.nvmlDeviceGetPciInfo(self._handle))
        except Exception as error:  # noqa: BLE001 (see load_nvml)
            return ProbeReport(provider=self.name, state="absent", reason=f"device {self._index}: {_text(error)}")
        usable = []
        refused: dict[str, str] = {}
        for query in _QUERIES:
            spec = FieldSpec(
                name=query.name,
                unit=query.unit,
                kind=query.kind,
                domain=query.domain,
                source=query.source,
                instance=self._bdf,
                window_us=query.window_us,
                resolution=query.scale if query.scale > 1 else None,
            )
            try:
                value, _, why = self._ask(query)
            except DeviceLostError as error:
                return ProbeReport(provider=self.name, state="absent", reason=str(error))
            if value is None:
                refused[spec.key] = why or "no value"
            else:
                usable.append((query, spec))
        self._queries = tuple(usable)
        state: Literal["present", "partial", "absent"] = "partial" if refused else "present"
        if not usable:
            state = "absent"
        reason = f"{self._bdf}: {len(refused)} queries have no answer" if refused else None
        return ProbeReport(provider=self.name, state=state, reason=reason, refused=refused)

    def describe(self) -> tuple[FieldSpec, ...]:
        """Return the fields that answered the probe."""
        return tuple(spec for _, spec in self._queries)

    def read(self, tick: int) -> Iterable[Reading]:
        """Return what is due. Raises DeviceLostError when the GPU has fallen off the bus."""
        readings = []
        for query, spec in self._queries:
            if tick % query.every:
                continue
            value, status, _ = self._ask(query)
            readings.append(Reading(field=spec, raw=value, status=status))
        return readings

    def close(self) -> None:
        """Do nothing: NVML counts its users, and the process ends with the campaign."""

    def identity(self) -> tuple[DeviceIdentity, ...]:
        """Return the device as the driver describes it. Its UUID is hashed."""
        nvml, handle = self._nvml, self._handle
        if handle is None:
            return ()
        uuid = self._fact(lambda: nvml.nvmlDeviceGetUUID(handle))
        facts: dict[str, str | int | None] = {
            "name": self._fact(lambda: nvml.nvmlDeviceGetName(handle)),
            "uuid_sha256": hashlib.sha256(str(uuid).encode()).hexdigest() if uuid is not None else None,
            "driver_version": self._fact(nvml.nvmlSystemGetDriverVersion),
            "vbios_version": self._fact(lambda: nvml.nvmlDeviceGetVbiosVersion(handle)),
            "vram_total_bytes": self._fact(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
            "power_limit_mw": self._fact(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)),
        }
        return (DeviceIdentity(kind="nvidia", identifier=self._bdf, facts=facts),)

    def _ask(self, query: _Query) -> tuple[int | None, Status, str | None]:
        """Return value, status and the error's text. Raises DeviceLostError."""
        try:
            value = query.call(self._nvml, self._handle)
        except Exception as error:
            code = getattr(error, "value", None)
            if code == _GPU_IS_LOST:
                raise DeviceLostError(f"{self._bdf}: {_text(error)}") from error
            if code in _NOT_SUPPORTED or isinstance(error, AttributeError):
                return None, "unsupported", _text(error)
            return None, "denied" if code == _NO_PERMISSION else "error", _text(error)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0 or value in _NOT_AVAILABLE:
            return None, "unsupported", f"answered {value!r}, which stands for no value"
        return value * query.scale, "ok", None

    @staticmethod
    def _fact(call: Callable[[], Any]) -> str | int | None:
        try:
            value = call()
        except Exception:  # noqa: BLE001 (a fact that cannot be had is absent)
            return None
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        return value if isinstance(value, str | int) else None


def _text(error: Exception) -> str:
    """Return an error with its NVML code at the end: ``NVMLError_NotSupported: Not Supported [3]``."""
    code = getattr(error, "value", None)
    text = f"{type(error).__name__}: {error}"
    return text if code is None else f"{text} [{code}]"


def _pci_address(info: Any) -> str:  # noqa: ANN401 (a C structure)
    """Return ``0000:c5:00.0`` from NVML's ``00000000:C5:00.0``."""
    text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"
