"""The checks that a protocol can promise: what is done to an engine, and what must be equal afterwards.

A check runs once for each arm, in a fresh process of that arm, and leaves named blocks of logits or plain facts.
`check_rules.py` says what they must show; a gate of kind `check` makes it count. The kinds that compare logits of
steps, and recall in process, stand here; `checks/` has a module for each other kind.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from protocols.checks.base import RECALL_MODEL, SessionCheck
from protocols.checks.capacity import CapacityCheck
from protocols.checks.images_in_history import ImagesInHistoryCheck
from protocols.checks.mapping_grid import MappingGridCheck
from protocols.checks.memory_growth import MemoryGrowthCheck
from protocols.checks.operation_cost import OperationCostCheck
from protocols.checks.operator_boundaries import OperatorBoundariesCheck
from protocols.checks.requirements import RequirementsCheck
from protocols.checks.restart import RestartCheck
from protocols.checks.served_recall import ServedRecallCheck
from protocols.checks.smoke import SmokeCheck
from protocols.checks.stored_reference import StoredReferenceCheck
from protocols.vocabulary import KvMode

_TOKENS = Field(ge=1, le=1_048_576)
_STEPS = Field(ge=1, le=4096)


class StepsCheck(SessionCheck):
    """A check that compares the logits of teacher-forced steps."""

    prompt_tokens: int = _TOKENS
    """Tokens of the conversation before the compared steps; their ids follow from `seed`."""
    steps: int = _STEPS
    """Teacher-forced tokens after the prompt, one a step, each with its full-vocabulary logits."""
    seed: int = Field(default=1, ge=0, le=2**32 - 1)
    """Seed of the token ids."""


class DeterminismCheck(StepsCheck):
    """Two fresh processes give the same bytes, before any difference is blamed on a candidate."""

    kind: Literal["determinism"]
    """The check."""


class StateRoundTripCheck(StepsCheck):
    """A saved, dropped and restored conversation goes on as if nothing had happened, and saves to the same bytes."""

    LATER: ClassVar[frozenset[str]] = frozenset({"image_side"})

    kind: Literal["state_round_trip"]
    """The check."""
    kv_mode: KvMode = "split"
    """Whether each sequence has its own cells, or all share one pool."""
    image_side: int = Field(default=0, ge=0, le=64)
    """Rows and columns of an image in the middle of the prompt, whose cells share a position; 0 means none."""


class SequenceCopyCheck(StepsCheck):
    """A copied conversation goes on like its source, and the source like one that was never copied."""

    kind: Literal["sequence_copy"]
    """The check."""
    kv_mode: KvMode = "split"
    """Whether each sequence has its own cells, or all share one pool."""


class SequenceReuseCheck(StepsCheck):
    """A conversation in a sequence that held another one before goes on like one in a fresh sequence."""

    kind: Literal["sequence_reuse"]
    """The check."""
    kv_mode: KvMode = "split"
    """Whether each sequence has its own cells, or all share one pool."""


class RollbackCheck(StepsCheck):
    """A conversation from which rejected tokens were taken back before every step goes on as if they had never come.

    Another conversation goes on between the steps, and comes into the cells that are free again.
    """

    kind: Literal["rollback"]
    """The check."""
    kv_mode: KvMode = "unified"
    """Whether each sequence has its own cells, or all share one pool."""
    rejected_tokens: int = Field(default=3, ge=1, le=16)
    """Tokens that are evaluated and taken back before each step, as rejected drafts are."""


class ForeignContentCheck(StepsCheck):
    """A conversation's logits do not depend on another conversation in the same cache."""

    kind: Literal["foreign_content"]
    """The check."""
    kv_mode: KvMode = "split"
    """Whether each sequence has its own cells, or all share one pool."""
    foreign_tokens: int = _TOKENS
    """Tokens of the other conversation, which goes on beside the compared steps."""


class RecallCheck(SessionCheck):
    """Conversations in one cache give their own private codes back, all of them, and nobody else's.

    Each prompt holds its secrets near the start; the first is asked for after `distance_tokens`, the others in turns
    that follow. The model is `qwen4exp-recall`, which answers from its prompt.
    """

    MODEL: ClassVar[str | None] = RECALL_MODEL

    kind: Literal["recall"]
    """The check."""
    conversations: int = Field(default=2, ge=1, le=16)
    """Conversations, each in a sequence of its own."""
    secrets: int = Field(default=8, ge=1, le=64)
    """Private codes of each conversation."""
    distance_tokens: int = Field(ge=64, le=1_048_576)
    """Tokens between a key and its first question."""
    kv_mode: KvMode = "unified"
    """Whether each sequence has its own cells, or all share one pool."""


LogitsCheck = (
    DeterminismCheck
    | StateRoundTripCheck
    | SequenceCopyCheck
    | SequenceReuseCheck
    | RollbackCheck
    | ForeignContentCheck
)
"""The checks that leave blocks of logits."""

ServedCheck = ServedRecallCheck | RestartCheck | CapacityCheck | SmokeCheck | StoredReferenceCheck
"""The checks that talk to an arm's server."""

Check = Annotated[
    LogitsCheck
    | RecallCheck
    | OperatorBoundariesCheck
    | MappingGridCheck
    | ImagesInHistoryCheck
    | OperationCostCheck
    | MemoryGrowthCheck
    | RequirementsCheck
    | ServedCheck,
    Field(discriminator="kind"),
]


def fixture_tokens(check: StepsCheck, name: str, count: int, vocabulary: int) -> list[int]:
    """Return `count` token ids below `vocabulary`, from the check's seed and the name of the conversation."""
    return named_tokens(check.seed, name, count, vocabulary)


def named_tokens(seed: int, name: str, count: int, vocabulary: int) -> list[int]:
    """Return the first `count` token ids below `vocabulary` of the conversation `name`.

    SplitMix64 (Steele, Lea, Flood 2014) over seed, name and place, so that every host and language finds the same ids.
    """
    start = seed
    for byte in name.encode():
        start = split_mix(start ^ byte)
    return [split_mix(start + place) % vocabulary for place in range(count)]


def split_mix(value: int) -> int:
    """Return the first output of SplitMix64 from the state `value`."""
    mask = 2**64 - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)
