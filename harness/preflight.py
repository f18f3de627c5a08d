"""What the host looks like before the first load: findings with a stated effect, not opinions.

Each finding is `record` (kept as evidence), `warn` (kept, and shown to the person who waits) or `refuse` (the campaign
does not start). Nothing here changes the host. What cannot be read is a finding of its own, with found = None: absence
is a value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from protocols.errors import HostError

Effect = Literal["record", "warn", "refuse"]

MIB = 1 << 20
PSI_WARN_PERCENT = 10.0
"""Share of the last 10 s in which some task waited; a measured engine shares its cores with that."""
LOAD_WARN_SHARE = 0.5
"""One-minute load average per CPU above which the host is not quiet."""
EVENT_BYTES = 1024
"""Wire bytes of one streamed token event, upper bound seen with llama-server's field names."""
SAMPLE_BYTES = 4096
"""One telemetry sample in the spool, upper bound."""
COPIES = 4
"""A byte of a stream is kept in the spool, in a blob and in the database with its index."""
RESERVE_BYTES = 64 * MIB
"""Room that must stay free for the database's journal, reports and the ledger."""

GOOD_CLOCKS = frozenset({"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"})


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One observation of the host. `found` and `expected` are short words, or numbers with their unit."""

    id: str
    effect: Effect
    found: str | int | None
    expected: str
    message: str

    def payload(self) -> dict[str, str | int | None]:
        """Return the finding as plain JSON values."""
        return {
            "id": self.id,
            "effect": self.effect,
            "found": self.found,
            "expected": self.expected,
            "message": self.message,
        }


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a campaign will ask of the host."""

    threads: int
    model_bytes: int
    load_disk_bytes: int
    check_disk_bytes: int = 0
    """What all checks leave before the first load."""


def disk_need_bytes(*, generated_tokens: int, request_bytes: int, load_s: float, sample_period_ms: int) -> int:
    """Return the disk room that one load may need: streams, samples and their copies, with a reserve."""
    samples = int(load_s * 1000 / sample_period_ms) + 1
    content = generated_tokens * EVENT_BYTES + request_bytes + samples * SAMPLE_BYTES
    return COPIES * content + RESERVE_BYTES


def check_disk(store: Path, need_bytes: int, *, statvfs: Callable[[Path], os.statvfs_result] = os.statvfs) -> Finding:
    """Compare the free room under the store with what one load needs."""
    info = statvfs(store)
    free = info.f_bavail * info.f_frsize
    is_enough = free >= need_bytes
    return Finding(
        id="disk_room",
        effect="record" if is_enough else "refuse",
        found=f"{free // MIB} MiB",
        expected=f"at least {need_bytes // MIB} MiB",
        message="the store has room for the next load" if is_enough else "the store has no room for the next load",
    )


def inspect_host(
    need: Need, store: Path, *, proc: Path = Path("/proc"), sys: Path = Path("/sys"), cpus: int | None = None
) -> tuple[Finding, ...]:
    """Return every finding, in a fixed order."""
    cpus = len(os.sched_getaffinity(0)) if cpus is None else cpus
    return (
        _governors(sys),
        _clock_source(sys),
        _load_average(proc, cpus),
        _threads(need, cpus),
        _memory(proc, need),
        *_pressure(proc),
        _foreign_gpu(proc, sys),
        check_disk(store, need.load_disk_bytes + need.check_disk_bytes),
    )


def refuse_or_warn(findings: Iterable[Finding]) -> list[str]:
    """Return the warnings; raise HostError naming every refusing finding."""
    refusals = [f for f in findings if f.effect == "refuse"]
    if refusals:
        raise HostError(
            "; ".join(f"{f.message} (found {f.found}, needs {f.expected})" for f in refusals),
            where="preflight: " + ", ".join(f.id for f in refusals),
            hint="free what is missing, then start again; nothing was measured",
        )
    return [f"{f.message} (found {f.found}, expected {f.expected})" for f in findings if f.effect == "warn"]


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _absent(name: str, expected: str, message: str) -> Finding:
    return Finding(id=name, effect="record", found=None, expected=expected, message=message)


def _governors(sys: Path) -> Finding:
    found = sorted({t for p in sys.glob("devices/system/cpu/cpu*/cpufreq/scaling_governor") if (t := _read(p))})
    if not found:
        return _absent(
            "governor", "performance", "this host shows no frequency governor (virtual machines often do not)"
        )
    is_fixed = found == ["performance"]
    return Finding(
        id="governor",
        effect="record" if is_fixed else "warn",
        found=",".join(found),
        expected="performance",
        message="the CPU governor holds the clock"
        if is_fixed
        else "the CPU governor may change the clock while we measure",
    )


