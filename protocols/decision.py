"""The decision about one rate of one campaign: a rule that was fixed beforehand, and the loads that there are.

Gates, `assay stats`, `assay simulate` and the published operating characteristics all decide through `judge_loss`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from protocols.anytime import anytime_fit
from protocols.looks import Look
from protocols.stats import Calibration, Decision, LossFit, Observation, decide_loss, fit_loss

Stopping = Literal["spent", "anytime"]
DECIDED = frozenset({"PASS", "FAIL"})
LEAST_BLOCKS = 2
"""Fewest blocks at a look that can decide."""


@dataclass(frozen=True, kw_only=True)
class LossRule:
    """What is promised about a loss. `margin` is a fraction; without looks all loads are judged once, at `alpha`."""

    margin: float
    alpha: float = 0.05
    equivalence: bool = False
    looks: tuple[Look, ...] = ()
    stopping: Stopping = "spent"


@dataclass(frozen=True, kw_only=True)
class LookResult:
    """What one look saw."""

    look: Look
    fit: LossFit
    decision: Decision


@dataclass(frozen=True, kw_only=True)
class LossJudgement:
    """The fit that the decision rests on, and every look up to it; `looks` is empty where the rule has none."""

    fit: LossFit
    decision: Decision
    looks: tuple[LookResult, ...] = ()


def judge_loss(
    observations: Sequence[Observation], rule: LossRule, *, calibration: Calibration | None = None
) -> LossJudgement:
    """Judge the loads of one campaign by a rule; with looks, the first that decides counts and later loads do not.

    ValueError as in `fit_loss`, and where no look sees a load.
    """
    if not rule.looks:
        fit = fit_loss(observations, alpha=rule.alpha, calibration=calibration)
        return LossJudgement(fit=fit, decision=decide_loss(fit, rule.margin, equivalence=rule.equivalence))
    results: list[LookResult] = []
    for look in rule.looks:
        seen = [one for one in observations if one.block is not None and one.block <= look.blocks]
        if not seen:
            continue  # every block so far was left out
        fit = fit_loss(seen, alpha=look.level)
        if rule.stopping == "anytime":
            fit = anytime_fit(fit, seen)
        # The levels were spent over looks of two blocks or more: a look at fewer, where others were left out, is none.
        is_enough = len({one.block for one in seen}) >= LEAST_BLOCKS
        decision = decide_loss(fit, rule.margin, equivalence=rule.equivalence) if is_enough else "INCONCLUSIVE"
        results.append(LookResult(look=look, fit=fit, decision=decision))
        if decision in DECIDED:
            break
    if not results:
        raise ValueError("no look sees a load")
    return LossJudgement(fit=results[-1].fit, decision=results[-1].decision, looks=tuple(results))
