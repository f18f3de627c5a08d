"""What the blocks of logits that a check left must show, and the sentence that says so.

Pure: the recorder judges with it, and an audit judges again from the recorded bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, Final, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from protocols.canonical import JsonValue
from protocols.check_schema import (
    Check,
    DeterminismCheck,
    ForeignContentCheck,
    LogitsCheck,
    RecallCheck,
    RollbackCheck,
    SequenceCopyCheck,
    SequenceReuseCheck,
    StateRoundTripCheck,
)
from protocols.checks.base import CheckBase, CheckOutcome
from protocols.checks.capacity import CapacityCheck, judge_capacity
from protocols.checks.images_in_history import ImagesInHistoryCheck, judge_images_in_history
from protocols.checks.mapping_grid import MappingGridCheck, judge_mapping_grid
from protocols.checks.memory_growth import MemoryGrowthCheck, judge_memory_growth
from protocols.checks.operation_cost import OperationCostCheck, judge_operation_cost
from protocols.checks.operator_boundaries import OperatorBoundariesCheck, judge_operator_boundaries
from protocols.checks.requirements import RequirementsCheck, judge_requirements
from protocols.checks.restart import RestartCheck, judge_restart
from protocols.checks.served_recall import ServedRecallCheck, judge_served_recall
from protocols.checks.smoke import SmokeCheck
from protocols.checks.stored_reference import StoredReferenceCheck, judge_stored_reference
from protocols.comparators import Comparison, compare_logits
from protocols.errors import EvidenceError
from protocols.measurements import Block, CheckObservation
from protocols.results import some_of
from protocols.smoke_package import judge_smoke_package


class Reply(NamedTuple):
    """One answer of a recall check: whose code was asked for, the ids of the code, and the ids that came."""

    conversation: int
    asked: int
    expected: list[int]
    found: list[int]

    @property
    def name(self) -> str:
        """Conversation and code, counted from 1."""
        return f"{self.conversation + 1}.{self.asked + 1}"


class Pair(NamedTuple):
    """Two blocks that must be equal to the byte, and what it means where they are not."""

    left: str
    right: str
    law: str


def pairs_of(check: LogitsCheck) -> tuple[Pair, ...]:
    """Return what must be equal, the pair that the check is named after first."""
    match check:
        case DeterminismCheck():
            return (Pair("first", "second", "two fresh processes give the same logits"),)
        case StateRoundTripCheck():
            return (
                Pair("continued", "restored", "a restored conversation goes on like one that was never saved"),
                Pair("continued", "after_save", "saving changes nothing"),
            )
        case SequenceCopyCheck():
            return (
                Pair("continued", "copied", "a copy goes on like its source"),
                Pair("continued", "source", "a source goes on as if it had not been copied"),
            )
        case SequenceReuseCheck():
            return (Pair("fresh", "reused", "a sequence that was emptied starts anew"),)
        case RollbackCheck():
            return (Pair("continued", "rolled_back", "tokens that were taken back leave nothing"),)
        case ForeignContentCheck():
            return (
                Pair("solo", "beside_one", "another conversation in the cache changes nothing"),
                Pair("beside_one", "beside_other", "the other conversation's content changes nothing at equal layout"),
            )


def block_rows(check: Check) -> int:
    """Return how many rows of full-vocabulary logits a check leaves of one arm."""
    if not isinstance(check, LogitsCheck):
        return 0
    return check.steps * len({name for pair in pairs_of(check) for name in pair[:2]})


def judge_check(check: Check, observation: CheckObservation | None) -> CheckOutcome:
    """Judge what a check left. Raises EvidenceError where a block is missing or has another form."""
    if observation is None:
        return CheckOutcome("NOT_RUN", "The check was not run.", {})
    if observation.state == "NOT_RUN":
        return CheckOutcome("NOT_RUN", f"The check was not run: {observation.reason}.", {})
    if observation.state == "FAILED":
        return CheckOutcome("FAIL", f"The engine did not carry the check out: {observation.reason}.", {})
    try:
        return _JUDGES[type(check)](check, observation)
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        # Forged facts may have any shape below the members that the judges ask for.
        raise EvidenceError(f"what the check {check.id} left has not the form that it writes: {error}") from None


def _judge_steps(check: LogitsCheck, observation: CheckObservation) -> CheckOutcome:
    found = {
        pair: compare_logits(*(_logits(observation.read_block(name)) for name in pair[:2])) for pair in pairs_of(check)
    }
    for comparison in found.values():
        if comparison.rows != check.steps:
            raise EvidenceError(f"found {comparison.rows} rows, expected {check.steps}")
    states = _state_hashes(check, observation.facts)
    broken = [pair for pair, comparison in found.items() if not comparison.is_byte_equal or comparison.nonfinite]
    inputs: dict[str, JsonValue] = {
        "comparisons": [
            {"left": pair.left, "right": pair.right, **comparison.payload()} for pair, comparison in found.items()
        ]
    }
    if states:
        inputs["states"] = dict(states)
    if not broken and len(set(states.values())) <= 1:
        laws = "; ".join(pair.law for pair in found)
        more = "; the state saves to the same bytes again" if states else ""
        return CheckOutcome("PASS", f"Byte-equal over {check.steps} steps: {laws}{more}.", inputs)
    sentences = [_describe(pair, found[pair]) for pair in broken]
    if len(set(states.values())) > 1:
        sentences.append("The restored state saves to other bytes.")
    if isinstance(check, ForeignContentCheck):
        sentences.append(_attribute(found))
    return CheckOutcome("FAIL", " ".join(sentences), inputs)


def _logits(block: Block) -> NDArray[np.float32]:
    if len(block.data) != 4 * block.rows * block.columns:
        raise EvidenceError(f"a block of {block.rows} by {block.columns} logits has {len(block.data)} bytes")
    return np.frombuffer(block.data, "<f4").reshape(block.rows, block.columns)


def _judge_recall(check: RecallCheck, observation: CheckObservation) -> CheckOutcome:
    """Count the codes that came back; a reply with another conversation's code is named apart."""
    replies = _replies(check, observation.facts)
    wanted = len(replies)
    lost = [one.name for one in replies if one.found != one.expected]
    leaked = [
        one.name
        for one in replies
        if any(one.found == other.expected and one.conversation != other.conversation for other in replies)
    ]
    inputs: dict[str, JsonValue] = {
        "asked": wanted,
        "recalled": wanted - len(lost),
        "lost": [*lost],
        "leaked": [*leaked],
    }
    if not lost:
        reason = f"All {wanted} private codes came back, the first of each from {check.distance_tokens} tokens."
        return CheckOutcome("PASS", reason, inputs)
    reason = f"{wanted - len(lost)} of {wanted} private codes came back; lost (conversation.code): {some_of(lost)}."
    if leaked:
        reason += f" Replies that give another conversation's code: {some_of(leaked)}."
    return CheckOutcome("FAIL", reason, inputs)


