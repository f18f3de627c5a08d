"""What a list of rates without a record says, in words: found, how sure, why not decided, the cheapest next step."""

from __future__ import annotations

import math
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from protocols import screens
from protocols.decision import LossRule
from protocols.gate_words import decision_sentence
from protocols.loose_rates import LooseJudgement
from protocols.next_step import is_host_too_noisy
from protocols.verdicts import EXIT_CODES
from reports import style
from reports.companions import least_words, share_words
from reports.steps import blocks_sentence, quiet_sentence

HEADLINES = {
    "PASS": "If this had been a recorded campaign, the candidate could replace the baseline.",
    "FAIL": "The candidate is slower by more than the margin.",
    "INCONCLUSIVE": "Not decided: these numbers support neither a yes nor a no.",
    "SCREEN_ONLY": "Screened only: the estimate is under the margin, but so few loads cannot qualify a candidate.",
}
NO_RECORD = (
    "Evidence without a record: nobody can check that each row is a fresh load, that both arms did the same work, or "
    "that the order and the margin were fixed beforehand. `assay run` records all of that."
)
CONFOUNDED = 1.2
"""How many times wider than mirrored blocks an order may be before it is said."""


def loose_lines(judgement: LooseJudgement, rule: LossRule) -> list[str]:
    """Return the lines under the verdict, most important first."""
    lines = [HEADLINES[judgement.status], f"found: {_found(judgement, rule)}"]
    fit = judgement.fit
    if fit is not None and fit.sigma is not None:
        drift = "" if fit.gamma is None else f"; drift {style.percent(100 * fit.gamma, signed=True)} from load to load"
        guess = " (a guess: one degree of freedom)" if fit.df == 1 else ""
        lines.append(f"noise: {style.percent(100 * fit.sigma)} a load{guess}{drift}")
    if judgement.confounding > CONFOUNDED:
        lines.append(
            f"order: arm and time are mixed here, so the bounds are {judgement.confounding:.1f} times as wide as those "
            "of mirrored blocks (A C C A)."
        )
    if judgement.randomisation is not None:
        test = judgement.randomisation
        lines.append(
            f"coins: had a coin ordered each block, so large a loss would come by the order alone in "
            f"{share_words(test.p_loss)} without any loss; {least_words(test)}."
        )
    return [*lines, *_screen_lines(judgement), f"next: {loose_step(judgement, rule)}", NO_RECORD]


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _found(judgement: LooseJudgement, rule: LossRule) -> str:
    if judgement.fit is None:
        labels = ", ".join(judgement.unfinished)
        return f"the last block is not finished ({labels}), and half a block shows drift as a loss"
    loads = len(judgement.loads)
    limits = [] if judgement.fit.can_qualify else [f"{loads} loads without known noise of this host carry no more"]
    if limits and judgement.fit.sigma_source == "calibrated":
        limits = [f"{loads} loads cannot tell a drift of the host from a change"]
    return decision_sentence(
        "rate",
        judgement.fit,
        judgement.status,
        Decimal(f"{100 * rule.margin:.12g}"),
        limits,
        equivalence=rule.equivalence,
    )


def _screen_lines(judgement: LooseJudgement) -> list[str]:
    screen = judgement.screen
    gap = "no mirrored block" if screen.mirror_gap_pp is None else f"mirror gap {style.points(screen.mirror_gap_pp)}"
    says = "passes" if screen.passes else "fails"
    head = (
        f"legacy screen: pooled change {style.percent(screen.pooled_change_pct, signed=True)}, {gap}: {says} (loss "
        f"under {screen.max_loss_pct:g} %, gap at most {screen.max_gap_pp:g} points). It knows no noise: a true loss "
        "of the limit passes it half of the time."
    )
    lines = [head, *_difference_lines(judgement)]
    if len(screen.blocks) > 1:
        lines += [
            f"  block {one.block}: {style.percent(one.first_change_pct, signed=True)} and "
            f"{style.percent(one.second_change_pct, signed=True)}, gap {style.points(one.mirror_gap_pp)}"
            for one in screen.blocks
        ]
    return lines


def _difference_lines(judgement: LooseJudgement) -> list[str]:
    """Say why screen and verdict differ, where they do."""
    screen, status = judgement.screen, judgement.status
    if screen.passes:
        if status in {"PASS", "SCREEN_ONLY"}:
            return []
        return ["  it passes on the estimate alone; the verdict also asks how sure that is."]
    if status == "FAIL":
        return []
    if screens.is_loss_within(screen.pooled_change_pct, screen.max_loss_pct):
        return ["  it fails by its gap, which is drift and noise of the host; the verdict takes the drift out."]
    return ["  it fails on the estimate alone; the verdict also asks how sure that is, with the drift taken out."]


def loose_step(judgement: LooseJudgement, rule: LossRule) -> str:
    """Return the cheapest step that leads to a decision, or to one that others can check."""
    if judgement.unfinished:
        return "Finish the block, or leave its loads out, and say so."
    fit = judgement.fit
    if judgement.status in {"PASS", "FAIL"}:
        return "To claim this, run it as a campaign: `assay protocol new`, then `assay run`."
    if fit is None or fit.residual_sigma is None:
        return "Measure at least two blocks (A C C A, C A A C): so few loads leave no noise estimate."
    if is_host_too_noisy(fit.residual_sigma, rule.margin, rule.alpha):
        return quiet_sentence(fit.residual_sigma, rule.margin)
    enough = blocks_sentence(fit.residual_sigma, fit.loss, rule.margin, rule.alpha)
    if enough is None:
        return (
            f"The estimate lies too close to the margin of {100 * rule.margin:g} %: only another margin can decide it."
        )
    return f"Measure anew (adding to these until they pass would err more often): {enough}."


def loose_document(judgement: LooseJudgement, rule: LossRule) -> dict[str, Any]:
    """Return everything as one JSON document; losses in percent, absent bounds null."""
    fit = judgement.fit
    loss: dict[str, Any] | None = None
    if fit is not None:
        loss = {
            "loss_pct": 100 * fit.loss,
            "loss_low_pct": None if fit.loss_low is None else 100 * fit.loss_low,
            "loss_high_pct": None if fit.loss_high is None else 100 * fit.loss_high,
            "sigma_pct": None if fit.sigma is None else 100 * fit.sigma,
            "sigma_source": fit.sigma_source,
            "df": fit.df,
            "drift_pct_per_load": None if fit.gamma is None else 100 * math.expm1(fit.gamma),
        }
    return {
        "evidence": "numbers without a record",
        "loads": [asdict(load) for load in judgement.loads],
        "margin_pct": 100 * rule.margin,
        "alpha": rule.alpha,
        "equivalence": rule.equivalence,
        "screen": asdict(judgement.screen),
        "loss": loss,
        "randomisation": None if judgement.randomisation is None else asdict(judgement.randomisation),
        "unfinished": list(judgement.unfinished),
        "verdict": {
            "status": judgement.status,
            "loss_detected": judgement.loss_detected,
            "headline": HEADLINES[judgement.status],
            "found": _found(judgement, rule),
            "next": loose_step(judgement, rule),
            "exit_code": EXIT_CODES[judgement.status],
        },
    }
