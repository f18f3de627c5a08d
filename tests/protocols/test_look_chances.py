from __future__ import annotations

import math

import pytest

from protocols.decision import LossRule
from protocols.look_chances import look_chances
from protocols.looks import Look, spent_levels
from protocols.simulate import Design, Host, simulate


@pytest.mark.parametrize("stopping", ["spent", "anytime"])
@pytest.mark.parametrize(("sigma", "loss"), [(0.006, 0.0), (0.01, 0.0), (0.01, 0.02), (0.01, 0.035), (0.02, 0.0)])
def test_the_chances_of_looks_are_those_of_the_real_decision(stopping: str, sigma: float, loss: float) -> None:
    blocks, campaigns = (2, 3, 5), 1500
    levels = spent_levels(blocks, 0.05) if stopping == "spent" else (0.05,) * 3
    looks = tuple(Look(blocks=count, level=level) for count, level in zip(blocks, levels, strict=True))
    rule = LossRule(margin=0.02, looks=looks, stopping=stopping)  # type: ignore[arg-type]
    seen = simulate(Host(noise=sigma), Design(blocks=5, rule=rule), loss, campaigns=campaigns, seed=3)
    stated = look_chances(looks, stopping, sigma=sigma, margin=0.02, true_loss=loss)  # type: ignore[arg-type]
    for count, chance in ((seen.passed, stated.passed), (seen.failed, stated.failed)):
        spread = math.sqrt(max(chance * (1 - chance), 1e-4) * (1 / campaigns + 1 / 20_000))
        assert count / campaigns == pytest.approx(chance, abs=4 * spread + 0.001)
    assert seen.loads == pytest.approx(stated.loads, abs=0.8)


def test_a_single_look_has_the_chances_of_a_design_without_looks() -> None:
    from protocols.plan import Noise, chances_at

    stated = look_chances((Look(blocks=2, level=0.05),), "spent", sigma=0.01, margin=0.02, true_loss=0.0)
    exact = chances_at(0.0, math.sqrt(1 / 2), 5, Noise(sigma=0.01), margin=0.02)
    assert stated.passed == pytest.approx(exact.p_pass, abs=0.01)
    assert stated.loads == 8
