"""NVIDIA GPUs through NVML.

The library is imported inside ``load_nvml`` only, with its output contained: a host without a driver gets
a reason, not a traceback. A device is known by its PCI address; NVML's index is not CUDA's.
``nvmlDeviceGetPowerUsage`` is an average over about 1 s on Ampere (GA100 aside) and newer, and the
instantaneous and the averaged power are asked for by field id as well. On an H200, power and energy
change every 100 ms, and a read of the energy counter takes 3.2 to 4.6 ms: it is read at the edges of phases
and every 5 s between them, which is often enough for a counter.
Event reasons come as bits (now) and as counters of ns, whose differences miss nothing between two samples.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from recorder.telemetry.nvml_queries import NOT_SUPPORTED, QUERIES, Nvml, Query, Tick, foreign_processes
from recorder.telemetry.provider import DeviceLostError, NoExtras
from recorder.telemetry.sample import DeviceIdentity, FieldSpec, ProbeReport, Reading, Status

_NO_PERMISSION: Final = 4
_GPU_IS_LOST: Final = 15
_NOT_AVAILABLE: Final = frozenset({0xFFFF, 0xFFFF_FFFF, 2**64 - 1})
_ENERGY_SPACING_NS: Final = 5_000_000_000
_USERS: Final = "gpu_foreign_process_count"

OwnProcesses = Callable[[], frozenset[int]]
"""Gives the ids of the engine's own processes."""


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


class NvmlProvider(NoExtras):
    """Readings of one NVIDIA GPU, by NVML index (its identity is the PCI address).

    ``own_processes`` tells the engine's processes from others; ``period_ns`` is the sampling period.
    """

    name = "nvml"

    def __init__(
        self, nvml: Nvml, index: int, *, own_processes: OwnProcesses | None = None, period_ns: int = 250_000_000
    ) -> None:
        self._nvml = nvml
        self._index = index
        self._own_processes = own_processes
        self._energy_ticks = max(1, -(-_ENERGY_SPACING_NS // period_ns))
        self._handle: Any = None
        self._bdf = f"index-{index}"
        self._queries: tuple[tuple[Query, FieldSpec], ...] = ()

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
        tick = Tick(nvml, self._handle)
        for query in (*QUERIES, *self._users(refused)):
            spec = FieldSpec(
                name=query.name,
                unit=query.unit,
                kind=query.kind,
                domain=query.domain,
                source=query.source,
                instance=self._bdf,
                window_us=query.window_us,
                update_us=query.update_us,
                resolution=query.scale if query.scale > 1 else None,
            )
            try:
                # Fields are asked one by one here: an old driver may refuse a call that holds one it does not know.
                value, _, why = self._ask(query, Tick(nvml, self._handle) if isinstance(query.call, str) else tick)
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
        due = [
            (query, spec)
            for query, spec in self._queries
            if tick % (self._energy_ticks if query.unit == "uj" else query.every) == 0
        ]
        fields = tuple(getattr(self._nvml, query.call) for query, _ in due if isinstance(query.call, str))
        answers = Tick(self._nvml, self._handle, fields)
        readings = []
        for query, spec in due:
            value, status, _ = self._ask(query, answers)
            readings.append(Reading(field=spec, raw=value, status=status))
        return readings

    def read_edge(self) -> Iterable[Reading]:
        """Return the energy counter. Raises DeviceLostError as ``read``."""
        answers = Tick(self._nvml, self._handle)
        readings = []
        for query, spec in self._queries:
            if query.unit == "uj":
                value, status, _ = self._ask(query, answers)
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

    def _users(self, refused: dict[str, str]) -> tuple[Query, ...]:
        """Return the query for processes of others, where the engine's own are known."""
        own = self._own_processes
        if own is None:
            reason = "the engine's own processes are not known, so others cannot be told from it"
            refused[f"{_USERS}@{self._bdf}"] = reason
            return ()
        return (foreign_processes(own),)

    def _ask(self, query: Query, tick: Tick) -> tuple[int | None, Status, str | None]:
        """Return value, status and the error's text. Raises DeviceLostError."""
        try:
            call = query.call
            value = tick.field(getattr(self._nvml, call)) if isinstance(call, str) else call(tick)
        except Exception as error:
            code = getattr(error, "value", None)
            if code == _GPU_IS_LOST:
                raise DeviceLostError(f"{self._bdf}: {_text(error)}") from error
            if code in NOT_SUPPORTED or isinstance(error, AttributeError):
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
