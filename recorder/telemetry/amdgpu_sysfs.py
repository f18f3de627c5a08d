"""AMD GPUs through the amdgpu driver's own files; works without ROCm and is readable by everyone.

Files are below ``/sys/class/drm/cardN/device``. A device is known by its PCI address; the numbers of
``cardN`` and ``hwmonN`` change between boots. On an APU, the driver's power is that of the socket, the
CPU included, and weights lie mostly in GTT memory.

``gpu_metrics`` is read once a tick and decoded (see gpu_metrics.py); its fields are named ``smu_...`` where a file of
its own gives the same quantity, so that both stand in the record. Its bytes are kept with the sample. A read costs a
firmware transaction: harmless a few times a second, not at 1 kHz.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from recorder.telemetry.gpu_metrics import RAW_PREFIX, decode, fields_of
from recorder.telemetry.provider import DeviceLostError, IntegerFile, probe_files, read_file, readings_of
from recorder.telemetry.reader import Reader, integer_of, reason_of, table_of, text_of
from recorder.telemetry.sample import DeviceIdentity, Domain, FieldSpec, Kind, ProbeReport, RawRead, Reading

_VENDOR: Final = "0x1002"
_CARD: Final = re.compile(r"/sys/class/drm/card[0-9]+/device/vendor\Z")
_TEMPERATURES: Final = {"edge": "temp_edge_mc", "junction": "temp_junction_mc", "mem": "temp_mem_mc"}
_CLOCKS: Final = {"sclk": "gfx_clock_hz", "mclk": "mem_clock_hz"}
_MEMORY: Final = ("vram", "vis_vram", "gtt")
_KFD_NODES: Final = "/sys/class/kfd/kfd/topology/nodes/*/properties"
_KFD_PROCESSES: Final = "/sys/class/kfd/kfd/proc"
_SLOW_TICKS: Final = 4
_RARE_TICKS: Final = 20

LEVELS: Final = ("auto", "low", "high", "manual", "profile_standard", "profile_min_sclk", "profile_min_mclk", "other")
"""Codes of ``gpu_performance_level_code``, by index."""

MemoryKind = Literal["apu", "discrete", "unknown"]
OwnProcesses = Callable[[], frozenset[int]]
"""Gives the ids of the engine's own processes."""


def amd_devices(reader: Reader) -> tuple[str, ...]:
    """Return the device folders of all AMD cards, for example ``/sys/class/drm/card0/device``."""
    return tuple(
        path.rpartition("/")[0]
        for path in reader.glob("/sys/class/drm/card*/device/vendor")
        if _CARD.match(path) and text_of(reader, path) == _VENDOR
    )