def _clock_source(sys: Path) -> Finding:
    found = _read(sys / "devices/system/clocksource/clocksource0/current_clocksource")
    expected = "one of " + ", ".join(sorted(GOOD_CLOCKS))
    if found is None:
        return _absent("clock_source", expected, "the kernel does not name its clock source")
    is_good = found in GOOD_CLOCKS
    return Finding(
        id="clock_source",
        effect="record" if is_good else "warn",
        found=found,
        expected=expected,
        message="the monotonic clock is cheap and steady"
        if is_good
        else "reading the monotonic clock is slow on this clock source",
    )


def _load_average(proc: Path, cpus: int) -> Finding:
    limit = LOAD_WARN_SHARE * cpus
    text = _read(proc / "loadavg")
    if text is None:
        return _absent("load_average", f"below {limit:g}", "the load average cannot be read")
    one_minute = text.split()[0]
    is_quiet = float(one_minute) < limit
    return Finding(
        id="load_average",
        effect="record" if is_quiet else "warn",
        found=one_minute,
        expected=f"below {limit:g}",
        message="the host is quiet" if is_quiet else "other work runs on this host: rates will be lower and noisier",
    )


def _threads(need: Need, cpus: int) -> Finding:
    fits = need.threads <= cpus
    return Finding(
        id="cpus",
        effect="record" if fits else "warn",
        found=cpus,
        expected=f"at least {need.threads}",
        message="every engine thread has a CPU"
        if fits
        else "the engine asks for more threads than this process has CPUs",
    )


def _memory(proc: Path, need: Need) -> Finding:
    # A mapped model needs its own size once; caches and buffers of small models stay below the same again.
    least, good = need.model_bytes, 2 * need.model_bytes
    expected = f"at least {good // MIB} MiB"
    text = _read(proc / "meminfo") or ""
    values = {line.split(":")[0]: line.split(":")[1] for line in text.splitlines() if ":" in line}
    if "MemAvailable" not in values:
        return _absent("memory_available", expected, "available memory cannot be read")
    free = int(values["MemAvailable"].split()[0]) * 1024
    effect: Effect = "record" if free >= good else "warn" if free >= least else "refuse"
    message = {
        "record": "there is memory for the engine",
        "warn": "memory is tight: the model may be read from disk while we measure",
        "refuse": "the model does not fit into the available memory",
    }[effect]
    return Finding(id="memory_available", effect=effect, found=f"{free // MIB} MiB", expected=expected, message=message)


def _pressure(proc: Path) -> tuple[Finding, ...]:
    return tuple(_one_pressure(proc, name) for name in ("cpu", "memory", "io"))


def _one_pressure(proc: Path, name: str) -> Finding:
    expected = f"below {PSI_WARN_PERCENT:g} % of the last 10 s"
    text = _read(proc / "pressure" / name)
    some = next((line for line in (text or "").splitlines() if line.startswith("some ")), None)
    if some is None:
        return _absent(f"pressure_{name}", expected, f"the kernel gives no {name} pressure")
    average = next(word.removeprefix("avg10=") for word in some.split() if word.startswith("avg10="))
    is_quiet = float(average) < PSI_WARN_PERCENT
    return Finding(
        id=f"pressure_{name}",
        effect="record" if is_quiet else "warn",
        found=f"{average} %",
        expected=expected,
        message=f"no task waits for {name}" if is_quiet else f"tasks wait for {name} on this host",
    )


def _foreign_gpu(proc: Path, sys: Path) -> Finding:
    devices = [
        *sys.glob("class/drm/renderD*"),
        *sys.glob("class/kfd/kfd/topology/nodes/*/gpu_id"),
        *proc.glob("driver/nvidia/gpus/*"),
    ]
    if not devices:
        return _absent("foreign_gpu_processes", "none", "this host has no GPU that we can see")
    pids = sorted(
        {int(p.name) for p in sys.glob("class/kfd/kfd/proc/*") if p.name.isdigit()} | _pids_with_gpu_files(proc)
    )
    return Finding(
        id="foreign_gpu_processes",
        effect="warn" if pids else "record",
        found=len(pids),
        expected="none",
        message="other processes use a GPU" if pids else "no other process uses a GPU",
    )


def _pids_with_gpu_files(proc: Path) -> set[int]:
    found = set()
    for folder in proc.glob("[0-9]*/fd"):
        try:
            targets = [str(entry.readlink()) for entry in folder.iterdir()]
        except OSError:
            continue  # the process is gone, or belongs to another user
        if any(t.startswith(("/dev/dri/renderD", "/dev/kfd", "/dev/nvidia")) for t in targets):
            found.add(int(folder.parent.name))
    return found
