"""What this host can measure: each quantity with its source or a reason, profilers, and a protocol's wishes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.doctor_line import Line
from harness.profilers.diagnostics import unmet
from harness.profilers.tools import PROFILERS, version_of
from protocols.schema import Protocol
from protocols.validity import READING_WORDS
from recorder.host_counts import readings_of_fields
from recorder.telemetry.registry import Selection

_RAPL: Final = "run as root, or chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """Something worth measuring. Any of the fields serves; `help` is the command where none does."""

    name: str
    fields: tuple[str, ...]
    is_gpu: bool = False
    help: str | None = None


QUANTITIES: Final = (
    Quantity(name="GPU clock", fields=("gfx_clock_hz", "smu_gfx_clock_hz"), is_gpu=True),
    Quantity(
        name="GPU power",
        fields=("board_power_instant_uw", "board_power_uw", "socket_power_uw", "smu_socket_power_uw"),
        is_gpu=True,
    ),
    Quantity(name="GPU energy", fields=("board_energy_uj", "socket_energy_uj"), is_gpu=True),
    Quantity(name="GPU temperature", fields=("temp_gpu_mc", "temp_edge_mc", "smu_temp_gfx_mc"), is_gpu=True),
    Quantity(name="GPU load", fields=("gfx_busy_ppm", "smu_gfx_busy_ppm", "smu_gfx_activity_raw"), is_gpu=True),
    Quantity(name="GPU memory", fields=("vram_used_bytes", "gtt_used_bytes"), is_gpu=True),
    Quantity(
        name="throttling",
        fields=("clock_event_bits", "throttle_bits", "throttle_spl_raw", "violation_ppt_pwr_raw"),
        is_gpu=True,
    ),
    Quantity(name="others on the GPU", fields=("gpu_foreign_process_count",), is_gpu=True),
    Quantity(name="CPU clock", fields=("cpu_clock_hz",), help="modprobe cpufreq drivers; virtual machines show none"),
    Quantity(name="governor", fields=("cpu_governor_code",)),
    Quantity(name="CPU temperature", fields=("cpu_temp_mc", "zone_temp_mc"), help="modprobe k10temp or coretemp"),
    Quantity(name="CPU energy", fields=("package_energy_uj",), help=_RAPL),
    Quantity(name="pressure", fields=("psi_memory_some_us",), help="boot with psi=1"),
    Quantity(name="paging", fields=("swap_in_pages",)),
    Quantity(name="engine waits", fields=("proc_runq_wait_ns",)),
    Quantity(name="engine faults", fields=("proc_majflt_count",)),
)


def sensor_lines(selection: Selection) -> Iterator[Line]:
    """Yield a line for each quantity. GPU quantities become one line on a host without a GPU."""
    sources = {spec.name: spec.source for one in selection.providers for spec in one.describe()}
    absent = next((report for report in selection.reports if report.provider == "gpu"), None)
    if absent is not None:
        why = "; ".join(f"{name}: {' '.join(reason.split())}" for name, reason in absent.refused.items())
        yield Line(topic="sensors", name="GPU", state="warn", found=f"{absent.reason}: {why}")
    for quantity in QUANTITIES:
        if quantity.is_gpu and absent is not None:
            continue
        found = [f"{name} ({sources[name]})" for name in quantity.fields if name in sources]
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            yield Line(topic="sensors", name=quantity.name, state="ok", found=found[0] + more)
        else:
            yield Line(
                topic="sensors",
                name=quantity.name,
                state="warn",
                found=_reason(selection, quantity),
                next=quantity.help,
            )


def _reason(selection: Selection, quantity: Quantity) -> str:
    """Return why none of the fields is there: what a provider said about it, else that none promises it."""
    for report in selection.reports:
        for key, reason in report.refused.items():
            if key.partition("@")[0] in quantity.fields:
                return f"none: {reason}"
    return "none: no source of this host gives it"


def profiler_lines(proc: Path = Path("/proc")) -> Iterator[Line]:
    """Yield a line for each profiler: ready, or what it lacks and what would help."""
    for profiler in PROFILERS.values():
        needs = profiler.needs(proc)
        missing = unmet(needs)
        helps = [need.help for need in needs if not need.is_met and need.help]
        yield Line(
            topic="profilers",
            name=profiler.tool,
            state="ok" if missing is None else "warn",
            found=version_of(profiler.program) or "ready"
            if missing is None
            else "; ".join(f"{need.name}: {need.found}" for need in needs if not need.is_met),
            next=helps[0] if helps else None,
        )


def requirement_lines(protocol: Protocol, selection: Selection) -> Iterator[Line]:
    """Yield a line for everything that a protocol asks of the sensors and profilers of this host."""
    names = frozenset(spec.name for one in selection.providers for spec in one.describe())
    possible = readings_of_fields(names)
    for rule in protocol.validity:
        is_met = rule.reading in possible
        words = READING_WORDS[rule.reading]
        yield Line(
            topic="protocol",
            name=rule.reading,
            state="ok" if is_met else "missing",
            found=f"{words}: at most {rule.most}"
            if is_met
            else f"{words}: this host cannot show it, so the rule is idle",
        )
    for diagnostic in protocol.diagnostics:
        missing = unmet(PROFILERS[diagnostic.tool].needs(Path("/proc")))
        found = f"{diagnostic.tool} can run" if missing is None else f"will be NOT_RUN: {missing}"
        yield Line(topic="protocol", name=diagnostic.id, state="ok" if missing is None else "missing", found=found)
