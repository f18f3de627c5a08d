"""What this host is, and what state it is in: facts for the lock and for the checks before a campaign.

``host_facts`` holds what must not change between two loads of one campaign; ``host_state`` what may.
Neither holds a host name, a serial number or a path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from recorder.telemetry.reader import FileReader, Reader, text_of

Fact = str | int | None

_CPUFREQ: Final = "/sys/devices/system/cpu/cpufreq/policy*"


def host_facts(reader: Reader | None = None) -> Mapping[str, Fact]:
    """Return CPU, memory, kernel and power policy. A fact that cannot be had is None.

    Texts that differ between CPUs are joined with a comma, each once.
    """
    import psutil

    reader = reader or FileReader()
    system = os.uname()
    memory_bytes: int | None
    try:
        memory_bytes = psutil.virtual_memory().total
    except (OSError, RuntimeError, ValueError):
        memory_bytes = None
    return {
        "cpu_model": _cpu_model(reader),
        "cpu_logical_count": psutil.cpu_count(logical=True),
        "cpu_physical_count": psutil.cpu_count(logical=False),
        "numa_node_count": len(reader.glob("/sys/devices/system/node/node[0-9]*")) or None,
        "memory_total_bytes": memory_bytes,
        "kernel": system.release,
        "kernel_build": system.version,
        "machine": system.machine,
        "clock_ticks_per_s": os.sysconf("SC_CLK_TCK"),
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "clock_source": text_of(reader, "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "cpu_governors": _joined(reader, f"{_CPUFREQ}/scaling_governor"),
        "cpu_frequency_drivers": _joined(reader, f"{_CPUFREQ}/scaling_driver"),
        "energy_preferences": _joined(reader, f"{_CPUFREQ}/energy_performance_preference"),
        "cpu_boost": text_of(reader, "/sys/devices/system/cpu/cpufreq/boost"),
        "amd_pstate": text_of(reader, "/sys/devices/system/cpu/amd_pstate/status"),
        "smt": text_of(reader, "/sys/devices/system/cpu/smt/control"),
        "platform_profile": text_of(reader, "/sys/firmware/acpi/platform_profile"),
        "huge_pages": text_of(reader, "/sys/kernel/mm/transparent_hugepage/enabled"),
        "is_virtual": _has_hypervisor(reader),
    }


def firmware_facts(reader: Reader | None = None) -> Mapping[str, Fact]:
    """Return firmware, microcode and GPU drivers: what an update changes while the hardware stays. Absent is None."""
    reader = reader or FileReader()
    return {
        "bios_version": text_of(reader, "/sys/class/dmi/id/bios_version"),
        "bios_date": text_of(reader, "/sys/class/dmi/id/bios_date"),
        "microcode": _microcode(reader),
        "gpu_drivers": _drivers(reader),
        "gpu_firmware": _joined(reader, "/sys/class/drm/card[0-9]*/device/vbios_version"),
    }


def _drivers(reader: Reader) -> str | None:
    versions = {name: text_of(reader, f"/sys/module/{name}/version") for name in ("amdgpu", "nvidia")}
    return ",".join(f"{name} {version}" for name, version in versions.items() if version is not None) or None


def _microcode(reader: Reader) -> str | None:
    for line in (text_of(reader, "/proc/cpuinfo") or "").split("\n"):
        name, colon, value = line.partition(":")
        if colon and name.strip() == "microcode":
            return value.strip() or None
    return None


def host_state(reader: Reader | None = None) -> Mapping[str, Fact]:
    """Return what changes from minute to minute: boot time, free memory, swap, load."""
    import psutil

    reader = reader or FileReader()
    state: dict[str, Fact] = {
        "boot_id": text_of(reader, "/proc/sys/kernel/random/boot_id"),
        "boot_time_s": None,
        "memory_available_bytes": None,
        "swap_total_bytes": None,
        "swap_used_bytes": None,
        "load_1min_milli": None,
        "process_count": None,
    }
    try:
        state["boot_time_s"] = round(psutil.boot_time())
        state["memory_available_bytes"] = psutil.virtual_memory().available
        swap = psutil.swap_memory()
        state["swap_total_bytes"], state["swap_used_bytes"] = swap.total, swap.used
        state["load_1min_milli"] = round(os.getloadavg()[0] * 1000)
        state["process_count"] = len(psutil.pids())
    except (OSError, RuntimeError, ValueError):
        # What was read before the failure stays; the rest is absent.
        return state
    return state


def _cpu_model(reader: Reader) -> str | None:
    for line in (text_of(reader, "/proc/cpuinfo") or "").split("\n"):
        name, colon, value = line.partition(":")
        if colon and name.strip() in {"model name", "Model", "cpu model", "Hardware"}:
            return " ".join(value.split())
    return None


def _has_hypervisor(reader: Reader) -> int | None:
    for line in (text_of(reader, "/proc/cpuinfo") or "").split("\n"):
        name, colon, value = line.partition(":")
        if colon and name.strip() == "flags":
            return int("hypervisor" in value.split())
    return None


def _joined(reader: Reader, pattern: str) -> str | None:
    texts = {text for path in reader.glob(pattern) if (text := text_of(reader, path)) is not None}
    return ",".join(sorted(texts)) or None
