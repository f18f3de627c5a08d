"""AMD GPUs through the amdgpu driver's own files; works without ROCm and is readable by everyone.

Files are below ``/sys/class/drm/cardN/device``. A device is known by its PCI address; the numbers of
``cardN`` and ``hwmonN`` change between boots. On an APU, the driver's power is that of the socket, the
CPU included, and weights lie mostly in GTT memory.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable
from typing import Final, Literal

from recorder.telemetry.provider import DeviceLostError, IntegerFile, probe_files, read_file
from recorder.telemetry.reader import Reader, integer_of, reason_of, table_of, text_of
from recorder.telemetry.sample import DeviceIdentity, Domain, FieldSpec, Kind, ProbeReport, Reading

_VENDOR: Final = "0x1002"
_CARD: Final = re.compile(r"/sys/class/drm/card[0-9]+/device/vendor\Z")
_METRICS_HEADER: Final = struct.Struct("<HBB")
_TEMPERATURES: Final = {"edge": "temp_edge_mc", "junction": "temp_junction_mc", "mem": "temp_mem_mc"}
_CLOCKS: Final = {"sclk": "gfx_clock_hz", "mclk": "mem_clock_hz"}
_MEMORY: Final = ("vram", "vis_vram", "gtt")
_KFD_NODES: Final = "/sys/class/kfd/kfd/topology/nodes/*/properties"

MemoryKind = Literal["apu", "discrete", "unknown"]


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

    def __init__(self, device: str, reader: Reader) -> None:
        self._device = device
        self._reader = reader
        self._files: tuple[IntegerFile, ...] = ()
        self._bdf = pci_address(reader, device)

    def probe(self) -> ProbeReport:
        """Find out which files this card has."""
        status = text_of(self._reader, f"{self._device}/power/runtime_status")
        if status == "suspended":
            # A read would wake the card or fail, and neither is a measurement.
            return ProbeReport(provider=self.name, state="absent", reason=f"{self._bdf}: the device is suspended")
        self._files, refused = probe_files(self._reader, self._candidates())
        if not self._files:
            return ProbeReport(
                provider=self.name, state="absent", reason=f"{self._bdf}: no sensor file can be read", refused=refused
            )
        state: Literal["partial", "present"] = "partial" if refused else "present"
        reason = f"{len(refused)} sensor files cannot be read" if refused else None
        return ProbeReport(provider=self.name, state=state, reason=reason, refused=refused)

    def describe(self) -> tuple[FieldSpec, ...]:
        """Return the fields that the probe could read."""
        return tuple(file.spec for file in self._files)

    def read(self, tick: int) -> Iterable[Reading]:
        """Return every field. Raises DeviceLostError when the device's folder is gone."""
        readings = [read_file(self._reader, file) for file in self._files if tick % file.every == 0]
        if readings and all(reading.raw is None for reading in readings):
            try:
                self._reader.read_once(f"{self._device}/vendor")
            except OSError as error:
                raise DeviceLostError(f"{self._bdf}: {reason_of(error)}") from error
        return readings

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
        }
        for kind in _MEMORY:
            text = text_of(self._reader, f"{self._device}/mem_info_{kind}_total")
            facts[f"{kind}_total_bytes"] = None if text is None else integer_of(text.encode())
        return (DeviceIdentity(kind="amdgpu", identifier=self._bdf, facts=facts),)

    def _memory_kind(self) -> MemoryKind:
        """Tell an APU from a discrete card by the revision of the metrics table."""
        try:
            data = self._reader.read_once(f"{self._device}/gpu_metrics")
        except OSError:
            return "unknown"
        if len(data) < _METRICS_HEADER.size:
            return "unknown"
        _, revision, _ = _METRICS_HEADER.unpack_from(data)
        return "discrete" if revision == 1 else "apu" if revision in {2, 3} else "unknown"

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
        has_average = bool(self._reader.glob(f"{self._device}/{hwmon}/power1_average"))
        power = "power1_average" if has_average else "power1_input"
        yield self._file(f"{hwmon}/{power}", name, "uw", domain="board" if domain == "board" else "socket", minimum=1)
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
        return IntegerFile(path=f"{self._device}/{path}", spec=spec, scale=scale, minimum=minimum)


def pci_address(reader: Reader, device: str) -> str:
    """Return the PCI address that a device folder points to, or the folder itself where it is no link."""
    try:
        return reader.resolve(device).rpartition("/")[2]
    except OSError:
        return device


def gfx_target_of(reader: Reader, bdf: str) -> str | None:
    """Return the graphics target that KFD gives for a PCI address, for example ``gfx1151``."""
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
            return gfx_name(table.get("gfx_target_version", 0))
    return None


def gfx_name(version: int) -> str | None:
    """Return the name of a KFD target version: 110501 is ``gfx1151``, 90010 is ``gfx90a``."""
    if version <= 0:
        return None
    return f"gfx{version // 10_000}{version // 100 % 100:x}{version % 100:x}"
