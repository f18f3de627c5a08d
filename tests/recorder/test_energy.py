"""Energy of a phase: golden trains with exact expected values."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from recorder.energy import best_energy, counter_energy, power_energy
from recorder.phases import Phase
from recorder.trains import Point

MS = 1_000_000
PERIOD = 250 * MS
WATT = 1_000_000  # uW


def phase(start_ms: int, end_ms: int) -> Phase:
    return Phase(name="generation", start_ns=start_ms * MS, end_ns=end_ms * MS)


def every(end_ms: int, value, period_ms: int = 250) -> tuple[Point, ...]:
    return tuple(Point(ms * MS, value(ms)) for ms in range(0, end_ms + 1, period_ms))


def of_power(points, interval, **options):
    return power_energy(points, interval, domain="socket", period_ns=PERIOD, **options)


def of_counter(points, interval, **options):
    return counter_energy(points, interval, domain="package", period_ns=PERIOD, **options)


def test_constant_power_times_time() -> None:
    found = of_power(every(4000, lambda ms: 100 * WATT), phase(500, 3500))
    assert (found.energy_uj, found.coverage, found.bound_uj) == (300 * 10**6, 1, 0)
    assert (found.method, found.domain, found.n, found.reason) == ("trapezoid", "socket", 13, None)


def test_the_edges_of_a_phase_are_interpolated() -> None:
    """A ramp of 1 W a ms from 0: between 300 and 1210 ms it averages 755 W."""
    found = of_power(every(2000, lambda ms: ms * WATT), phase(300, 1210))
    assert (found.energy_uj, found.n) == (755 * 910 * 1000, 3)


def test_a_phase_between_two_samples_has_no_energy_from_power() -> None:
    found = of_power(every(2000, lambda ms: 100 * WATT), phase(300, 320))
    assert (found.energy_uj, found.reason, found.n, found.coverage) == (None, "unresolved", 0, 1)


def test_a_step_in_power_across_an_edge_is_in_the_bound_of_a_filtered_sensor() -> None:
    points = every(6000, lambda ms: (500 if 2000 <= ms < 4000 else 100) * WATT)
    found = of_power(points, phase(2000, 4000), window_us=1_000_000)
    # 400 W on either side, for one window each; and the samples cannot say when within 250 ms the power fell.
    assert found.bound_uj == 2 * 400 * 10**6 + 50 * 10**6
    assert of_power(points, phase(2500, 3500), window_us=100_000).bound_uj == 0


def test_a_gap_leaves_no_figure_where_it_costs_more_than_five_percent() -> None:
    points = tuple(point for point in every(40_000, lambda ms: 50 * WATT) if not 10_000 * MS < point.t_ns < 11_500 * MS)
    short = of_power(points, phase(0, 40_000))
    assert (short.coverage, short.energy_uj) == (Fraction(38_500, 40_000), Fraction(38_500 * 50_000))
    found = of_power(points, phase(0, 20_000))
    assert (found.energy_uj, found.bound_uj, found.reason) == (None, None, "low_coverage")
    assert found.coverage == Fraction(18_500, 20_000)


def test_no_samples_give_no_figure() -> None:
    assert of_power((), phase(0, 1000)).reason == "no_samples"
    assert of_counter((), phase(0, 1000)).reason == "no_samples"


def test_a_counter_gives_its_difference_with_the_bound_of_its_edges() -> None:
    counter = every(4000, lambda ms: 7_000_000 + ms * 100_000)  # 100 W
    found = of_counter(counter, phase(500, 3500))
    assert (found.energy_uj, found.bound_uj, found.method, found.domain) == (300 * 10**6, 0, "counter", "package")
    between = of_counter(counter, phase(600, 3400))
    assert (between.energy_uj, between.bound_uj) == (280 * 10**6, 2 * 20 * 10**6)


def test_a_reading_beside_an_edge_narrows_the_bound_of_a_counter_that_is_read_once_a_second() -> None:
    """100 W, then 600 W from 2000 ms on: the edge of the phase is read 4 ms late."""

    def joules(ms: int) -> int:
        return (ms * 100 + max(0, ms - 2000) * 500) * 1000

    times = [*range(0, 8001, 1000), 2004, 5004]
    counter = tuple(Point(ms * MS, joules(ms)) for ms in sorted(times))
    found = of_counter(counter, phase(2002, 5002))
    assert found.energy_uj == 1800 * 10**6
    # Twice 600 W for 2 ms at each edge, and not what the counter moved within a second.
    assert found.bound_uj == 2 * 2 * 600 * 2 * 1000


def test_the_update_period_of_a_counter_widens_its_bound() -> None:
    counter = every(4000, lambda ms: ms * 100_000)
    assert of_counter(counter, phase(500, 3500), update_ns=100 * MS).bound_uj == 2 * 10 * 10**6


def test_a_counter_that_is_read_rarely_still_counts() -> None:
    counter = every(4000, lambda ms: ms * 100_000, period_ms=1000)
    found = of_counter(counter, phase(1000, 3000))
    assert (found.energy_uj, found.bound_uj, found.coverage) == (200 * 10**6, 0, 0)


def test_a_counter_that_wraps_goes_on_and_one_that_was_reset_gives_nothing() -> None:
    modulus = 262_143_328_851
    counter = every(2000, lambda ms: (modulus - 50_000_000 + ms * 100_000) % modulus)
    assert of_counter(counter, phase(0, 2000), modulus_uj=modulus).energy_uj == 200 * 10**6
    reset = of_counter(counter, phase(0, 2000))
    assert (reset.energy_uj, reset.reason) == (None, "counter_reset")


def test_a_counter_that_does_not_span_the_phase_gives_nothing() -> None:
    assert of_counter(every(2000, lambda ms: ms), phase(1000, 2001)).reason == "not_spanned"


def test_energy_is_shared_out_by_tokens() -> None:
    found = of_power(every(4000, lambda ms: 100 * WATT), phase(500, 3500))
    assert found.per_token_uj(128) == Fraction(300 * 10**6, 128)
    assert found.per_token_uj(0) is None
    assert found.per_token_uj(None) is None
    assert of_power((), phase(0, 1)).per_token_uj(5) is None


def test_the_counter_comes_first_and_the_reason_stays() -> None:
    interval = phase(500, 3500)
    counter, power = of_counter(every(4000, lambda ms: ms), interval), of_power(every(4000, lambda ms: 1), interval)
    nothing = of_counter((), interval)
    assert best_energy(counter, power) is counter
    assert best_energy(nothing, power) is power
    assert best_energy(nothing, None) is nothing
    assert best_energy(None, None) is None


@given(st.lists(st.integers(300 * WATT, 700 * WATT), min_size=9, max_size=40), st.integers(1, 7))
def test_splitting_a_phase_conserves_energy_and_the_counter_agrees_with_the_power(watts: list[int], cut: int) -> None:
    power = tuple(Point(index * PERIOD, value) for index, value in enumerate(watts))
    end_ms = 250 * (len(watts) - 1)
    middle = cut * end_ms // 8
    whole, left, right = (of_power(power, phase(a, b)) for a, b in ((0, end_ms), (0, middle), (middle, end_ms)))
    assert whole.energy_uj == left.energy_uj + right.energy_uj
    total, counter = Fraction(0), [Point(0, 0)]
    for before, after in pairwise(power):
        total += Fraction(before.raw + after.raw, 8)
        counter.append(Point(after.t_ns, int(total)))
    counted = of_counter(counter, phase(0, middle))
    assert abs(counted.energy_uj - left.energy_uj) <= counted.bound_uj + 2


def test_a_phase_that_is_shorter_than_the_sensor_resolves_has_no_figure() -> None:
    """Seen on an H200: a prefill of 1 ms, 0.6 J on the counter, and an update period of 100 ms."""
    counter = tuple(Point(ms * MS, ms * 600_000) for ms in (0, 1000, 1002, 2000))
    found = of_counter(counter, phase(1000, 1002), update_ns=100 * MS)
    assert (found.energy_uj, found.reason) == (None, "unresolved")
    assert found.bound_uj == 120 * 10**6
    assert found.per_token_uj(1024) is None