def _replies(check: RecallCheck, facts: Mapping[str, JsonValue]) -> list[Reply]:
    rows, wanted = facts.get("replies"), check.conversations * check.secrets
    if not isinstance(rows, list) or len(rows) != wanted:
        raise EvidenceError(f"the check has no {wanted} replies")
    try:
        replies = [Reply(**row) for row in rows]  # type: ignore[arg-type]
    except TypeError as error:
        raise EvidenceError(f"this is no reply of a recall check: {error}") from None
    places = {(one.conversation, one.asked) for one in replies if {type(one.conversation), type(one.asked)} == {int}}
    grid = set(product(range(check.conversations), range(check.secrets)))
    if places != grid or not all(one.expected for one in replies):
        raise EvidenceError("the replies of the check are not one for each code")
    return replies


def _state_hashes(check: LogitsCheck, facts: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the hashes of the saved states, which a state round trip must have."""
    if not isinstance(check, StateRoundTripCheck):
        return {}
    states = facts.get("state_sha256")
    if not isinstance(states, Mapping) or set(states) != {"saved", "saved_again"}:
        raise EvidenceError("the check has no hashes of its two saved states")
    return dict(states)


def _describe(pair: Pair, found: Comparison) -> str:
    if found.is_byte_equal:
        return f"{pair.left} and {pair.right} hold {found.nonfinite} values that are not finite."
    first = found.first
    where = "" if first is None else (
        f", first in step {first.row + 1}, where the choice was ahead by {first.margin:.4g} logits"
    )  # fmt: skip
    more = f", {found.nonfinite} values are not finite" if found.nonfinite else ""
    return (
        f"{pair.right} differs from {pair.left} in {found.differing_rows} of {found.rows} steps{where}: "
        f"by {found.max_abs:.4g} logits at most, KL {found.max_kl:.4g} nats, "
        f"{found.top1_changes} other first choices{more}."
    )


def _attribute(found: Mapping[Pair, Comparison]) -> str:
    """Say what the equal-layout control adds; it never takes a failure back."""
    control = next(comparison for pair, comparison in found.items() if pair.left == "beside_one")
    if control.is_byte_equal:
        return (
            "At equal layout the content of the other conversation changes nothing, so the difference comes with the "
            "layout; the failure stands."
        )
    return "At equal layout the content of the other conversation changes the logits: it reaches this conversation."


_JUDGES: Final[Mapping[type[CheckBase], Callable[[Any, CheckObservation], CheckOutcome]]] = {
    **dict.fromkeys(get_args(LogitsCheck), _judge_steps),
    RecallCheck: _judge_recall,
    OperatorBoundariesCheck: judge_operator_boundaries,
    MappingGridCheck: judge_mapping_grid,
    ImagesInHistoryCheck: judge_images_in_history,
    OperationCostCheck: judge_operation_cost,
    MemoryGrowthCheck: judge_memory_growth,
    CapacityCheck: judge_capacity,
    RequirementsCheck: judge_requirements,
    RestartCheck: judge_restart,
    ServedRecallCheck: judge_served_recall,
    SmokeCheck: judge_smoke_package,
    StoredReferenceCheck: judge_stored_reference,
}
