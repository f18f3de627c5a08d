"""The profilers that a protocol may name: how each is started, what it needs first, and how its files are judged.

An exit code judges nothing: on ROCm 7.2 an attachment that did not work ends with 0 and writes no file. What counts is
a trace file with at least one row of the engine's own work.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from protocols.vocabulary import ProfilerTool

Mode = Literal["attach", "launch"]

PERF_EVENTS: Final = (
    "instructions",
    "cycles",
    "cache-misses",
    "branch-misses",
    "task-clock",
    "context-switches",
    "cpu-migrations",
    "page-faults",
    "major-faults",
)
_CAP_SYS_PTRACE: Final = 19
_CAP_PERFMON: Final = 38
_CAP_SYS_ADMIN: Final = 21
_PARANOID_LIMIT: Final = 2
_VERSION_S: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class Need:
    """One prerequisite: what was found, whether it is met, and what would help where it is not."""

    name: str
    found: str
    is_met: bool
    help: str | None = None


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What a profiler's files show. `rows` are rows of the engine's work; `numbers` are totals worth a line."""

    rows: int
    numbers: Mapping[str, int | float | str] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class Profiler:
    """One way to use a tool.

    `environment` is added to the engine's in the diagnostic load. `command` gives the words before the engine's own
    (launch), or the whole command (attach) for a process id, a folder for files, and the seconds it may take.
    """

    tool: ProfilerTool
    program: str
    mode: Mode
    environment: Mapping[str, str]
    command: Callable[[str, int, Path, int], Sequence[str]]
    needs: Callable[[Path], tuple[Need, ...]]
    needs_of_process: Callable[[int, Path], tuple[Need, ...]]
    judge: Callable[[Path], Trace]


def program_need(program: str, hint: str) -> Need:
    """Say whether a program is there."""
    path = shutil.which(program)
    return Need(name=program, found=path or "not found", is_met=path is not None, help=None if path else hint)


