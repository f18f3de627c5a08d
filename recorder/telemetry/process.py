"""The engine's process tree while a load runs: CPU time, waiting, faults, memory, I/O.

A process is known by its id and start time, so that a reused id is never mistaken for it. Counters are
sums over every process and thread seen so far: one that ended keeps its last value, so that sums never
fall. ``/proc/PID/schedstat`` and the context switches of ``/proc/PID/status`` speak of the first thread
only; both are summed over all threads here. When the whole tree is gone, there is no value, not 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from recorder.telemetry.provider import NoExtras
from recorder.telemetry.reader import Reader, integer_of, reason_of, values_of
from recorder.telemetry.sample import DeviceIdentity, FieldSpec, Kind, ProbeReport, Reading

_SLOW_TICKS: Final = 4
_RARE_TICKS: Final = 20
"""Context switches cost a file a thread: 40 us each."""

_FIELDS: Final[tuple[tuple[str, str, Kind, str], ...]] = (
    ("proc_count", "count", "gauge", "stat"),
    ("proc_thread_count", "count", "gauge", "stat"),
    ("proc_utime_ticks", "ticks", "counter", "stat"),
    ("proc_stime_ticks", "ticks", "counter", "stat"),
    ("proc_minflt_count", "count", "counter", "stat"),
    ("proc_majflt_count", "count", "counter", "stat"),
    ("proc_rss_bytes", "bytes", "gauge", "status"),
    ("proc_rss_peak_bytes", "bytes", "gauge", "status"),
    ("proc_rss_file_bytes", "bytes", "gauge", "status"),
    ("proc_swap_bytes", "bytes", "gauge", "status"),
    ("proc_locked_bytes", "bytes", "gauge", "status"),
    ("proc_read_bytes", "bytes", "counter", "io"),
    ("proc_write_bytes", "bytes", "counter", "io"),
    ("proc_run_ns", "ns", "counter", "task/*/schedstat"),
    ("proc_runq_wait_ns", "ns", "counter", "task/*/schedstat"),
    ("proc_voluntary_switch_count", "count", "counter", "task/*/status"),
    ("proc_involuntary_switch_count", "count", "counter", "task/*/status"),
)
_RARE_FIELDS: Final = frozenset({"proc_voluntary_switch_count", "proc_involuntary_switch_count"})
_STAT_FIELDS: Final = {
    "proc_minflt_count": 7,
    "proc_majflt_count": 9,
    "proc_utime_ticks": 11,
    "proc_stime_ticks": 12,
    "proc_thread_count": 17,
}
"""Place behind the last ``)`` of ``/proc/PID/stat``; the state is at 0, the start time at 19."""
_START_PLACE: Final = 19
_STATUS_FIELDS: Final = {
    "proc_rss_bytes": "VmRSS",
    "proc_rss_peak_bytes": "VmHWM",
    "proc_rss_file_bytes": "RssFile",
    "proc_swap_bytes": "VmSwap",
    "proc_locked_bytes": "VmLck",
}
_SWITCHES: Final = {
    "proc_voluntary_switch_count": "voluntary_ctxt_switches",
    "proc_involuntary_switch_count": "nonvoluntary_ctxt_switches",
}
_IO_FIELDS: Final = {"proc_read_bytes": "read_bytes", "proc_write_bytes": "write_bytes"}
_GAUGES: Final = frozenset(name for name, _, kind, _ in _FIELDS if kind == "gauge")


class Stat(NamedTuple):
    """What ``/proc/PID/stat`` says."""

    state: str
    start_ticks: int
    values: dict[str, int]


class ProcessProvider(NoExtras):
    """Readings of one process and all that descend from it."""

    name = "process"

    def __init__(self, pid: int, reader: Reader) -> None:
        self._pid = pid
        self._reader = reader
        self._start_ticks: int | None = None
        self._specs: dict[str, FieldSpec] = {}
        self._alive: dict[tuple[str, int, int], int] = {}
        self._ended: dict[str, int] = {}
        self._pids: frozenset[int] = frozenset({pid})

    def probe(self) -> ProbeReport:
        """Note the start time of the process and find out which of its files can be read."""
        try:
            stat = parse_stat(self._reader.read_once(f"/proc/{self._pid}/stat"))
        except OSError as error:
            return ProbeReport(provider=self.name, state="absent", reason=f"process {self._pid}: {reason_of(error)}")
        if stat is None:
            return ProbeReport(provider=self.name, state="absent", reason=f"process {self._pid}: unreadable stat file")
        self._start_ticks = stat.start_ticks
        values = self._values(tick=0)
        self._specs = {
            name: FieldSpec(name=name, unit=unit, kind=kind, domain="process", source=f"/proc/PID/{source}")
            for name, unit, kind, source in _FIELDS
            if name in values
        }
        missing = {name: f"/proc/PID/{source} cannot be read" for name, _, _, source in _FIELDS if name not in values}
        reason = f"{len(missing)} fields cannot be read" if missing else None
        return ProbeReport(
            provider=self.name, state="partial" if missing else "present", reason=reason, refused=missing
        )

    def describe(self) -> tuple[FieldSpec, ...]:
        """Return the fields that the probe could read."""
        return tuple(self._specs.values())

    def read(self, tick: int) -> Iterable[Reading]:
        """Return the sums over the tree; context switches every 20th tick."""
        values = self._values(tick)
        readings = []
        for name, spec in self._specs.items():
            if name in _RARE_FIELDS and tick % _RARE_TICKS:
                continue
            value = values.get(name)
            readings.append(
                Reading(field=spec, raw=value) if value is not None else Reading(field=spec, raw=None, status="error")
            )
        return readings

    def pids(self) -> frozenset[int]:
        """Return the processes of the tree as it was read last; the engine's own process is always among them."""
        return self._pids

    def close(self) -> None:
        """Close the files."""
        self._reader.close()

    def identity(self) -> tuple[DeviceIdentity, ...]:
        """Return no device."""
        return ()

    def _values(self, tick: int) -> dict[str, int]:
        """Read the whole tree once. Fields that no process gave are not in the result."""
        gauges: dict[str, int] = {}
        now: dict[tuple[str, int, int], int] = {}
        processes = self._tree(with_children=tick % _SLOW_TICKS == 0)
        for pid, stat in processes:
            found = {**stat.values, **self._memory(pid), **self._io(pid)}
            for name, value in found.items():
                if name in _GAUGES:
                    gauges[name] = gauges.get(name, 0) + value
                else:
                    now[name, pid, stat.start_ticks] = value
            now.update(self._threads(pid, with_switches=tick % _RARE_TICKS == 0))
        if not processes:
            return {}
        self._pids = frozenset({self._pid, *(pid for pid, _ in processes)})
        gauges["proc_count"] = len(processes)
        return gauges | self._sums(now)

    def _sums(self, now: dict[tuple[str, int, int], int]) -> dict[str, int]:
        """Add up counters, with the last values of processes and threads that ended since."""
        names_now = {name for name, _, _ in now}
        for key, last in self._alive.items():
            name = key[0]
            current = now.get(key)
            if current is None and name not in names_now:
                now[key] = last  # not read at this tick
            elif current is None or current < last:
                # It ended; a lower value is another thread with the same id.
                self._ended[name] = self._ended.get(name, 0) + last
        self._alive = now
        sums = {name: self._ended.get(name, 0) for name in names_now}
        for (name, _, _), value in now.items():
            if name in sums:
                sums[name] += value
        return sums

    def _tree(self, *, with_children: bool) -> list[tuple[int, Stat]]:
        """Return the processes of the tree that are alive; none if the first one is gone.

        Looking for children costs a read for each thread: without it, those of the last look are read again.
        """
        found: list[tuple[int, Stat]] = []
        waiting = [self._pid] if with_children else sorted(self._pids, key=lambda pid: pid != self._pid)[::-1]
        while waiting:
            pid = waiting.pop()
            try:
                stat = parse_stat(self._reader.read_once(f"/proc/{pid}/stat"))
            except OSError:
                continue
            if stat is None or stat.state in {"Z", "X"}:
                continue
            if pid == self._pid and stat.start_ticks != self._start_ticks:
                return []
            found.append((pid, stat))
            if with_children:
                waiting.extend(self._children(pid))
        return found if any(pid == self._pid for pid, _ in found) else []

    def _children(self, pid: int) -> list[int]:
        children: list[int] = []
        for thread in self._reader.names(f"/proc/{pid}/task"):
            try:
                parts = self._reader.read_once(f"/proc/{pid}/task/{thread}/children").split()
            except OSError:
                continue
            children.extend(number for part in parts if (number := integer_of(part)) is not None)
        return children

    def _memory(self, pid: int) -> dict[str, int]:
        table = self._table(f"/proc/{pid}/status", _STATUS_FIELDS.values())
        return {name: table[key] * 1024 for name, key in _STATUS_FIELDS.items() if key in table}

    def _io(self, pid: int) -> dict[str, int]:
        table = self._table(f"/proc/{pid}/io", _IO_FIELDS.values())
        return {name: table[key] for name, key in _IO_FIELDS.items() if key in table}

    def _table(self, path: str, names: Iterable[str]) -> dict[str, int]:
        try:
            return values_of(self._reader.read_once(path), names)
        except OSError:
            return {}

    def _threads(self, pid: int, *, with_switches: bool) -> dict[tuple[str, int, int], int]:
        values: dict[tuple[str, int, int], int] = {}
        for name_of_thread in self._reader.names(f"/proc/{pid}/task"):
            thread = integer_of(name_of_thread.encode()) or 0
            try:
                parts = self._reader.read(f"/proc/{pid}/task/{thread}/schedstat").split()
            except OSError:
                continue
            if len(parts) < 2:
                continue
            for name, part in (("proc_run_ns", parts[0]), ("proc_runq_wait_ns", parts[1])):
                if (value := integer_of(part)) is not None:
                    values[name, pid, thread] = value
            if with_switches:
                table = self._table(f"/proc/{pid}/task/{thread}/status", _SWITCHES.values())
                for name, key in _SWITCHES.items():
                    if key in table:
                        values[name, pid, thread] = table[key]
        return values


def parse_stat(data: bytes) -> Stat | None:
    """Read ``/proc/PID/stat``; the command may hold blanks and brackets, so the last ``)`` counts."""
    _, bracket, rest = data.rpartition(b")")
    parts = rest.split()
    if not bracket or len(parts) <= _START_PLACE:
        return None
    start_ticks = integer_of(parts[_START_PLACE])
    numbers = {name: integer_of(parts[place]) for name, place in _STAT_FIELDS.items()}
    if start_ticks is None:
        return None
    return Stat(
        state=parts[0].decode("ascii", "replace"),
        start_ticks=start_ticks,
        values={name: number for name, number in numbers.items() if number is not None},
    )
