"""The host while a load runs: pressure, paging, memory, CPU time, clocks, temperatures, package energy.

Pressure (PSI) and paging are counters; only their differences mean something. ``avg10`` and its like are
not read: they are moving averages of the same totals. A source that this host does not have is named in
the probe report and has no field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from recorder.telemetry.provider import IntegerFile, NoExtras, probe_files, read_file, readings_of
from recorder.telemetry.reader import Reader, integer_of, reason_of, table_of, text_of, values_of
from recorder.telemetry.sample import DeviceIdentity, FieldSpec, Kind, ProbeReport, Reading

GOVERNORS: Final = ("performance", "powersave", "userspace", "ondemand", "conservative", "schedutil", "other")
"""Codes of ``cpu_governor_code``, by index."""
PROFILES: Final = ("performance", "balanced", "low-power", "quiet", "cool", "balanced-performance", "custom", "other")
"""Codes of ``platform_profile_code``, by index."""
PREFERENCES: Final = ("performance", "balance_performance", "default", "balance_power", "power", "other")
"""Codes of ``energy_preference_code``, by index."""

_PRESSURE: Final = (("cpu", "some"), ("memory", "some"), ("memory", "full"), ("io", "some"), ("io", "full"))
_VMSTAT: Final = {
    "swap_in_pages": "pswpin",
    "swap_out_pages": "pswpout",
    "major_fault_count": "pgmajfault",
    "direct_scan_pages": "pgscan_direct",
    "oom_kill_count": "oom_kill",
}
_MEMINFO: Final = {
    "mem_available_bytes": "MemAvailable",
    "mem_total_bytes": "MemTotal",
    "mem_free_bytes": "MemFree",
    "mem_cached_bytes": "Cached",
    "swap_free_bytes": "SwapFree",
}
_MOST_STALLS: Final = 8
"""Zones of memory that the kernel counts allocation stalls for, at most; they stand in a row."""
_SLOW_TICKS: Final = 4
_RARE_TICKS: Final = 20
_MANY_POLICIES: Final = 16
_CPU_SENSORS: Final = frozenset({"k10temp", "coretemp", "zenpower", "cpu_thermal"})

_WORD_FILES: Final = (
    ("cpu_governor_code", "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor", GOVERNORS),
    ("energy_preference_code", "/sys/devices/system/cpu/cpufreq/policy*/energy_performance_preference", PREFERENCES),
    ("platform_profile_code", "/sys/firmware/acpi/platform_profile", PROFILES),
)
"""Files that hold one word of a closed list: what somebody may change while a load runs."""

Parse = Callable[[bytes], Mapping[str, int | None]]


class _Source:
    """One file that gives several fields at once."""

    def __init__(self, path: str, parse: Parse, specs: Iterable[FieldSpec]) -> None:
        self.path = path
        self.parse = parse
        self.specs = {spec.name: spec for spec in specs}


class HostProvider(NoExtras):
    """Readings of the whole host below the reader's root."""

    name = "host"

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._sources: list[_Source] = []
        self._files: tuple[IntegerFile, ...] = ()
        self._words: list[tuple[str, FieldSpec]] = []

    def probe(self) -> ProbeReport:
        """Find the sources of this host."""
        refused: dict[str, str] = {}
        self._sources, self._files = [], ()
        for source in _sources():
            try:
                values = source.parse(self._reader.read(source.path))
            except OSError as error:
                refused[source.path] = reason_of(error)
                continue
            source.specs = {name: spec for name, spec in source.specs.items() if values.get(name) is not None}
            if source.specs:
                self._sources.append(source)
            else:
                refused[source.path] = "none of the expected values stands in it"
        for pattern, files in self._integer_files():
            usable, missing = probe_files(self._reader, files)
            self._files += usable
            refused.update(missing)
            if not files:
                refused[pattern] = "no such file"
        self._words = [
            (path, _spec(name, "code", "state", path, _instance(path, -2) if "*" in pattern else "", states=words))
            for name, pattern, words in _WORD_FILES
            for path in self._reader.glob(pattern)
        ]
        reason = f"{len(refused)} sources are not on this host" if refused else None
        state: Literal["present", "partial", "absent"] = "partial" if refused else "present"
        if not self.describe():
            state, reason = "absent", "nothing could be read"
        return ProbeReport(provider=self.name, state=state, reason=reason, refused=refused)

    def describe(self) -> tuple[FieldSpec, ...]:
        """Return the fields that the probe could read."""
        specs = [spec for source in self._sources for spec in source.specs.values()]
        return (*specs, *(file.spec for file in self._files), *(spec for _, spec in self._words))

    def read(self, tick: int) -> Iterable[Reading]:
        """Return what is due: counters each tick, governors and profiles every 20th."""
        readings: list[Reading] = []
        for source in self._sources:
            try:
                values = source.parse(self._reader.read(source.path))
            except OSError:
                values = {}
            readings.extend(readings_of(source.specs, values))
        readings.extend(read_file(self._reader, file) for file in self._files if tick % file.every == 0)
        if tick % _RARE_TICKS == 0:
            readings.extend(self._word(path, spec) for path, spec in self._words)
        return readings

    def read_edge(self) -> Iterable[Reading]:
        """Return the energy counters of the packages."""
        return [read_file(self._reader, file) for file in self._files if file.spec.unit == "uj"]

    def close(self) -> None:
        """Close the files."""
        self._reader.close()

    def identity(self) -> tuple[DeviceIdentity, ...]:
        """Return no device: the host is described by ``host_facts``."""
        return ()

    def _word(self, path: str, spec: FieldSpec) -> Reading:
        text = text_of(self._reader, path)
        if text is None:
            return Reading(field=spec, raw=None, status="error")
        return Reading(field=spec, raw=spec.states.index(text if text in spec.states else "other"))

    def _integer_files(self) -> list[tuple[str, list[IntegerFile]]]:
        clocks = "/sys/devices/system/cpu/cpufreq/policy*/scaling_cur_freq"
        zones = "/sys/class/thermal/thermal_zone*/temp"
        packages = "/sys/class/powercap/intel-rapl:*/energy_uj"
        policies = self._reader.glob(clocks)
        # Each of these reads may interrupt the CPU that it asks about.
        every = 1 if len(policies) <= _MANY_POLICIES else _SLOW_TICKS
        return [
            (
                clocks,
                [
                    IntegerFile(
                        path=path,
                        spec=_spec("cpu_clock_hz", "hz", "gauge", path, _instance(path, -2), resolution=1000),
                        scale=1000,
                        minimum=1,
                        every=every,
                    )
                    for path in policies
                ],
            ),
            (zones, self._named(zones, "type", "zone_temp_mc", "mc")),
            ("/sys/class/hwmon/hwmon*/name", self._cpu_sensors()),
            (packages, self._packages(packages)),
        ]

    def _named(self, pattern: str, name_file: str, name: str, unit: str) -> list[IntegerFile]:
        """Return files whose number means nothing; a file beside each names it."""
        seen: dict[str, int] = {}
        files = []
        for path in self._reader.glob(pattern):
            text = text_of(self._reader, f"{path.rpartition('/')[0]}/{name_file}") or _instance(path, -2)
            seen[text] = seen.get(text, 0) + 1
            instance = text if seen[text] == 1 else f"{text}#{seen[text]}"
            files.append(IntegerFile(path=path, spec=_spec(name, unit, "gauge", path, instance), every=_SLOW_TICKS))
        return files

    def _cpu_sensors(self) -> list[IntegerFile]:
        files = []
        for name_path in self._reader.glob("/sys/class/hwmon/hwmon*/name"):
            chip = text_of(self._reader, name_path)
            if chip not in _CPU_SENSORS:
                continue
            for path in self._reader.glob(f"{name_path.rpartition('/')[0]}/temp*_input"):
                label = text_of(self._reader, path.replace("_input", "_label")) or path.rpartition("/")[2]
                spec = _spec("cpu_temp_mc", "mc", "gauge", path, f"{chip}/{label}")
                files.append(IntegerFile(path=path, spec=spec, every=_SLOW_TICKS))
        return files

    def _packages(self, pattern: str) -> list[IntegerFile]:
        files = []
        for path in self._reader.glob(pattern):
            folder = path.rpartition("/")[0]
            if folder.count(":") != 1:
                continue  # a part of a package, contained in it
            name = text_of(self._reader, f"{folder}/name") or _instance(path, -2)
            limit = integer_of((text_of(self._reader, f"{folder}/max_energy_range_uj") or "").encode())
            spec = FieldSpec(
                name="package_energy_uj",
                unit="uj",
                kind="counter",
                domain="package",
                source=path,
                instance=name,
                modulus=None if limit is None else limit + 1,
            )
            files.append(IntegerFile(path=path, spec=spec))
        return files