def version_of(program: str) -> str | None:
    """Return the first line that a program says about its version; None where it says nothing."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0][:200] if lines else None


def _no_needs(_pid: int, _proc: Path) -> tuple[Need, ...]:
    return ()


def _integer(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _capabilities(proc: Path) -> int:
    try:
        match = re.search(r"^CapEff:\s*([0-9a-f]+)", (proc / "self/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1], 16) if match else 0


# --- perf stat -------------------------------------------------------------------------------------------
def _perf_needs(proc: Path) -> tuple[Need, ...]:
    paranoid = _integer(proc / "sys/kernel/perf_event_paranoid")
    capable = bool(_capabilities(proc) & (1 << _CAP_PERFMON | 1 << _CAP_SYS_ADMIN))
    is_met = paranoid is not None and (capable or paranoid <= _PARANOID_LIMIT)
    found = "the kernel has no performance events" if paranoid is None else f"{paranoid}, privileged: {capable}"
    return (
        program_need("perf", "install perf for this kernel (Debian: linux-perf)"),
        Need(
            name="perf_event_paranoid",
            found=found,
            is_met=is_met,
            help=None if is_met else f"sysctl kernel.perf_event_paranoid={_PARANOID_LIMIT}",
        ),
    )


def _perf_command(program: str, pid: int, folder: Path, _seconds: int) -> Sequence[str]:
    events = ",".join(PERF_EVENTS)
    return (
        program,
        "stat",
        "--field-separator",
        ",",
        "--event",
        events,
        "--pid",
        str(pid),
        "--output",
        str(folder / "perf.csv"),
    )


def judge_perf(folder: Path) -> Trace:
    """Read `perf stat` in its CSV form: a number for each event, or the words that say why there is none."""
    try:
        text = (folder / "perf.csv").read_text(errors="replace")
    except OSError:
        return Trace(rows=0, problem="perf wrote no file")
    numbers: dict[str, int | float | str] = {}
    for row in csv.reader(io.StringIO(text.replace("\0", ""))):
        if len(row) < 3 or row[0].startswith("#"):
            continue
        value, unit, event = row[0].strip(), row[1].strip(), row[2].strip()
        name = f"{event} ({unit})" if unit else event
        try:
            numbers[name] = float(value) if "." in value else int(value)
        except ValueError:
            numbers[name] = value.strip("<>") or "no value"
    counted = sum(not isinstance(value, str) and value > 0 for value in numbers.values())
    return Trace(rows=counted, numbers=numbers, problem=None if counted else "perf counted nothing of the engine")


# --- rocprofv3 -------------------------------------------------------------------------------------------
_ROCPROF_HINT: Final = "install rocprofiler-sdk of the ROCm in use (rocprofv3 lies in its bin folder)"


def _rocprof_needs(_proc: Path) -> tuple[Need, ...]:
    return (program_need("rocprofv3", _ROCPROF_HINT), _kfd_need())


def _kfd_need() -> Need:
    is_open = os.access("/dev/kfd", os.R_OK | os.W_OK)
    return Need(
        name="/dev/kfd",
        found="usable" if is_open else "missing or not usable for this user",
        is_met=is_open,
        help=None if is_open else "load the amdgpu driver, and add this user to the groups render and video",
    )


def _rocprof_attach_needs(proc: Path) -> tuple[Need, ...]:
    scope = _integer(proc / "sys/kernel/yama/ptrace_scope")
    capable = bool(_capabilities(proc) & 1 << _CAP_SYS_PTRACE)
    is_met = capable or scope in {None, 0}
    may_trace = Need(
        name="ptrace",
        found=f"ptrace_scope {'absent' if scope is None else scope}, CAP_SYS_PTRACE: {capable}",
        is_met=is_met,
        help=None
        if is_met
        else "sysctl kernel.yama.ptrace_scope=0, or give CAP_SYS_PTRACE (docker: --cap-add SYS_PTRACE)",
    )
    return (*_rocprof_needs(proc), may_trace)


def rocprof_needs_of_process(pid: int, proc: Path) -> tuple[Need, ...]:
    """Look at the running engine: the variable in its environment, and the attachment that it should have loaded."""
    folder = proc / str(pid)
    try:
        variables = (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        variables = []
    has_variable = b"ROCP_TOOL_ATTACH=1" in variables
    try:
        maps = (folder / "maps").read_text(errors="replace")
    except OSError:
        maps = ""
    threads = []
    for place in folder.glob("task/*/comm"):
        try:
            threads.append(place.read_text().strip())
        except OSError:
            continue  # a thread that ended
    is_ready = "librocprofiler-sdk-attach.so" in maps or "rocp-bg-attach" in threads
    return (
        Need(
            name="ROCP_TOOL_ATTACH",
            found="1" if has_variable else "not in the engine's environment",
            is_met=has_variable,
            help=None if has_variable else "start the engine with ROCP_TOOL_ATTACH=1",
        ),
        Need(
            name="attachment",
            found="loaded" if is_ready else "neither its library nor its thread is in the engine",
            is_met=is_ready,
            help=None if is_ready else "the engine must use HIP, with a rocprofiler-register that supports attachment",
        ),
    )


_ROCPROF_OPTIONS: Final = ("--kernel-trace", "--output-format", "csv", "-d")


def _rocprof_attach(program: str, pid: int, folder: Path, seconds: int) -> Sequence[str]:
    duration = ("--attach-duration-msec", str(1000 * seconds))
    return (program, "--attach", str(pid), *duration, *_ROCPROF_OPTIONS, str(folder))


def _rocprof_launch(program: str, _pid: int, folder: Path, _seconds: int) -> Sequence[str]:
    return (program, *_ROCPROF_OPTIONS, str(folder), "--")


def judge_rocprof(folder: Path) -> Trace:
    """Count the kernels in the trace files, and add up their time."""
    rows, total_ns = 0, 0
    names: set[str] = set()
    for path in sorted(folder.rglob("*kernel_trace.csv")):
        try:
            lines = path.read_text(errors="replace").replace("\0", "")
        except OSError:
            continue
        for row in csv.DictReader(io.StringIO(lines)):
            name = row.get("Kernel_Name")
            if not name:
                continue
            rows += 1
            names.add(name)
            start, end = str(row.get("Start_Timestamp")), str(row.get("End_Timestamp"))
            if start.isdecimal() and end.isdecimal():
                total_ns += max(0, int(end) - int(start))
    problem = None if rows else "no trace file holds a kernel, whatever the exit code says"
    return Trace(
        rows=rows, numbers={"kernels": rows, "kernel names": len(names), "kernel ns": total_ns}, problem=problem
    )


# --- nsys ------------------------------------------------------------------------------------------------
def _nsys_needs(_proc: Path) -> tuple[Need, ...]:
    is_open = Path("/dev/nvidiactl").exists()
    driver = Need(
        name="/dev/nvidiactl",
        found="there" if is_open else "missing",
        is_met=is_open,
        help=None if is_open else "load the NVIDIA driver",
    )
    return (program_need("nsys", "install Nsight Systems (nsys)"), driver)


def _nsys_launch(program: str, _pid: int, folder: Path, _seconds: int) -> Sequence[str]:
    # Without --kill=none the engine would be killed when the collection ends.
    options = ("--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--kill=none", "--force-overwrite=true")
    return (program, "profile", *options, "--output", str(folder / "trace"))


def judge_nsys(folder: Path) -> Trace:
    """Ask nsys for the kernels of its own report; a report without any is no trace."""
    reports = sorted(path for path in folder.glob("*.nsys-rep") if path.stat().st_size > 0)
    program = shutil.which("nsys")
    if not reports or program is None:
        return Trace(rows=0, problem="nsys wrote no report")
    argv = [
        program,
        "stats",
        "--report",
        "cuda_gpu_kern_sum",
        "--format",
        "csv",
        "--force-export=true",
        str(reports[0]),
    ]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Trace(rows=0, problem=f"nsys could not read its report: {type(error).__name__}")
    lines = done.stdout.replace("\0", "").splitlines()
    start = next((place for place, line in enumerate(lines) if "Instances" in line), len(lines))
    rows = total_ns = names = 0
    for row in csv.DictReader(lines[start:]):
        instances, time_ns = str(row.get("Instances")), str(row.get("Total Time (ns)"))
        if instances.isdecimal():
            names += 1
            rows += int(instances)
            total_ns += int(time_ns) if time_ns.isdecimal() else 0
    problem = None if rows else "the report holds no kernel"
    return Trace(rows=rows, numbers={"kernels": rows, "kernel names": names, "kernel ns": total_ns}, problem=problem)


PROFILERS: Final[Mapping[ProfilerTool, Profiler]] = {
    one.tool: one
    for one in (
        Profiler(
            tool="perf-stat",
            program="perf",
            mode="attach",
            environment={},
            command=_perf_command,
            needs=_perf_needs,
            needs_of_process=_no_needs,
            judge=judge_perf,
        ),
        Profiler(
            tool="rocprofv3-attach",
            program="rocprofv3",
            mode="attach",
            environment={"ROCP_TOOL_ATTACH": "1"},
            command=_rocprof_attach,
            needs=_rocprof_attach_needs,
            needs_of_process=rocprof_needs_of_process,
            judge=judge_rocprof,
        ),
        Profiler(
            tool="rocprofv3-launch",
            program="rocprofv3",
            mode="launch",
            environment={},
            command=_rocprof_launch,
            needs=_rocprof_needs,
            needs_of_process=_no_needs,
            judge=judge_rocprof,
        ),
        Profiler(
            tool="nsys",
            program="nsys",
            mode="launch",
            environment={},
            command=_nsys_launch,
            needs=_nsys_needs,
            needs_of_process=_no_needs,
            judge=judge_nsys,
        ),
    )
}
