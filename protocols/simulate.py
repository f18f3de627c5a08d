"""Campaigns that never ran: loads made up from a stated host, judged by the real decision code.

A seed makes every campaign the same everywhere. What is simulated is the rate of each fresh load: noise, a drift, a
cold first load, a change of regime, heavy tails, slow outliers. What is counted is what the rule says: the operating
characteristics of a design.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from protocols.decision import LossJudgement, LossRule, judge_loss
from protocols.schedule import LOADS_PER_BLOCK
from protocols.stats import Observation, is_loss_detected

Floats = NDArray[np.float64]
Arms = NDArray[np.bool_]

SEED = 20_261_129
BATCH = 1000
"""Campaigns that are made at once, each batch from a seed of its own."""
_PER_DRIFT = 7.0
"""Loads, from the first to the eighth, over which a drift is stated."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """What a host does to the rates of fresh loads. Every number is a fraction of the rate.

    noise          standard deviation of ln(rate) of a load; where `is_heavy_tailed`, of Student's t with 3 degrees
    drift          fall of the rate from the first measured load to the eighth, going on at that pace
    warm_up        fall of the rate that dies out by 1/e each `WARM_UP_LOADS` loads: a first load is fastest
    cold_first     loss of the very first load, which a burn-in load takes upon itself
    step           size of a change of regime at a random place, up or down
    slow_share     share of loads that are slower by `slow_by`
    """

    noise: float
    drift: float = 0.0
    warm_up: float = 0.0
    cold_first: float = 0.0
    step: float = 0.0
    slow_share: float = 0.0
    slow_by: float = 0.0
    is_heavy_tailed: bool = False


WARM_UP_LOADS = 2.0

HOSTS: Mapping[str, Host] = {
    "quiet": Host(noise=0.006),
    "noisy": Host(noise=0.01),
    "drift of 2 %": Host(noise=0.006, drift=0.02),
    "rise of 2 %": Host(noise=0.006, drift=-0.02),
    "noisy, drift of 4 %": Host(noise=0.01, drift=0.04),
    "warm-up of 4 %": Host(noise=0.006, warm_up=0.04),
    "cold first load, 3 %": Host(noise=0.006, cold_first=0.03),
    "step of 3 %": Host(noise=0.006, step=0.03),
    "heavy tails": Host(noise=0.006, is_heavy_tailed=True),
    "8 % of loads 5 % slow": Host(noise=0.006, slow_share=0.08, slow_by=0.05),
}
"""The hosts of the published table."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """Blocks by coins, with or without a burn-in load, judged by a rule. `order` replaces the coins, such as AACC."""

    blocks: int
    rule: LossRule
    burn_in: bool = True
    order: str | None = None


@dataclass(frozen=True, kw_only=True)
class Characteristics:
    """How often each result came, over `campaigns` campaigns of one host, design and true loss."""

    true_loss: float
    campaigns: int
    passed: int
    failed: int
    undecided: int
    detected: int
    """Campaigns whose lower bound of the loss was above zero, whatever else they said."""
    loads: float
    """Measured loads of a campaign, on average: looks end some early."""

    def share(self, count: int) -> float:
        """Return a count as a share of the campaigns."""
        return count / self.campaigns


def upper_limit(count: int, total: int, *, confidence: float = 0.95) -> float:
    """Return the one-sided upper limit of a chance that came `count` times in `total` (Clopper and Pearson)."""
    return 1.0 if count >= total else float(special.betaincinv(count + 1, total - count, confidence))


def lower_limit(count: int, total: int, *, confidence: float = 0.95) -> float:
    """Return the one-sided lower limit of a chance that came `count` times in `total` (Clopper and Pearson)."""
    return 1 - upper_limit(total - count, total, confidence=confidence)


def toss_arms(design: Design, campaigns: int, source: np.random.Generator) -> Arms:
    """Return which loads are the candidate's, a row for each campaign, every block mirrored by a coin."""
    if design.order is not None:
        return np.tile(np.array([letter == "C" for letter in design.order]), (campaigns, 1))
    coins = source.integers(0, 2, size=(campaigns, design.blocks)).astype(np.bool_)
    first = np.array([False, True, True, False])
    return np.where(coins[:, :, None], ~first, first).reshape(campaigns, design.blocks * LOADS_PER_BLOCK)


def make_logs(host: Host, arms: Arms, true_loss: float, source: np.random.Generator, *, burn_in: bool) -> Floats:
    """Return ln(rate) of each measured load, a row for each campaign."""
    campaigns, loads = arms.shape
    places = np.arange(loads) + (1.0 if burn_in else 0.0)
    noise = (
        source.standard_t(3, arms.shape) / math.sqrt(3) if host.is_heavy_tailed else source.standard_normal(arms.shape)
    )
    logs = math.log1p(-true_loss) * arms + host.noise * noise
    logs += math.log1p(-host.drift) * places / _PER_DRIFT
    logs += -math.log1p(-host.warm_up) * np.exp(-places / WARM_UP_LOADS)
    if host.cold_first and not burn_in:
        logs[:, 0] += math.log1p(-host.cold_first)
    if host.step:
        at = source.integers(1, loads, size=(campaigns, 1))
        sign = source.choice([-1.0, 1.0], size=(campaigns, 1))
        logs += math.log1p(-host.step) * sign * (np.arange(loads) >= at)
    if host.slow_share:
        logs += math.log1p(-host.slow_by) * (source.random(arms.shape) < host.slow_share)
    return logs


def observations_of(logs: Floats, arms: Arms) -> list[Observation]:
    """Return one campaign's loads as the decision takes them."""
    return [
        Observation(index=place, is_candidate=bool(arm), rate=math.exp(log), block=place // LOADS_PER_BLOCK + 1)
        for place, (log, arm) in enumerate(zip(logs.tolist(), arms.tolist(), strict=True))
    ]


def batches(
    host: Host, design: Design, true_loss: float, *, campaigns: int, seed: int = SEED
) -> Iterator[tuple[Arms, Floats]]:
    """Yield arms and ln(rate) of `BATCH` campaigns at a time: fewer campaigns are the first of more."""
    for number in range(-(-campaigns // BATCH)):
        source = np.random.default_rng((seed, number))
        arms = toss_arms(design, BATCH, source)
        logs = make_logs(host, arms, true_loss, source, burn_in=design.burn_in)
        left = campaigns - number * BATCH
        yield arms[:left], logs[:left]


def simulate(
    host: Host,
    design: Design,
    true_loss: float,
    *,
    campaigns: int,
    seed: int = SEED,
    judge: Callable[[Sequence[Observation], LossRule], LossJudgement] = judge_loss,
) -> Characteristics:
    """Judge `campaigns` campaigns of one cell with the real decision code and count what it says."""
    counts: Counter[str] = Counter()
    detected, loads = 0, 0
    for arms, logs in batches(host, design, true_loss, campaigns=campaigns, seed=seed):
        for row, flags in zip(logs, arms, strict=True):
            judgement = judge(observations_of(row, flags), design.rule)
            counts[judgement.decision] += 1
            detected += is_loss_detected(judgement.fit)
            loads += judgement.fit.baseline_loads + judgement.fit.candidate_loads
    return Characteristics(
        true_loss=true_loss,
        campaigns=campaigns,
        passed=counts["PASS"],
        failed=counts["FAIL"],
        undecided=campaigns - counts["PASS"] - counts["FAIL"],
        detected=detected,
        loads=loads / campaigns,
    )
