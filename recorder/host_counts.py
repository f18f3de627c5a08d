"""What happened to the host during one load, as counts: what the protocol's rules of validity look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from recorder.telemetry.sample import Sample

_GAINS: Final[Mapping[str, str]] = {
    "engine_major_faults": "proc_majflt_count",
    "swap_in_pages": "swap_in_pages",
    "swap_out_pages": "swap_out_pages",
}
_PRESSURES: Final[Mapping[str, str]] = {
    "cpu_pressure_permille": "psi_cpu_some_us",
    "memory_pressure_permille": "psi_memory_some_us",
    "io_pressure_permille": "psi_io_some_us",
}
_GOVERNOR: Final = "cpu_governor_code"


def host_counts(samples: Sequence[Sample]) -> dict[str, int]:
    """Return each count over the time from the first sample to the last.

    A count whose field this host does not give, or that has fewer than two readings, is not there: absent is not zero.
    """
    series: dict[str, dict[str, list[int]]] = {}
    for sample in samples:
        for reading in sample.readings:
            if reading.raw is not None:
                series.setdefault(reading.field.name, {}).setdefault(reading.field.instance, []).append(reading.raw)
    counts = {name: gain for name, field in _GAINS.items() if (gain := _gain(series.get(field))) is not None}
    if len(samples) > 1:
        length_us = (samples[-1].t_mid_ns - samples[0].t_mid_ns) // 1000
        for name, field in _PRESSURES.items():
            gain = _gain(series.get(field))
            if gain is not None and length_us > 0:
                counts[name] = 1000 * gain // length_us
    if _GOVERNOR in series:
        codes = series[_GOVERNOR].values()
        counts["governor_changes"] = sum(before != after for one in codes for before, after in pairwise(one))
    return counts


def _gain(instances: Mapping[str, Sequence[int]] | None) -> int | None:
    """Return how far a counter rose, over its instances; None where one has too few readings or fell."""
    if instances is None:
        return None
    gains = [values[-1] - values[0] for values in instances.values() if len(values) > 1]
    return sum(gains) if len(gains) == len(instances) and min(gains) >= 0 else None
