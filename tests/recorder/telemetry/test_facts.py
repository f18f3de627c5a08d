"""Facts about a host."""

from __future__ import annotations

import os
import socket

from recorder.telemetry.facts import firmware_facts, host_facts, host_state


def test_facts_come_from_the_tree_and_are_none_where_it_has_none(tree) -> None:
    facts = host_facts(tree.reader())
    assert facts["cpu_model"] is None
    assert facts["cpu_governors"] is None
    assert facts["is_virtual"] is None
    assert facts["memory_total_bytes"] > 0
    policy = "/sys/devices/system/cpu/cpufreq/policy"
    tree.write(
        {
            "/proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD   EPYC 9999\nflags\t\t: fpu hypervisor sse\n",
            f"{policy}0/scaling_governor": "powersave",
            f"{policy}1/scaling_governor": "performance",
            f"{policy}2/scaling_governor": "powersave",
            "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
        }
    )
    facts = host_facts(tree.reader())
    assert (facts["cpu_model"], facts["is_virtual"]) == ("AMD EPYC 9999", 1)
    assert (facts["cpu_governors"], facts["clock_source"]) == ("performance,powersave", "tsc")


def test_facts_of_this_host_stay_the_same_and_name_nobody() -> None:
    first, second = host_facts(), host_facts()
    assert first == second
    assert first["cpu_logical_count"] == os.cpu_count()
    assert first["kernel"] == os.uname().release
    assert socket.gethostname() not in first.values()
    assert all(value is None or isinstance(value, str | int) for value in first.values())


def test_the_state_of_this_host_is_read() -> None:
    state = host_state()
    assert state["boot_time_s"] > 1_000_000_000
    assert state["memory_available_bytes"] > 0
    assert state["process_count"] > 0


def test_firmware_and_drivers_come_from_the_tree_and_are_none_where_it_has_none(tree) -> None:
    assert set(firmware_facts(tree.reader()).values()) == {None}
    tree.write(
        {
            "/sys/class/dmi/id/bios_version": "1.07",
            "/sys/class/dmi/id/bios_date": "09/12/2026",
            "/proc/cpuinfo": "processor\t: 0\nmicrocode\t: 0xb204037\n",
            "/sys/module/amdgpu/version": "6.14.14",
            "/sys/class/drm/card1/device/vbios_version": "113-STRXLGEN-001",
        }
    )
    assert firmware_facts(tree.reader()) == {
        "bios_version": "1.07",
        "bios_date": "09/12/2026",
        "microcode": "0xb204037",
        "gpu_drivers": "amdgpu 6.14.14",
        "gpu_firmware": "113-STRXLGEN-001",
    }
