"""Telemetry of a load in one line: coverage, shares and counters, from made-up samples."""

from __future__ import annotations

import pandas as pd
import pytest

from reports.tables import Span
from reports.telemetry import telemetry_facts

SECOND = 1_000_000_000


class MadeUpTables:
    """Answers the three queries from lists."""

    def __init__(self, samples: list[int], readings: list[tuple[int, str, str, int]], span: Span | None) -> None:
        self._samples = pd.DataFrame(
            [
                {
                    "entry_seq": 7,
                    "sample": k,
                    "t_begin_ns": t,
                    "t_end_ns": t + 1000,
                    "cpu_ns": 10_000_000,
                    "missed_ticks": k == 1,
                }
                for k, t in enumerate(samples)
            ],
            columns=["entry_seq", "sample", "t_begin_ns", "t_end_ns", "cpu_ns", "missed_ticks"],
        )
        rows = [
            {"entry_seq": 7, "sample": k, "name": name, "instance": one, "raw": raw} for k, name, one, raw in readings
        ]
        self._readings = pd.DataFrame(rows, columns=["entry_seq", "sample", "name", "instance", "raw"])
        self._span = span

    def samples(self, _campaign: str) -> pd.DataFrame:
        return self._samples

    def readings(self, _campaign: str) -> pd.DataFrame:
        return self._readings

    def request_spans(self, _campaign: str) -> dict[int, Span]:
        return {} if self._span is None else {7: self._span}


def fact(
    samples: list[int], readings: list[tuple[int, str, str, int]], span: Span | None = None, ticks: int | None = 100
):
    tables = MadeUpTables(samples, readings, span)
    return telemetry_facts(tables, "c", period_ms=250, ticks_per_s=ticks)[7]  # type: ignore[arg-type]


def test_counters_become_shares_of_the_time_between_first_and_last_sample() -> None:
    found = fact(
        [0, SECOND],
        [
            (0, "cpu_busy_ticks", "", 1000),
            (1, "cpu_busy_ticks", "", 1150),
            (0, "cpu_idle_ticks", "", 500),
            (1, "cpu_idle_ticks", "", 550),
            (0, "proc_utime_ticks", "", 10),
            (1, "proc_utime_ticks", "", 150),
            (0, "proc_stime_ticks", "", 0),
            (1, "proc_stime_ticks", "", 10),
            (0, "proc_rss_peak_bytes", "", 5),
            (1, "proc_rss_peak_bytes", "", 9),
        ],
    )
    assert found.host_cpu_busy_pct == pytest.approx(75)
    assert found.engine_cpu_pct == pytest.approx(150, rel=1e-5)
    assert found.sampler_cpu_pct == pytest.approx(2, rel=1e-5)
    assert (found.peak_rss_bytes, found.samples, found.missed_ticks) == (9, 2, 1)


def test_instances_are_summed_and_a_counter_that_fell_gives_nothing() -> None:
    packages = [
        (0, "package_energy_uj", "a", 0),
        (1, "package_energy_uj", "a", 3_000_000),
        (0, "package_energy_uj", "b", 5),
    ]
    whole = fact([0, SECOND], [*packages, (1, "package_energy_uj", "b", 1_000_005)])
    assert whole.energy_j == pytest.approx(4.0)
    assert fact([0, SECOND], [*packages, (1, "package_energy_uj", "b", 1)]).energy_j is None
    assert fact([0, SECOND], packages).energy_j is None, "one value is no difference"


def test_what_was_not_sampled_is_absent_and_never_zero() -> None:
    found = fact([0, SECOND], [], ticks=None)
    absent = (
        found.host_cpu_busy_pct,
        found.engine_cpu_pct,
        found.peak_rss_bytes,
        found.cpu_clock_mhz,
        found.cpu_temp_c,
    )
    assert absent == (None,) * 5


@pytest.mark.parametrize(
    ("span", "covers"),
    [
        (Span(10, SECOND), True),
        (Span(10, SECOND + 200_000_000), True),
        (Span(10, SECOND + 300_000_000), False),
        (Span(-1, SECOND), False),
        (None, False),
    ],
)
def test_coverage_means_a_sample_before_the_first_request_and_one_within_a_period_of_the_end(
    span: Span | None, covers: bool
) -> None:
    assert fact([0, SECOND], [], span).covers_requests is covers


def test_a_campaign_without_samples_has_no_telemetry() -> None:
    assert telemetry_facts(MadeUpTables([], [], None), "c", period_ms=250, ticks_per_s=100) == {}  # type: ignore[arg-type]
