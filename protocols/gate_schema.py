"""The gates that a protocol can promise: one model for each rule. `gates.py` evaluates them."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from protocols.measurements import Arm
from protocols.vocabulary import Identifier, Metric, Part, PlainDecimal, WorkField


class CompletenessGate(Part):
    """Every scheduled load is complete and every request has its stated token counts."""

    kind: Literal["completeness"]
    """The rule."""
    id: Identifier
    """Name of the gate."""
    required: bool = True
    """Whether the verdict depends on this gate."""


class ExactTokensGate(Part):
    """All loads of both arms generate the same token ids."""

    kind: Literal["exact_tokens"]
    """The rule."""
    id: Identifier
    """Name of the gate."""
    required: bool = True
    """Whether the verdict depends on this gate."""
    workload: Identifier
    """Workload that is judged."""


class EqualWorkGate(Part):
    """The stated token counts are the same in all loads of both arms."""

    kind: Literal["equal_work"]
    """The rule."""
    id: Identifier
    """Name of the gate."""
    required: bool = True
    """Whether the verdict depends on this gate."""
    workload: Identifier
    """Workload that is judged."""
    fields: Annotated[tuple[WorkField, ...], Field(strict=False, min_length=1)]
    """Counts that are compared."""


class EqualCountersGate(Part):
    """The engine's own work counters are the same in all loads of both arms."""

    kind: Literal["equal_counters"]
    """The rule."""
    id: Identifier
    """Name of the gate."""
    required: bool = True
    """Whether the verdict depends on this gate."""
    workload: Identifier
    """Workload that is judged."""
    counters: Annotated[tuple[Identifier, ...], Field(strict=False, min_length=1)] | None = None
    """Counters that are compared; null means all that the engine reports."""


class LossGate(Part):
    """The candidate's rate is not lower than the baseline's by the margin or more (non-inferiority)."""

    kind: Literal["loss"]
    """The rule."""
    id: Identifier
    """Name of the gate."""
    required: bool = True
    """Whether the verdict depends on this gate."""
    workload: Identifier
    """Workload that is judged."""
    metric: Metric
    """Rate that is compared."""
    margin_pct: PlainDecimal
    """Loss in percent that is just not acceptable; above 0 and below 100."""
    alpha: PlainDecimal = Decimal("0.05")
    """Level of each one-sided bound."""
    after: Annotated[tuple[Identifier, ...], Field(strict=False)] = ()
    """Gates that must PASS first; else the speeds are not comparable."""
    equivalence: bool = False
    """Whether a gain of the margin or more is not acceptable either: two one-sided tests (TOST)."""
    LATER: ClassVar[frozenset[str]] = frozenset({"equivalence"})


class MirrorGapGate(Part):
    """The two halves of each mirrored block agree, which is a statement about drift."""

    kind: Literal["mirror_gap"]
    """The rule."""
    id: Identifier
    """Name of the gate."""
    required: bool = True
    """Whether the verdict depends on this gate."""
    workload: Identifier
    """Workload that is judged."""
    metric: Metric
    """Rate that is compared."""
    limit_pp: PlainDecimal
    """Largest accepted gap in percentage points; a gap of exactly the limit is accepted."""


class ScreenLossGate(Part):
    """The older point screen: pooled geometric change against a limit. It can reject, never qualify."""

    kind: Literal["screen_loss"]
    """The rule."""
    id: Identifier
    """Name of the gate."""
    required: bool = True
    """Whether the verdict depends on this gate."""
    workload: Identifier
    """Workload that is judged."""
    metric: Metric
    """Rate that is compared."""
    max_loss_pct: PlainDecimal
    """Loss in percent that fails: a loss of exactly this fails."""


class ColdCacheGate(Part):
    """Every measured request took exactly the stated number of prompt tokens from a cache."""

    kind: Literal["cold_cache"]
    """The rule."""
    id: Identifier
    """Name of the gate."""
    required: bool = True
    """Whether the verdict depends on this gate."""
    workload: Identifier
    """Workload that is judged."""
    cached_tokens: int = Field(default=0, ge=0, le=16_777_216)
    """Stated number of cached prompt tokens; 0 means a cold cache."""


class SoundRepliesGate(Part):
    """Every reply adds up, and its text and times are what its token ids and our clock say."""

    kind: Literal["sound_replies"]
    """The rule."""
    id: Identifier
    """Name of the gate."""
    required: bool = True
    """Whether the verdict depends on this gate."""
    workload: Identifier
    """Workload that is judged."""
    timing_limit_pct: PlainDecimal = Decimal(20)
    """Most that the engine's own times may differ from ours in every reply of an arm, in percent of ours."""


class CheckGate(Part):
    """One arm shows what a check promises; or, for a control, it must not show it."""

    kind: Literal["check"]
    """The rule."""
    id: Identifier
    """Name of the gate."""
    required: bool = True
    """Whether the verdict depends on this gate."""
    check: Identifier
    """Check that is judged."""
    arm: Arm = "candidate"
    """Arm that is judged."""
    expect: Literal["PASS", "FAIL"] = "PASS"
    """What the check must show; FAIL for a positive control, an arm with a known fault that the check must find."""


Gate = Annotated[
    CompletenessGate
    | ExactTokensGate
    | EqualWorkGate
    | EqualCountersGate
    | LossGate
    | MirrorGapGate
    | ScreenLossGate
    | ColdCacheGate
    | SoundRepliesGate
    | CheckGate,
    Field(discriminator="kind"),
]
