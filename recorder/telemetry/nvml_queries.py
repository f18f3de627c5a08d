"""What NVML is asked for one GPU: each quantity with its unit, its call and how often.

Quantities that share a call (utilisation, field values) share its answer within a tick. Only what changes within a
phase is asked at every tick: clock, power, load, event bits. Memory, temperature and states are asked once a second. On
an H200 most calls take 0.04 to 0.1 ms of a core, but the margin of temperature and three of the event counters 1 ms
each: these are asked every 5 s and when sampling ends, since a counter forgets nothing between two reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from recorder.telemetry.sample import Domain, Kind

NOT_SUPPORTED: Final = frozenset({3, 13, 18})
"""NotSupported, FunctionNotFound, LibRmVersionMismatch."""
_AVERAGE_WINDOW_US: Final = 1_000_000
_UPDATE_US: Final = 100_000
"""How often power and energy change on an H200; older notes say the same of other boards."""
_SLOW_TICKS: Final = 4
_RARE_TICKS: Final = 20
_VALUE_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of a field's value by the type that it says it has."""

Nvml = Any  # the module has no types


class Query(NamedTuple):
    """One quantity. ``call`` is a method of ``Tick``, or the name of a field id."""

    name: str
    unit: str
    kind: Kind
    domain: Domain
    call: Callable[[Tick], int] | str
    source: str
    scale: int = 1
    window_us: int | None = None
    update_us: int | None = None
    every: int = 1


class Tick:
    """The answers of one tick: what several quantities share is asked once."""

    def __init__(self, nvml: Nvml, handle: Any, field_ids: tuple[int, ...] = ()) -> None:  # noqa: ANN401
        self.nvml = nvml
        self.handle = handle
        self._field_ids = field_ids
        self._kept: dict[str, Any] = {}

    def _once(self, name: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401 (whatever the library gives)
        if name not in self._kept:
            try:
                self._kept[name] = call()
            except Exception as error:  # noqa: BLE001 (raised again for each who asks)
                self._kept[name] = error
        value = self._kept[name]
        if isinstance(value, Exception):
            raise value
        return value

    def utilization(self) -> Any:  # noqa: ANN401 (a C structure)
        """Return the load of processors and memory in percent."""
        return self._once("utilization", lambda: self.nvml.nvmlDeviceGetUtilizationRates(self.handle))

    def field(self, field_id: int) -> int:
        """Return one value of a single call for all fields. Raises NVMLError with the field's own code."""
        ids = list(self._field_ids) or [field_id]
        values = self._once("fields", lambda: self.nvml.nvmlDeviceGetFieldValues(self.handle, ids))
        value = values[ids.index(field_id)]
        if value.nvmlReturn != 0:
            raise self.nvml.NVMLError(value.nvmlReturn)
        number = getattr(value.value, _VALUE_MEMBERS[getattr(value, "valueType", 1)])
        return int(number) if math.isfinite(number) else -1

    def temperature(self) -> int:
        """Return the temperature in degrees C, through the older call where the newer is not there."""
        nvml = self.nvml
        try:
            return int(nvml.nvmlDeviceGetTemperatureV(self.handle, nvml.NVML_TEMPERATURE_GPU))
        except (AttributeError, nvml.NVMLError):
            return int(nvml.nvmlDeviceGetTemperature(self.handle, nvml.NVML_TEMPERATURE_GPU))

    def event_reasons(self) -> int:
        """Return the bits that say why clocks are held, through the older name where the newer is not there."""
        try:
            return int(self.nvml.nvmlDeviceGetCurrentClocksEventReasons(self.handle))
        except (AttributeError, self.nvml.NVMLError) as error:
            if getattr(error, "value", None) not in {None, *NOT_SUPPORTED}:
                raise
            return int(self.nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle))

    def processes(self) -> frozenset[int]:
        """Return the processes with a context on the device, compute and graphics."""
        nvml, found = self.nvml, set()
        for call in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
            found |= {int(process.pid) for process in call(self.handle)}
        return frozenset(found)


def _counter(name: str, field: str, every: int = _SLOW_TICKS) -> Query:
    call = f"NVML_FI_DEV_{field}"
    return Query(name, "ns", "counter", "gfx", call, call, every=every)