def _sources() -> list[_Source]:
    sources = [
        _Source(
            f"/proc/pressure/{resource}",
            _parse_pressure(resource),
            [
                _spec(f"psi_{resource}_{share}_us", "us", "counter", f"/proc/pressure/{resource}")
                for name, share in _PRESSURE
                if name == resource
            ],
        )
        for resource in ("cpu", "memory", "io")
    ]
    vmstat = [_spec(name, name.rpartition("_")[2], "counter", "/proc/vmstat") for name in _VMSTAT]
    vmstat.append(_spec("alloc_stall_count", "count", "counter", "/proc/vmstat"))
    sources.append(_Source("/proc/vmstat", _parse_vmstat, vmstat))
    meminfo = [_spec(name, "bytes", "gauge", "/proc/meminfo", resolution=1024) for name in _MEMINFO]
    sources.append(_Source("/proc/meminfo", _parse_meminfo, meminfo))
    load = [
        _spec("load_1min_milli", "milli", "gauge", "/proc/loadavg"),
        _spec("runnable_thread_count", "count", "gauge", "/proc/loadavg"),
    ]
    sources.append(_Source("/proc/loadavg", _parse_loadavg, load))
    ticks = [
        _spec(name, "ticks", "counter", "/proc/stat")
        for name in ("cpu_busy_ticks", "cpu_idle_ticks", "cpu_steal_ticks")
    ]
    ticks.append(_spec("context_switch_count", "count", "counter", "/proc/stat"))
    sources.append(_Source("/proc/stat", _parse_stat, ticks))
    return sources


