"""AMD GPUs through the library amdsmi; second choice, because the driver's own files answer on more devices.

The library is imported inside ``load_amdsmi`` only. Without ROCm that import prints two lines and raises KeyError; with
another version of the library it raises AttributeError. Both become a reason, and nothing is printed. "N/A" and the
numbers whose bits are all set (0xFFFF, 0xFFFFFFFF, 2^64 - 1) stand for no value; not every call turns the second into
the first. Throttle reasons are not read here: the library folds their bits into a truth value. A device is known by
its PCI address; the library's index is not HIP's.

Where the driver's files already serve a device, only what they lack is read: energy and the violation counters.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, Final, Literal, NamedTuple

from recorder.telemetry.provider import NoExtras
from recorder.telemetry.sample import DeviceIdentity, Domain, FieldSpec, Kind, ProbeReport, Reading, Status

SENTINELS: Final = frozenset({0xFFFF, 0xFFFF_FFFF, 2**64 - 1})
_NOT_SUPPORTED: Final = frozenset({2, 3, 49})
"""NOT_SUPPORTED, NOT_YET_IMPLEMENTED, NO_DATA-like codes: the call will not answer here."""
_NO_PERMISSION: Final = 10
_MAX_INTEGER: Final = 2**63 - 1

AmdSmi = Any  # the module has no types


class _Query(NamedTuple):
    name: str
    unit: str
    scale: int
    kind: Kind
    domain: Domain
    source: str
    call: Callable[[AmdSmi, Any], object]
    is_extra: bool = False
    every: int = 1


def is_value(value: object) -> bool:
    """Say whether an answer is a number that stands for itself."""
    return isinstance(value, int) and not isinstance(value, bool) and value not in SENTINELS and value >= 0


def _first(answer: Mapping[str, object], *keys: str) -> object:
    """Return the first of several members that is a value; devices differ in which one they fill."""
    for key in keys:
        if is_value(answer.get(key)):
            return answer[key]
    return answer.get(keys[-1])


def _energy_uj(amdsmi: AmdSmi, handle: Any) -> object:  # noqa: ANN401 (opaque handle)
    answer = amdsmi.amdsmi_get_energy_count(handle)
    ticks, resolution = answer["energy_accumulator"], answer["counter_resolution"]
    if not is_value(ticks) or not math.isfinite(resolution) or resolution <= 0:
        return "N/A"
    return int(ticks * Fraction(resolution))


def _violation(member: str) -> Callable[[AmdSmi, Any], object]:
    return lambda a, h: a.amdsmi_get_violation_status(h)[member]


def _temperature(kind: str) -> Callable[[AmdSmi, Any], object]:
    return lambda a, h: a.amdsmi_get_temp_metric(
        h, getattr(a.AmdSmiTemperatureType, kind), a.AmdSmiTemperatureMetric.CURRENT
    )


def _used(kind: str) -> Callable[[AmdSmi, Any], object]:
    return lambda a, h: a.amdsmi_get_gpu_memory_usage(h, getattr(a.AmdSmiMemoryType, kind))


def _clock(kind: str) -> Callable[[AmdSmi, Any], object]:
    return lambda a, h: a.amdsmi_get_clock_info(h, getattr(a.AmdSmiClkType, kind))["clk"]


def _activity(member: str) -> Callable[[AmdSmi, Any], object]:
    return lambda a, h: a.amdsmi_get_gpu_activity(h)[member]


def _power_w(amdsmi: AmdSmi, handle: Any) -> object:  # noqa: ANN401 (opaque handle)
    answer = amdsmi.amdsmi_get_power_info(handle)
    return _first(answer, "socket_power", "current_socket_power", "average_socket_power")


_QUERIES: Final = (
    _Query("gfx_clock_hz", "hz", 1_000_000, "gauge", "gfx", "amdsmi_get_clock_info(GFX).clk", _clock("GFX")),
    _Query("mem_clock_hz", "hz", 1_000_000, "gauge", "gfx", "amdsmi_get_clock_info(MEM).clk", _clock("MEM")),
    _Query("socket_power_uw", "uw", 1_000_000, "gauge", "socket", "amdsmi_get_power_info", _power_w),
    _Query("temp_edge_mc", "mc", 1000, "gauge", "gfx", "amdsmi_get_temp_metric(EDGE)", _temperature("EDGE")),
    _Query("temp_junction_mc", "mc", 1000, "gauge", "gfx", "amdsmi_get_temp_metric(HOTSPOT)", _temperature("HOTSPOT")),
    _Query("temp_mem_mc", "mc", 1000, "gauge", "gfx", "amdsmi_get_temp_metric(VRAM)", _temperature("VRAM")),
    _Query("gfx_busy_ppm", "ppm", 10_000, "gauge", "gfx", "amdsmi_get_gpu_activity", _activity("gfx_activity")),
    _Query("mem_busy_ppm", "ppm", 10_000, "gauge", "gfx", "amdsmi_get_gpu_activity", _activity("umc_activity")),
    _Query("vram_used_bytes", "bytes", 1, "gauge", "gfx", "amdsmi_get_gpu_memory_usage(VRAM)", _used("VRAM")),
    _Query("gtt_used_bytes", "bytes", 1, "gauge", "gfx", "amdsmi_get_gpu_memory_usage(GTT)", _used("GTT")),
    _Query("socket_energy_uj", "uj", 1, "counter", "socket", "amdsmi_get_energy_count", _energy_uj, is_extra=True),
    *(
        _Query(
            f"violation_{name}_raw",
            "raw",
            1,
            "counter",
            "gfx",
            f"amdsmi_get_violation_status.acc_{name}",
            _violation(f"acc_{name}"),
            is_extra=True,
            every=4,
        )
        for name in ("prochot_thrm", "ppt_pwr", "socket_thrm", "vr_thrm", "hbm_thrm")
    ),
)


def load_amdsmi() -> tuple[AmdSmi | None, str | None]:
    """Import and start the library. Returns the module, or None and the reason. Never raises, never prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            amdsmi = importlib.import_module("amdsmi")
            amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
        except Exception as error:  # noqa: BLE001 (KeyError, AttributeError and its own errors are all reasons)
            said = " ".join(output.getvalue().split())
            return None, _text(error) + (f" ({said[:200]})" if said else "")
    return amdsmi, None