class AmdgpuSysfsProvider:
    """Readings of one AMD GPU."""

    name = "amdgpu_sysfs"

    def __init__(self, device: str, reader: Reader, own_processes: OwnProcesses | None = None) -> None:
        self._device = device
        self._reader = reader
        self._own_processes = own_processes
        self._files: tuple[IntegerFile, ...] = ()
        self._metrics: Mapping[str, FieldSpec] = {}
        self._has_metrics = False
        self._last_metrics: bytes | None = None
        self._level: FieldSpec | None = None
        self._users: tuple[FieldSpec, str] | None = None
        self._bdf = pci_address(reader, device)

    def probe(self) -> ProbeReport:
        """Find out which files this card has."""
        status = text_of(self._reader, f"{self._device}/power/runtime_status")
        if status == "suspended":
            # A read would wake the card or fail, and neither is a measurement.
            return ProbeReport(provider=self.name, state="absent", reason=f"{self._bdf}: the device is suspended")
        self._files, unreadable = probe_files(self._reader, self._candidates())
        refused = dict(unreadable)
        self._metrics = self._probe_metrics(refused)
        self._level = self._probe_level(refused)
        self._users = self._probe_users(refused)
        if not self.describe():
            return ProbeReport(
                provider=self.name, state="absent", reason=f"{self._bdf}: no sensor file can be read", refused=refused
            )
        state: Literal["partial", "present"] = "partial" if refused else "present"
        reason = f"{len(refused)} sensors cannot be read" if refused else None
        return ProbeReport(provider=self.name, state=state, reason=reason, refused=refused)

    def describe(self) -> tuple[FieldSpec, ...]:
        """Return the fields that the probe could read."""
        states = [self._level] if self._level else []
        users = [self._users[0]] if self._users else []
        return (*(file.spec for file in self._files), *self._metrics.values(), *states, *users)

    def read(self, tick: int) -> Iterable[Reading]:
        """Return every field that is due. Raises DeviceLostError when the device's folder is gone."""
        readings = [read_file(self._reader, file) for file in self._files if tick % file.every == 0]
        if self._has_metrics:
            readings.extend(readings_of(self._metrics, self._read_metrics()))
        if readings and all(reading.raw is None for reading in readings):
            try:
                self._reader.read_once(f"{self._device}/vendor")
            except OSError as error:
                raise DeviceLostError(f"{self._bdf}: {reason_of(error)}") from error
        if self._level is not None and tick % _RARE_TICKS == 0:
            readings.append(self._read_level(self._level))
        if self._users is not None and tick % _SLOW_TICKS == 0:
            spec, gpu_id = self._users
            readings.append(Reading(field=spec, raw=self._foreign_processes(gpu_id)))
        return readings

    def read_edge(self) -> Iterable[Reading]:
        """Return no reading: no energy counter of these files has a known unit."""
        return ()

    def raws(self) -> Iterable[RawRead]:
        """Return the bytes of the table that the last ``read`` decoded."""
        data = self._last_metrics
        return () if data is None else (RawRead(f"{RAW_PREFIX}{self._bdf}", data),)

    def close(self) -> None:
        """Close the files."""
        self._reader.close()

    def identity(self) -> tuple[DeviceIdentity, ...]:
        """Return the device as kernel and KFD describe it. Its serial number is hashed."""
        read = {name: text_of(self._reader, f"{self._device}/{name}") for name in ("device", "revision", "unique_id")}
        unique = read["unique_id"]
        facts: dict[str, str | int | None] = {
            "vendor": _VENDOR,
            "device": read["device"],
            "revision": read["revision"],
            "vbios_version": text_of(self._reader, f"{self._device}/vbios_version"),
            "unique_id_sha256": None if unique is None else hashlib.sha256(unique.encode()).hexdigest(),
            "driver_version": text_of(self._reader, "/sys/module/amdgpu/version"),
            "memory": self._memory_kind(),
            "performance_level": text_of(self._reader, f"{self._device}/power_dpm_force_performance_level"),
            "gfx_target": gfx_target_of(self._reader, self._bdf),
            "smu_firmware": text_of(self._reader, f"{self._device}/fw_version/smc_fw_version"),
        }
        for kind in _MEMORY:
            text = text_of(self._reader, f"{self._device}/mem_info_{kind}_total")
            facts[f"{kind}_total_bytes"] = None if text is None else integer_of(text.encode())
        return (DeviceIdentity(kind="amdgpu", identifier=self._bdf, facts=facts),)

    def _memory_kind(self) -> MemoryKind:
        """Tell an APU from a discrete card by the revision of the metrics table."""
        try:
            revision = decode(self._reader.read_once(f"{self._device}/gpu_metrics")).revision
        except OSError:
            return "unknown"
        if revision is None:
            return "unknown"
        return "discrete" if revision[0] == 1 else "apu" if revision[0] in {2, 3} else "unknown"

    def _probe_metrics(self, refused: dict[str, str]) -> Mapping[str, FieldSpec]:
        """Return the fields of the metrics table that have a value now; bytes of an unknown table are still kept."""
        path = f"{self._device}/gpu_metrics"
        key = f"{RAW_PREFIX}{self._bdf}"
        try:
            metrics = decode(self._reader.read_once(path))
        except OSError as error:
            refused[key] = f"{path}: {reason_of(error)}"
            return {}
        self._has_metrics = True
        if metrics.problem is not None or metrics.revision is None:
            refused[key] = f"{path}: {metrics.problem}"
            return {}
        usable = {}
        for name, spec in fields_of(metrics.revision, path, self._bdf).items():
            if metrics.values[name] is None:
                refused[spec.key] = f"{path}: the driver says that it is not supported"
            else:
                usable[name] = spec
        return usable

    def _read_metrics(self) -> Mapping[str, int | None]:
        try:
            self._last_metrics = self._reader.read(f"{self._device}/gpu_metrics")
        except OSError:
            self._last_metrics = None
            return {}
        return decode(self._last_metrics).values

    def _probe_level(self, refused: dict[str, str]) -> FieldSpec | None:
        path = f"{self._device}/power_dpm_force_performance_level"
        if text_of(self._reader, path) is None:
            refused[f"gpu_performance_level_code@{self._bdf}"] = f"{path}: cannot be read"
            return None
        return FieldSpec(
            name="gpu_performance_level_code",
            unit="code",
            kind="state",
            domain="gfx",
            source=path,
            instance=self._bdf,
            states=LEVELS,
        )

    def _read_level(self, spec: FieldSpec) -> Reading:
        text = text_of(self._reader, spec.source)
        if text is None:
            return Reading(field=spec, raw=None, status="error")
        return Reading(field=spec, raw=LEVELS.index(text if text in LEVELS else "other"))

    def _probe_users(self, refused: dict[str, str]) -> tuple[FieldSpec, str] | None:
        """Return the field for processes of others on this GPU, and KFD's number of the GPU."""
        key = f"gpu_foreign_process_count@{self._bdf}"
        if self._own_processes is None:
            refused[key] = "the engine's own processes are not known, so others cannot be told from it"
            return None
        gpu_id = kfd_gpu_id(self._reader, self._bdf)
        if gpu_id is None:
            refused[key] = "KFD does not know this device"
            return None
        spec = FieldSpec(
            name="gpu_foreign_process_count",
            unit="count",
            kind="gauge",
            domain="gfx",
            source=f"{_KFD_PROCESSES}/*/vram_{gpu_id}",
            instance=self._bdf,
        )
        return spec, gpu_id

    def _foreign_processes(self, gpu_id: str) -> int:
        """Count the processes of others that hold this GPU's memory through KFD."""
        own = self._own_processes() if self._own_processes else frozenset()
        count = 0
        for name in self._reader.names(_KFD_PROCESSES):
            if not name.isdigit() or int(name) in own:
                continue
            held = text_of(self._reader, f"{_KFD_PROCESSES}/{name}/vram_{gpu_id}")
            count += held is not None and (integer_of(held.encode()) or 0) > 0
        return count

    def _candidates(self) -> Iterable[IntegerFile]:
        device = self._device
        yield self._file("gpu_busy_percent", "gfx_busy_ppm", "ppm", scale=10_000)
        yield self._file("mem_busy_percent", "mem_busy_ppm", "ppm", scale=10_000)
        for kind in _MEMORY:
            yield self._file(f"mem_info_{kind}_used", f"{kind}_used_bytes", "bytes")
        for name_path in self._reader.glob(f"{device}/hwmon/hwmon*/name"):
            if text_of(self._reader, name_path) != "amdgpu":
                continue
            yield from self._hwmon(name_path.rpartition("/")[0].removeprefix(f"{device}/"))

    def _hwmon(self, hwmon: str) -> Iterable[IntegerFile]:
        yield from self._labelled(hwmon, "freq", _CLOCKS, "hz", minimum=0)
        yield from self._labelled(hwmon, "temp", _TEMPERATURES, "mc")
        is_discrete = self._memory_kind() == "discrete"
        name, domain = ("board_power_uw", "board") if is_discrete else ("socket_power_uw", "socket")
        kind: Domain = "board" if domain == "board" else "socket"
        # Both exist since kernel 6.6; on some APUs they are the same filtered value.
        yield self._file(f"{hwmon}/power1_average", name, "uw", domain=kind, minimum=1)
        yield self._file(f"{hwmon}/power1_input", name.replace("_uw", "_instant_uw"), "uw", domain=kind, minimum=1)
        yield self._file(f"{hwmon}/power1_cap", "power_limit_uw", "uw", domain=kind, minimum=1, every=_RARE_TICKS)
        # Some APU drivers answer a constant 0 for a voltage that they do not measure.
        yield self._file(f"{hwmon}/in0_input", "gfx_voltage_mv", "mv", minimum=1)

    def _labelled(
        self, hwmon: str, kind: str, names: dict[str, str], unit: str, minimum: int | None = None
    ) -> Iterable[IntegerFile]:
        for path in self._reader.glob(f"{self._device}/{hwmon}/{kind}*_input"):
            file = path.rpartition("/")[2]
            label = text_of(self._reader, path.replace("_input", "_label"))
            if label in names:
                yield self._file(f"{hwmon}/{file}", names[label], unit, minimum=minimum)

    def _file(
        self,
        path: str,
        name: str,
        unit: str,
        *,
        scale: int = 1,
        domain: Domain = "gfx",
        minimum: int | None = 0,
        kind: Kind = "gauge",
        every: int = 1,
    ) -> IntegerFile:
        spec = FieldSpec(
            name=name,
            unit=unit,
            kind=kind,
            domain=domain,
            source=f"{self._device}/{path}",
            instance=self._bdf,
            resolution=scale if scale > 1 else None,
        )
        return IntegerFile(path=f"{self._device}/{path}", spec=spec, scale=scale, minimum=minimum, every=every)