def _spec(
    name: str,
    unit: str,
    kind: Kind,
    source: str,
    instance: str = "",
    *,
    resolution: int | None = None,
    states: tuple[str, ...] = (),
) -> FieldSpec:
    return FieldSpec(
        name=name,
        unit=unit,
        kind=kind,
        domain="host",
        source=source,
        instance=instance,
        resolution=resolution,
        states=states,
    )


def _instance(path: str, place: int) -> str:
    return path.split("/")[place]


def _parse_pressure(resource: str) -> Parse:
    def parse(data: bytes) -> Mapping[str, int | None]:
        values: dict[str, int | None] = {}
        for line in data.split(b"\n"):
            share, _, rest = line.partition(b" ")
            _, found, total = rest.rpartition(b"total=")
            if found and share in {b"some", b"full"}:
                values[f"psi_{resource}_{share.decode()}_us"] = integer_of(total)
        return values

    return parse


def _parse_vmstat(data: bytes) -> Mapping[str, int | None]:
    table = values_of(data, _VMSTAT.values())
    values: dict[str, int | None] = {name: table.get(key) for name, key in _VMSTAT.items()}
    start = data.find(b"\nallocstall")
    lines = data[start + 1 :].split(b"\n", _MOST_STALLS) if start >= 0 else []
    stalls = [value for line in lines if line.startswith(b"allocstall") for value in table_of(line).values()]
    values["alloc_stall_count"] = sum(stalls) if stalls else None
    return values


def _parse_meminfo(data: bytes) -> Mapping[str, int | None]:
    table = values_of(data, _MEMINFO.values())
    return {name: table[key] * 1024 if key in table else None for name, key in _MEMINFO.items()}


def _parse_loadavg(data: bytes) -> Mapping[str, int | None]:
    parts = data.split()
    if len(parts) < 4:
        return {}
    whole, point, decimals = parts[0].partition(b".")
    is_number = bool(point) and len(decimals) == 2
    hundredths = integer_of(whole + decimals) if is_number else None
    return {
        "load_1min_milli": None if hundredths is None else hundredths * 10,
        "runnable_thread_count": integer_of(parts[3].partition(b"/")[0]),
    }


def _parse_stat(data: bytes) -> Mapping[str, int | None]:
    values: dict[str, int | None] = {}
    for line in data.split(b"\n"):
        name, *rest = line.split() or [b""]
        if name == b"ctxt" and rest:
            values["context_switch_count"] = integer_of(rest[0])
        elif name == b"cpu" and len(rest) >= 8:
            numbers = [integer_of(part) for part in rest[:8]]
            known = [number for number in numbers if number is not None]
            if len(known) < len(numbers):
                continue
            user, nice, system, idle, iowait, irq, softirq, steal = known
            values["cpu_busy_ticks"] = user + nice + system + irq + softirq
            values["cpu_idle_ticks"] = idle + iowait
            values["cpu_steal_ticks"] = steal
    return values
