"""Sentences that say what a fit found, for a person who never heard of non-inferiority."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from protocols.canonical import decimal_text
from protocols.stats import LossFit


def decision_sentence(metric: str, fit: LossFit, decision: str, margin_pct: Decimal, limits: Sequence[str]) -> str:
    """Return what was found, how sure it is, and why it is not decided where it is not.

    `metric` is a word for the rate, `limits` are the phrases that keep the campaign from more than a screen.
    """
    margin = f"the margin of {decimal_text(margin_pct)} %"
    found = f"The candidate's {metric} is {_change_words(fit.loss)} than the baseline's (estimate)"
    sure = f"with {_confidence(fit.alpha)} % confidence"
    if decision == "PASS":
        sentence = f"{found}; {sure} {_high_words(fit)}, under {margin}."
        if fit.loss_low is not None and fit.loss_low > 0:
            sentence += f" A loss above zero is shown (at least {_percent(fit.loss_low)} %): small, but real."
        return sentence
    if decision == "FAIL":
        low = "" if fit.loss_low is None else f"{sure} the loss is at least {_percent(fit.loss_low)} %, "
        return f"{found}; {low}above {margin}."
    if decision == "SCREEN_ONLY":
        return f"{found}, under {margin}; but {' and '.join(limits)}: screened only, not qualified."
    return f"{found}; {_undecided(fit, sure, margin)}"


def _undecided(fit: LossFit, sure: str, margin: str) -> str:
    if fit.is_noisier_than_calibration and fit.residual_sigma is not None and fit.sigma is not None:
        return (
            f"not decided, because these loads vary by {_percent(fit.residual_sigma)} % a load, and this host's "
            f"calibration of {_percent(fit.sigma)} % does not allow that."
        )
    if fit.loss_low is None or fit.loss_high is None:
        return f"not decided against {margin}, because so few loads give no bounds without calibrated noise."
    return (
        f"{sure} the loss is above {_percent(fit.loss_low)} %, and as surely below {_percent(fit.loss_high)} %, "
        f"which does not decide {margin}. More blocks or a quieter host narrow it."
    )


def _high_words(fit: LossFit) -> str:
    high = 0.0 if fit.loss_high is None else fit.loss_high
    if high < 0:
        return f"it is a gain of at least {_percent(-high)} %"
    return f"the loss is at most {_percent(high)} %"


def _change_words(loss: float) -> str:
    return f"{_percent(loss)} % lower" if loss >= 0 else f"{_percent(-loss)} % higher"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def _confidence(alpha: float) -> str:
    return f"{100 * (1 - alpha):.6g}"