QUERIES: Final = (
    Query(
        "gfx_clock_hz",
        "hz",
        "gauge",
        "gfx",
        lambda t: t.nvml.nvmlDeviceGetClockInfo(t.handle, t.nvml.NVML_CLOCK_SM),
        "nvmlDeviceGetClockInfo(SM)",
        1_000_000,
    ),
    Query(
        "mem_clock_hz",
        "hz",
        "gauge",
        "gfx",
        lambda t: t.nvml.nvmlDeviceGetClockInfo(t.handle, t.nvml.NVML_CLOCK_MEM),
        "nvmlDeviceGetClockInfo(MEM)",
        1_000_000,
        every=_SLOW_TICKS,
    ),
    Query(
        "board_power_uw",
        "uw",
        "gauge",
        "board",
        lambda t: t.nvml.nvmlDeviceGetPowerUsage(t.handle),
        "nvmlDeviceGetPowerUsage",
        1000,
        _AVERAGE_WINDOW_US,
        _UPDATE_US,
        every=_SLOW_TICKS,
    ),
    Query(
        "board_power_instant_uw",
        "uw",
        "gauge",
        "board",
        "NVML_FI_DEV_POWER_INSTANT",
        "NVML_FI_DEV_POWER_INSTANT",
        1000,
        None,
        _UPDATE_US,
    ),
    Query(
        "board_power_average_uw",
        "uw",
        "gauge",
        "board",
        "NVML_FI_DEV_POWER_AVERAGE",
        "NVML_FI_DEV_POWER_AVERAGE",
        1000,
        _AVERAGE_WINDOW_US,
        _UPDATE_US,
        every=_SLOW_TICKS,
    ),
    Query(
        "board_energy_uj",
        "uj",
        "counter",
        "board",
        lambda t: t.nvml.nvmlDeviceGetTotalEnergyConsumption(t.handle),
        "nvmlDeviceGetTotalEnergyConsumption",
        1000,
        None,
        _UPDATE_US,
    ),
    Query(
        "temp_gpu_mc",
        "mc",
        "gauge",
        "gfx",
        Tick.temperature,
        "nvmlDeviceGetTemperatureV",
        1000,
        every=_SLOW_TICKS,
    ),
    Query(
        "temp_margin_mc",
        "mc",
        "gauge",
        "gfx",
        lambda t: t.nvml.nvmlDeviceGetMarginTemperature(t.handle),
        "nvmlDeviceGetMarginTemperature",
        1000,
        every=_RARE_TICKS,
    ),
    Query(
        "gfx_busy_ppm",
        "ppm",
        "gauge",
        "gfx",
        lambda t: t.utilization().gpu,
        "nvmlDeviceGetUtilizationRates.gpu",
        10_000,
    ),
    Query(
        "mem_busy_ppm",
        "ppm",
        "gauge",
        "gfx",
        lambda t: t.utilization().memory,
        "nvmlDeviceGetUtilizationRates.memory",
        10_000,
    ),
    Query(
        "vram_used_bytes",
        "bytes",
        "gauge",
        "gfx",
        lambda t: t.nvml.nvmlDeviceGetMemoryInfo(t.handle).used,
        "nvmlDeviceGetMemoryInfo",
        every=_SLOW_TICKS,
    ),
    Query("clock_event_bits", "code", "state", "gfx", Tick.event_reasons, "nvmlDeviceGetCurrentClocksEventReasons"),
    Query(
        "performance_state_code",
        "code",
        "state",
        "gfx",
        lambda t: t.nvml.nvmlDeviceGetPerformanceState(t.handle),
        "nvmlDeviceGetPerformanceState",
        every=_SLOW_TICKS,
    ),
    Query(
        "power_limit_uw",
        "uw",
        "gauge",
        "board",
        lambda t: t.nvml.nvmlDeviceGetEnforcedPowerLimit(t.handle),
        "nvmlDeviceGetEnforcedPowerLimit",
        1000,
        every=_RARE_TICKS,
    ),
    _counter("event_power_cap_ns", "PERF_POLICY_POWER"),
    _counter("event_thermal_policy_ns", "PERF_POLICY_THERMAL", _RARE_TICKS),
    _counter("event_sw_thermal_ns", "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN"),
    _counter("event_hw_thermal_ns", "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN", _RARE_TICKS),
    _counter("event_power_brake_ns", "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN", _RARE_TICKS),
)


def foreign_processes(own: Callable[[], frozenset[int]]) -> Query:
    """Return the query for processes of others; ids are those of this process's own namespace."""
    return Query(
        "gpu_foreign_process_count",
        "count",
        "gauge",
        "gfx",
        lambda t: len(t.processes() - own()),
        "nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses",
        every=_SLOW_TICKS,
    )
