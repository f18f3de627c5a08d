"""Sentences that say what a fit found, for a person who never heard of non-inferiority."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from protocols.canonical import decimal_text
from protocols.decision import LossJudgement
from protocols.stats import LossFit, gain_of


def decision_sentence(
    metric: str,
    fit: LossFit,
    decision: str,
    margin_pct: Decimal,
    limits: Sequence[str],
    *,
    equivalence: bool = False,
    alpha: float | None = None,
) -> str:
    """Return what was found, how sure it is, and why it is not decided where it is not.

    `metric` is a word for the rate, `limits` are the phrases that keep the campaign from more than a screen. `alpha` is
    the level of the whole campaign where it has looks, each of which takes its bounds at a smaller one.
    """
    margin = f"the margin of {decimal_text(margin_pct)} %"
    found = f"The candidate's {metric} is {_change_words(fit.loss)} than the baseline's (estimate)"
    looks = "" if alpha is None else ", all looks included,"
    sure = f"with {_confidence(fit.alpha if alpha is None else alpha)} % confidence{looks}"
    if equivalence and decision in {"PASS", "FAIL"} and fit.loss_low is not None and fit.loss_high is not None:
        return f"{found}; {_equivalence_words(fit, decision, sure, margin)}"
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


def _equivalence_words(fit: LossFit, decision: str, sure: str, margin: str) -> str:
    low, high = fit.loss_low or 0.0, fit.loss_high or 0.0
    if decision == "PASS":
        return (
            f"{sure} on each side it loses at most {_percent(max(high, 0.0))} % and gains at most "
            f"{_percent(max(gain_of(low), 0.0))} %, both under {margin}: the two are equivalent."
        )
    side = f"loses at least {_percent(low)} %" if low > 0 else f"gains at least {_percent(gain_of(high))} %"
    return f"{sure} it {side}, above {margin}: the two are not equivalent."


def look_sentence(judgement: LossJudgement, planned: int) -> str:
    """Return at which look the decision fell, and at which level its bounds were taken."""
    last = judgement.looks[-1]
    place = f"after {last.look.blocks} of {planned} blocks, look {len(judgement.looks)}"
    level = f"each bound at level {last.look.level:.6g}, fixed in the lock"
    if judgement.decision in {"PASS", "FAIL"}:
        return f"Decided {place} ({level})."
    return f"Not decided {place} ({level})."


def whole_sentence(whole: LossJudgement) -> str:
    """Return what all blocks together would have said, those included that a rule about the host took out."""
    bounds = ""
    if whole.fit.loss_low is not None and whole.fit.loss_high is not None:
        bounds = f", bounds {_percent(whole.fit.loss_low)} % to {_percent(whole.fit.loss_high)} %"
    return f"With every block the loss would be {_percent(whole.fit.loss)} %{bounds}: {whole.decision}."


def _undecided(fit: LossFit, sure: str, margin: str) -> str:
    if fit.is_noisier_than_calibration and fit.residual_sigma is not None and fit.sigma is not None:
        return (
            f"not decided, because these loads vary by {_percent(fit.residual_sigma)} % a load, and this host's "
            f"calibration of {_percent(fit.sigma)} % does not allow that."
        )
    if fit.loss_low is None or fit.loss_high is None:
        return f"not decided against {margin}, because so few loads give no bounds without calibrated noise."
    return (
        f"{sure} it is {_bound(fit.loss_low, upper=False)}, and as surely {_bound(fit.loss_high, upper=True)}, "
        f"which does not decide {margin}. More blocks or a quieter host narrow it."
    )


def _bound(loss: float, *, upper: bool) -> str:
    """Return a bound of the loss as a bound of speed: to a person, a gain is no negative loss."""
    if loss > 0:
        return f"at {'most' if upper else 'least'} {_percent(loss)} % slower"
    return f"at {'least' if upper else 'most'} {_percent(-loss)} % faster"


def _high_words(fit: LossFit) -> str:
    high = 0.0 if fit.loss_high is None else fit.loss_high
    if high < 0:
        return f"it is a gain of at least {_percent(-high)} %"
    return f"the loss is at most {_percent(high)} %"


def _change_words(loss: float) -> str:
    return f"{_percent(loss)} % lower" if loss >= 0 else f"{_percent(-loss)} % higher"


def _percent(fraction: float) -> str:
    text = f"{100 * fraction:.2f}"
    return text.removeprefix("-") if text == "-0.00" else text


def _confidence(alpha: float) -> str:
    return f"{100 * (1 - alpha):.6g}"