load_amdsmi_once = functools.cache(load_amdsmi)
"""A failing import costs a tenth of a second, and what it says does not change while this process runs."""


def amdsmi_handles(amdsmi: AmdSmi) -> tuple[tuple[Any, ...], str | None]:
    """Return the handles of all GPUs, or none and the reason. An error and an empty list are the same absence."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            handles = tuple(amdsmi.amdsmi_get_processor_handles())
        except Exception as error:  # noqa: BLE001 (whatever a driver library does must stay a reason)
            return (), _text(error)
    return handles, None if handles else "the library works and finds no device"


class AmdSmiProvider(NoExtras):
    """Readings of one AMD GPU. ``served`` holds the PCI addresses that another provider reads already."""

    name = "amdsmi"

    def __init__(self, amdsmi: AmdSmi, handle: Any, served: frozenset[str] = frozenset()) -> None:  # noqa: ANN401
        self._amdsmi = amdsmi
        self._handle = handle
        self._served = served
        self._bdf = ""
        self._queries: tuple[tuple[_Query, FieldSpec], ...] = ()

    def probe(self) -> ProbeReport:
        """Ask every query once."""
        try:
            self._bdf = str(self._amdsmi.amdsmi_get_gpu_device_bdf(self._handle)).lower()
        except Exception as error:  # noqa: BLE001 (see load_amdsmi)
            return ProbeReport(provider=self.name, state="absent", reason=f"no PCI address: {_text(error)}")
        only_extras = self._bdf in self._served
        usable = []
        refused: dict[str, str] = {}
        for query in _QUERIES:
            if only_extras and not query.is_extra:
                continue
            spec = FieldSpec(
                name=query.name,
                unit=query.unit,
                kind=query.kind,
                domain=query.domain,
                source=query.source,
                instance=self._bdf,
                resolution=query.scale if query.scale > 1 else None,
            )
            value, _, why = self._ask(query)
            if value is None:
                refused[spec.key] = why or "no value"
            else:
                usable.append((query, spec))
        self._queries = tuple(usable)
        if not usable:
            reason = f"{self._bdf}: none of its calls has an answer here"
            return ProbeReport(provider=self.name, state="absent", reason=reason, refused=refused)
        state: Literal["present", "partial"] = "partial" if refused or only_extras else "present"
        beside = "; the rest is read from the driver's files" if only_extras else ""
        missing = f"{self._bdf}: {len(refused)} calls have no answer{beside}" if state == "partial" else None
        return ProbeReport(provider=self.name, state=state, reason=missing, refused=refused)

    def describe(self) -> tuple[FieldSpec, ...]:
        """Return the fields that answered the probe."""
        return tuple(spec for _, spec in self._queries)

    def read(self, tick: int) -> Iterable[Reading]:
        """Return what is due."""
        return [self._reading(query, spec) for query, spec in self._queries if tick % query.every == 0]

    def read_edge(self) -> Iterable[Reading]:
        """Return the energy counter."""
        return [self._reading(query, spec) for query, spec in self._queries if query.unit == "uj"]

    def close(self) -> None:
        """Do nothing: the library counts its users, and this process ends with the campaign."""

    def identity(self) -> tuple[DeviceIdentity, ...]:
        """Return what the library says about the device; its serial number is left out."""
        if not self._queries:
            return ()
        facts: dict[str, str | int | None] = {}
        for source, call, names in (
            ("asic", self._amdsmi.amdsmi_get_gpu_asic_info, ("market_name", "target_graphics_version")),
            ("driver", self._amdsmi.amdsmi_get_gpu_driver_info, ("driver_name", "driver_version")),
        ):
            try:
                answer = call(self._handle)
            except Exception:  # noqa: BLE001 (a fact that cannot be had is absent)
                facts |= dict.fromkeys(names)
                continue
            facts |= {name: _fact(answer.get(name)) for name in names}
            facts[f"{source}_source"] = "amdsmi"
        try:
            version = self._amdsmi.amdsmi_get_lib_version()
            facts["library_version"] = ".".join(str(version[part]) for part in ("major", "minor", "release"))
        except Exception:  # noqa: BLE001 (see above)
            facts["library_version"] = None
        return (DeviceIdentity(kind="amdsmi", identifier=self._bdf, facts=facts),)

    def _reading(self, query: _Query, spec: FieldSpec) -> Reading:
        value, status, _ = self._ask(query)
        return Reading(field=spec, raw=value, status=status)

    def _ask(self, query: _Query) -> tuple[int | None, Status, str | None]:
        """Return value, status and the error's text. Never raises."""
        try:
            value = query.call(self._amdsmi, self._handle)
        except Exception as error:  # noqa: BLE001 (its errors, and KeyError for a member that is not there)
            code = _code(error)
            if code in _NOT_SUPPORTED or isinstance(error, AttributeError | KeyError):
                return None, "unsupported", _text(error)
            return None, "denied" if code == _NO_PERMISSION else "error", _text(error)
        if not is_value(value) or not isinstance(value, int) or value * query.scale > _MAX_INTEGER:
            return None, "unsupported", f"answered {value!r}, which stands for no value"
        return value * query.scale, "ok", None


def _code(error: Exception) -> int | None:
    get = getattr(error, "get_error_code", None)
    code = get() if callable(get) else None
    return code if isinstance(code, int) else None


def _fact(value: object) -> str | int | None:
    if isinstance(value, str):
        return None if value in {"", "N/A"} else value
    return value if isinstance(value, int) and is_value(value) else None


def _text(error: Exception) -> str:
    code = _code(error)
    text = f"{type(error).__name__}: {error}"
    return " ".join(text.split()) if code is None else f"{' '.join(text.split())} [{code}]"
