"""What the machine did, from the evidence; and clocks beside rates, from made-up means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reports.collect import collect_facts
from reports.facts import Facts
from reports.machine import AnomalyFact, EnergyFact, LoadRates, MachineFact, SensorFact, clock_views
from reports.machine_section import anomaly_lines, clock_rows, energy_rows, machine_tables, sensor_rows
from reports.markdown import render_markdown


def clock(mean: int | None, *, phase: str = "generation", name: str = "gfx_clock_hz") -> SensorFact:
    return SensorFact(
        workload="cold-512", request=4, phase=phase, name=name, device="gpu0", unit="hz",
        status="OK" if mean is not None else "INSUFFICIENT", n=9 if mean is not None else 3, coverage_pct=85.0, mean=mean,
        quarters=(mean, mean, mean, None), minimum=mean, maximum=mean, is_frozen=False,
    )  # fmt: skip


def load(arm: Any, rate: float, *sensors: SensorFact) -> LoadRates:
    return LoadRates(arm=arm, machine=MachineFact(sensors=sensors), rates={("cold-512", "generation"): rate})


def test_a_rate_that_falls_with_the_clock_is_consistent_and_no_cause_is_named() -> None:
    (view,) = clock_views([load("baseline", 40.0, clock(2_000_000_000)), load("candidate", 39.8, clock(1_990_000_000))])
    assert (view.clock_ratio, view.rate_ratio) == (pytest.approx(0.995), pytest.approx(0.995))
    assert view.is_consistent


def test_a_rate_that_falls_without_the_clock_is_not_consistent() -> None:
    (view,) = clock_views([load("baseline", 40.0, clock(2_000_000_000)), load("candidate", 38.0, clock(2_000_000_000))])
    assert not view.is_consistent
    assert (view.n_baseline, view.n_candidate) == (1, 1)


def test_loads_are_averaged_on_the_scale_of_ratios() -> None:
    rates = [load("baseline", 10.0, clock(1)), load("baseline", 40.0, clock(4)), load("candidate", 20.0, clock(2))]
    (view,) = clock_views(rates)
    assert (view.rate_ratio, view.clock_ratio, view.n_baseline) == (pytest.approx(1), pytest.approx(1), 2)


def test_without_a_mean_in_both_arms_there_is_no_view() -> None:
    assert clock_views([load("baseline", 40.0, clock(5)), load("candidate", 40.0, clock(None))]) == ()
    assert clock_views([load("baseline", 40.0, clock(5)), load("candidate", 40.0)]) == ()
    assert clock_views([]) == ()


def test_the_drivers_own_clock_goes_before_that_of_the_firmwares_table() -> None:
    both = (clock(2_000), clock(7_000, name="smu_gfx_clock_hz"))
    (view,) = clock_views([load("baseline", 1.0, *both), load("candidate", 1.0, clock(2_000))])
    assert view.clock_ratio == pytest.approx(1)


def test_a_campaign_on_this_host_says_how_many_cores_the_engine_used(finished: Any) -> None:
    facts = collect_facts(finished.store, "latest")
    for one in facts.loads:
        assert {(cores.workload, cores.phase) for cores in one.machine.cores} <= {
            ("cold", "prefill"),
            ("cold", "generation"),
        }
        assert all(cores.cores >= 0 for cores in one.machine.cores)


def with_machine(facts: Facts) -> Facts:
    energy = EnergyFact(
        workload="cold-512", request=4, phase="generation", domain="board", device="gpu0", method="counter",
        energy_uj=1_800_000_000, bound_uj=60_000_000, coverage_pct=100.0, n=7, reason=None,
        per_token_uj={"generated token": 14_062_500.0},
    )  # fmt: skip
    nothing = replace(
        energy,
        phase="prefill",
        energy_uj=None,
        bound_uj=None,
        reason="low_coverage",
        per_token_uj={},
        method="trapezoid",
        coverage_pct=80.0,
    )
    anomaly = AnomalyFact(
        kind="clock_collapse", start_s=12.25, length_s=2.0, field="gfx_clock_hz", value=1_700_000_000, cause="power",
        workload="cold-512", phase="prefill",
    )  # fmt: skip
    machine = MachineFact(
        sensors=(clock(1_980_000_000), clock(None, phase="prefill")),
        energies=(energy, nothing),
        anomalies=(anomaly, anomaly),
    )
    loads = tuple(replace(one, machine=machine) for one in facts.loads)
    measured = [load(one.arm, 40.0, *machine.sensors) for one in loads if not one.is_burn_in]
    return replace(facts, loads=loads, clock_views=clock_views(measured))


def test_n_and_coverage_stand_beside_every_mean_and_too_few_samples_give_none(passed: Facts) -> None:
    rows = sensor_rows(with_machine(passed))
    assert rows[0][3:] == (
        "generation",
        "gfx_clock_hz gpu0",
        "1,980 MHz",
        9,
        "85 %",
        "1,980 MHz, 1,980 MHz, 1,980 MHz, -",
    )
    assert rows[1][3:] == ("prefill", "gfx_clock_hz gpu0", "INSUFFICIENT", 3, "85 %", "-")


def test_energy_carries_method_domain_coverage_and_bound_or_a_reason(passed: Facts) -> None:
    rows = energy_rows(with_machine(passed))
    assert rows[0][3:] == ("generation", "board gpu0", "counter", "1,800.0 J ± 60.0 J", "-", "14.1 J a generated token")
    assert rows[1][3:] == ("prefill", "board gpu0", "trapezoid", "the samples cover under 95 % of it", "80 %", "-")


def test_clocks_beside_rates_are_called_consistent_or_not_and_nothing_else(passed: Facts) -> None:
    (row,) = clock_rows(with_machine(passed))
    assert row[-3:] == ("1.0000", "1.0000", "consistent")
    text = render_markdown(with_machine(passed))
    section = text[text.index("## The machine") :]
    assert "because" not in section[: section.index("## What was not")]


def test_anomalies_are_told_once_a_kind_with_their_cause(passed: Facts) -> None:
    lines = [*anomaly_lines(with_machine(passed))]
    assert lines[0] == (
        "A1: clock_collapse in prefill of cold-512, 2 times, first 12.2 s after sampling began, gfx_clock_hz "
        "1,700,000,000, cause: power"
    )


def test_a_host_that_shows_nothing_has_no_section(passed: Facts) -> None:
    assert [*machine_tables(passed)] == []
    assert "## The machine" not in render_markdown(passed)
