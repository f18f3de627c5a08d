"""Rules about the host that take a whole block out of the losses: fixed beforehand, blind to every rate.

A load breaks a rule where a count over its time passes the stated most. Its block is then left out, because half a
block shows drift as a loss; it stays in the evidence, and each loss is given both ways. A rule whose reading this host
does not give is no rule that was kept: it is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocols.measurements import LoadMeasurement
from protocols.schema import ValidityRule

READING_WORDS: Mapping[str, str] = {
    "engine_major_faults": "major page faults of the engine",
    "swap_in_pages": "pages swapped in",
    "swap_out_pages": "pages swapped out",
    "cpu_pressure_permille": "thousandths of the time waiting for a CPU",
    "memory_pressure_permille": "thousandths of the time waiting for memory",
    "io_pressure_permille": "thousandths of the time waiting for a disk",
    "governor_changes": "changes of the CPU governor",
    "cpus_off_performance_governor": "CPU clock policies without the performance governor at once",
    "profile_changes": "changes of the power profile or the GPU's performance level",
    "clock_collapses": "collapses of the GPU's clock within a phase",
    "throttle_events": "times that the GPU's clock was throttled",
    "power_throttle_events": "times that the GPU's clock was throttled for power or current",
    "thermal_throttle_events": "times that the GPU's clock was throttled for heat or protection",
    "foreign_gpu_processes": "processes of others on the GPU at once",
    "memory_used_permille": "thousandths of the memory in use at the fullest moment",
    "engine_runq_wait_permille": "thousandths of a thread's time waiting for a CPU",
    "oom_kills": "processes killed for memory",
    "longest_sample_gap_ms": "ms without a sample at the longest",
}


def broken_rules(load: LoadMeasurement, rules: Sequence[ValidityRule]) -> tuple[str, ...]:
    """Return a phrase for each rule that a load broke."""
    counts = load.host or {}
    return tuple(
        f"{load.label} had {counts[rule.reading]} {READING_WORDS[rule.reading]}, at most {rule.most} allowed"
        for rule in rules
        if counts.get(rule.reading, 0) > rule.most
    )


def unchecked_readings(loads: Sequence[LoadMeasurement], rules: Sequence[ValidityRule]) -> dict[str, tuple[str, ...]]:
    """Return the readings that rules need and some loads do not give, with these loads, in the order of the rules.

    A count of a part of the load decides nothing unless it is over the most already.
    """
    found = {rule.reading: tuple(load.label for load in loads if not _is_decided(load, rule)) for rule in rules}
    return {reading: labels for reading, labels in found.items() if labels}


def _is_decided(load: LoadMeasurement, rule: ValidityRule) -> bool:
    count = (load.host or {}).get(rule.reading)
    return count is not None and (count > rule.most or rule.reading not in load.host_partial)


def invalid_blocks(loads: Sequence[LoadMeasurement], rules: Sequence[ValidityRule]) -> dict[int, tuple[str, ...]]:
    """Return the blocks that are left out of the losses, each with why, in order. Burn-in loads break nothing."""
    found: dict[int, tuple[str, ...]] = {}
    for load in loads:
        broken = broken_rules(load, rules)
        if broken and load.block is not None:
            found[load.block] = (*found.get(load.block, ()), *broken)
    return dict(sorted(found.items()))
