"""What one batch costs at a depth that is filled with zero cells, both arms in turns, with exact logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from statistics import fmean, median, stdev
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from protocols.canonical import JsonValue, real_text
from protocols.checks.base import CheckOutcome, SessionCheck, field, rows_of
from protocols.errors import EvidenceError
from protocols.measurements import CheckObservation
from protocols.results import some_of
from protocols.stats import t_quantile
from protocols.vocabulary import PlainDecimal

LEAST_ROUNDS = 4
_LEVEL = 0.95
Batch = Annotated[int, Field(ge=1, le=8192)]


class OperationCostCheck(SessionCheck):
    """Batches at a synthetic depth cost the judged arm no more than the other by the limit, and give equal logits.

    Both arms are measured in turns, each round in a fresh process; a round's ratio of medians is one observation.
    Rounds go on until the interval of the mean ratio is as narrow as `precision_pct`, or `most_rounds` are done.
    """

    BESIDE: ClassVar[bool] = True

    kind: Literal["operation_cost"]
    """The check."""
    depth_tokens: int = Field(ge=1, le=1_048_576)
    """Zero cells before the measured batches."""
    batches: Annotated[tuple[Batch, ...], Field(strict=False, min_length=1, max_length=8)] = (1, 7, 512)
    """Tokens of a batch."""
    samples: int = Field(default=5, ge=1, le=1000)
    """Timed batches of one shape, arm and round, after one that is not timed."""
    most_rounds: int = Field(default=16, ge=LEAST_ROUNDS, le=1000)
    """Rounds after which it ends, as precise as it is."""
    precision_pct: PlainDecimal = Decimal(1)
    """Half width of the interval, in percent, at which a shape is measured well enough."""
    most_increase_pct: PlainDecimal = Decimal(2)
    """Increase of the cost, in percent, that is just not acceptable."""
    seed: int = Field(default=1, ge=0, le=2**32 - 1)
    """Seed of the token ids."""


class Estimate(NamedTuple):
    """Ratio of costs, own to other: the mean over rounds with one-sided 95 % bounds, as increases in percent."""

    mean_pct: float
    low_pct: float
    high_pct: float

    @property
    def half_width_pct(self) -> float:
        """Half of the distance of the bounds."""
        return (self.high_pct - self.low_pct) / 2


def estimate_increase(own_ns: Sequence[Sequence[int]], other_ns: Sequence[Sequence[int]]) -> Estimate | None:
    """Return the increase from the rounds' samples; None with fewer than LEAST_ROUNDS rounds.

    Log ratios of the rounds' medians, Student's t with rounds - 1 degrees of freedom.
    """
    logs = [math.log(median(own) / median(other)) for own, other in zip(own_ns, other_ns, strict=True)]
    if len(logs) < LEAST_ROUNDS:
        return None
    mean, half = fmean(logs), t_quantile(_LEVEL, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return Estimate(*(100 * math.expm1(value) for value in (mean, mean - half, mean + half)))


def judge_operation_cost(check: OperationCostCheck, observation: CheckObservation) -> CheckOutcome:
    """FAIL where logits differ or a shape costs more than the limit; INCONCLUSIVE where an interval spans the limit."""
    shapes = rows_of(observation.facts, "shapes", len(check.batches))
    if [field(shape, "batch", int) for shape in shapes] != list(check.batches):
        raise EvidenceError("the shapes of the check are not those that it promises")
    inputs: dict[str, JsonValue] = {"depth_tokens": check.depth_tokens}
    differing = [str(shape["batch"]) for shape in shapes if len(_hashes(shape)) > 1]
    if any(shape.get("other_ns") is None for shape in shapes):
        return CheckOutcome("NOT_RUN", "The other arm has no library to measure beside this one.", inputs)
    limit, words, worse, open_ = float(check.most_increase_pct), [], [], []
    for shape in shapes:
        own, other = _samples(shape, "own_ns"), _samples(shape, "other_ns")
        found = estimate_increase(own, other)
        if found is None:
            raise EvidenceError(f"found fewer than {LEAST_ROUNDS} rounds")
        batch = str(shape["batch"])
        inputs[f"batch_{batch}"] = {
            "rounds": len(own),
            "own_median_ns": round(median(one for row in own for one in row)),
            "other_median_ns": round(median(one for row in other for one in row)),
            "increase_pct": real_text(found.mean_pct),
            "low_pct": real_text(found.low_pct),
            "high_pct": real_text(found.high_pct),
        }  # fmt: skip
        words.append(
            f"batch {batch}: {found.mean_pct:+.2f} % ({found.low_pct:+.2f} to {found.high_pct:+.2f}, {len(own)} rounds)"
        )
        worse += [batch] if found.low_pct > limit else []
        open_ += [batch] if found.low_pct <= limit <= found.high_pct else []
    costs = f"cost at {check.depth_tokens} cells, limit {limit:g} %: {'; '.join(words)}"
    if differing:
        return CheckOutcome(
            "FAIL", f"Logits differ at batch {some_of(differing)}, so costs say nothing; {costs}.", inputs
        )
    if worse:
        return CheckOutcome("FAIL", f"Batch {some_of(worse)} costs more than the limit; {costs}.", inputs)
    if open_:
        return CheckOutcome(
            "INCONCLUSIVE", f"This host cannot decide batch {some_of(open_)}; logits are equal, {costs}.", inputs
        )
    return CheckOutcome("PASS", f"Equal logits, {costs}.", inputs)


def _hashes(shape: dict[str, Any]) -> set[str]:
    """Return the different hashes of a shape's logits, over rounds and arms."""
    own, other = field(shape, "own_sha256", list), shape.get("other_sha256") or []
    if not own:
        raise EvidenceError("the check left no hashes of logits")
    return {*own, *other}


def _samples(shape: dict[str, Any], name: str) -> list[list[int]]:
    rounds = field(shape, name, list)
    if not all(isinstance(one, list) and one and all(type(ns) is int and ns > 0 for ns in one) for one in rounds):
        raise EvidenceError(f"{name} of the check are no times")
    return rounds