def pci_address(reader: Reader, device: str) -> str:
    """Return the PCI address that a device folder points to, or the folder itself where it is no link."""
    try:
        return reader.resolve(device).rpartition("/")[2]
    except OSError:
        return device


def gfx_target_of(reader: Reader, bdf: str) -> str | None:
    """Return the graphics target that KFD gives for a PCI address, for example ``gfx1151``."""
    node = _kfd_node(reader, bdf)
    return None if node is None else gfx_name(node[1].get("gfx_target_version", 0))


def kfd_gpu_id(reader: Reader, bdf: str) -> str | None:
    """Return KFD's own number of the GPU at a PCI address."""
    node = _kfd_node(reader, bdf)
    return None if node is None else text_of(reader, f"{node[0]}/gpu_id")


def _kfd_node(reader: Reader, bdf: str) -> tuple[str, Mapping[str, int]] | None:
    match = re.fullmatch(r"([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", bdf)
    if match is None:
        return None
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    place = bus << 8 | device << 3 | function
    for path in reader.glob(_KFD_NODES):
        try:
            table = table_of(reader.read_once(path))
        except OSError:
            continue
        if table.get("simd_count", 0) > 0 and (table.get("domain", 0), table.get("location_id")) == (domain, place):
            return path.rpartition("/")[0], table
    return None


def gfx_name(version: int) -> str | None:
    """Return the name of a KFD target version: 110501 is ``gfx1151``, 90010 is ``gfx90a``."""
    if version <= 0:
        return None
    return f"gfx{version // 10_000}{version // 100 % 100:x}{version % 100:x}"
