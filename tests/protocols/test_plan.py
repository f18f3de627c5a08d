from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from protocols.load import LIBRARY, LoadedProtocol, load_protocol
from protocols.look_chances import LookChances, look_chances
from protocols.looks import looks_of
from protocols.plan import Chances, Noise, chances_at, minimal_detectable_loss, plan_protocol
from protocols.stats import Calibration, Observation, decide_loss, fit_loss

CLAIM_SCREEN = ("claim: non_inferiority", "claim: screen")
NO_MIRROR = (
    '  - {id: mirror, kind: mirror_gap, workload: cold-512, metric: generation_rate, limit_pp: "3", required: false}\n',
    "",
)


def test_two_blocks_decide_ten_percent_on_a_shared_machine(served_pair: LoadedProtocol) -> None:
    plan = plan_protocol(served_pair.protocol, Noise(sigma=0.04), true_losses_pct=(0, 10, 30))
    assert len(plan.labels) == 9
    assert (plan.labels[0], plan.measured_loads, plan.residual_df, plan.requests) == ("B0", 8, 5, 18)
    assert plan.can_qualify
    none, margin, slow = plan.gates[0].chances
    assert none.p_pass == pytest.approx(0.94, abs=0.005)
    assert (margin.p_pass, margin.p_fail) == (pytest.approx(0.05, abs=1e-9), pytest.approx(0.05, abs=1e-9))
    assert slow.p_fail > 0.9999


@pytest.mark.parametrize(
    ("loads", "sigma", "percent"),
    [(8, 0.01, 2.08), (12, 0.01, 1.57), (16, 0.005, 0.66), (24, 0.003, 0.32), (4, 0.005, 3.9)],
)
def test_the_smallest_resolvable_loss_is_that_of_the_published_table(loads: int, sigma: float, percent: float) -> None:
    smallest = minimal_detectable_loss(math.sqrt(4 / loads), loads - 3, Noise(sigma=sigma))
    assert smallest is not None
    # The table gives the distance on the log scale, to two or three figures.
    assert -100 * math.log1p(-smallest) == pytest.approx(percent, rel=0.02)


def test_more_blocks_resolve_less(edited: Callable[..., LoadedProtocol]) -> None:
    found = [
        plan_protocol(edited(("blocks: 2", f"blocks: {blocks}")).protocol, Noise(sigma=0.02)).gates[0]
        for blocks in (2, 3, 4, 6)
    ]
    smallest = [gate.minimal_detectable_loss_pct for gate in found]
    assert smallest == sorted(smallest, reverse=True)  # type: ignore[type-var]


def check(chances: Chances, campaigns: int, decide: Callable[[random.Random], str]) -> None:
    noise = random.Random(7)
    counts = {"PASS": 0, "FAIL": 0, "SCREEN_ONLY": 0, "INCONCLUSIVE": 0}
    for _ in range(campaigns):
        counts[decide(noise)] += 1
    stated = {
        "PASS": chances.p_pass,
        "FAIL": chances.p_fail,
        "SCREEN_ONLY": chances.p_screen_only,
        "INCONCLUSIVE": chances.p_inconclusive,
    }
    assert sum(stated.values()) == pytest.approx(1, abs=1e-9)
    for name, chance in stated.items():
        # Four standard errors of a proportion, and a little for proportions near 0.
        limit = 4 * math.sqrt(chance * (1 - chance) / campaigns) + 2 / campaigns
        assert counts[name] / campaigns == pytest.approx(chance, abs=limit), name


@pytest.mark.parametrize(
    ("arms", "sigma", "loss", "margin", "calibration"),
    [
        ("ACCAACCA", 0.04, 0.03, 0.1, None),
        ("ACCACAAC", 0.02, 0.08, 0.05, None),
        ("ACCA", 0.01, 0.01, 0.02, None),
        ("AC", 0.01, 0.01, 0.02, None),
        ("ACCA", 0.01, 0.005, 0.03, 18),
        ("AC", 0.01, 0.05, 0.03, 18),
    ],
)
def test_the_stated_chances_are_those_of_the_real_decision(
    arms: str, sigma: float, loss: float, margin: float, calibration: int | None
) -> None:
    is_candidate = [letter == "C" for letter in arms]
    noise = Noise(sigma=sigma, df=calibration)
    df = max(len(arms) - (3 if len(arms) > 2 else 2), 0)
    factor = math.sqrt(4 / len(arms))
    tells_drift = len(arms) > 2
    able = tells_drift and (df >= 3 or calibration is not None)
    stated = chances_at(100 * loss, factor, df, noise, margin=margin, can_qualify=able, has_drift=tells_drift)

    def decide(source: random.Random) -> str:
        seen = [
            Observation(index=place, is_candidate=arm, rate=math.exp(math.log1p(-loss) * arm + source.gauss(0, sigma)))
            for place, arm in enumerate(is_candidate)
        ]
        known = None if calibration is None else Calibration(sigma=sigma, df=calibration)
        return decide_loss(fit_loss(seen, calibration=known), margin)

    check(stated, 4000, decide)


def test_a_design_that_cannot_qualify_says_so(edited: Callable[..., LoadedProtocol]) -> None:
    order = ("kind: blocks, blocks: 2, order: coin, seed: 20261129, burn_in: true", "kind: explicit, order: [A1, C1]")
    protocol = edited(order, CLAIM_SCREEN, NO_MIRROR).protocol
    plan = plan_protocol(protocol, Noise(sigma=0.02))
    assert not plan.can_qualify
    assert plan.gates[0].minimal_detectable_loss_pct is None
    assert all(chances.p_pass == 0 for chances in plan.gates[0].chances)
    calibrated = plan_protocol(protocol, Noise(sigma=0.02, df=18))
    assert calibrated.gates[0].minimal_detectable_loss_pct is not None
    assert not calibrated.can_qualify  # the protocol claims only a screen


def test_a_host_without_any_noise_decides_for_certain(edited: Callable[..., LoadedProtocol]) -> None:
    for change in ("blocks: 2", "blocks: 4, looks: [2, 4]"):
        (gate, _) = plan_protocol(
            edited(("blocks: 2", change)).protocol, Noise(sigma=0.0), true_losses_pct=(0, 9, 11)
        ).gates
        assert [(one.p_pass, one.p_fail) for one in gate.chances] == [(1, 0), (1, 0), (0, 1)]


def test_the_bundled_pair_passes_as_often_as_its_reason_says() -> None:
    protocol = load_protocol(LIBRARY / "served-pair.yaml").protocol
    looks = looks_of(protocol.schedule, 0.05)

    def chances(sigma: float, loss: float, count: int = 3) -> LookChances:
        return look_chances(looks[:count], "spent", sigma=sigma, margin=0.1, true_loss=loss)

    reason = protocol.margin_reason or ""
    assert f"{chances(0.04, 0, 1).passed:.2f} at the first look and {chances(0.04, 0).passed:.3f} at the last" in reason
    assert f"after {chances(0.04, 0).loads:.1f} loads on average" in reason
    assert f"passes with a chance of {chances(0.04, 0.1).passed:.2f}" in reason
    once = chances_at(0, math.sqrt(1 / 2), 5, Noise(sigma=0.06), margin=0.1)
    assert f"they pass {chances(0.06, 0).passed:.2f} instead of {once.p_pass:.2f}" in " ".join(reason.split())
    assert chances(0.06, 0.3, 1).failed > 0.99
