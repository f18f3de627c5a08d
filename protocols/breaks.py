"""What breaks a number that the protocol states, and whether the candidate is to blame for it.

A gate that compares the arms with each other blames whoever differs. One that compares both with a stated number does
not know whether an engine is wrong or the number is: where the baseline breaks it as often, nothing is said about the
candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from protocols.canonical import JsonValue
from protocols.measurements import Arm

NEXT_STEP = "next_step"
"""Key in a gate's inputs: what to do about a break that is not the candidate's."""


class Break(NamedTuple):
    """One break: the arm that it was seen in, what is equal wherever the arms break alike, and words for people."""

    arm: Arm
    what: Hashable
    text: str


def is_the_candidates(breaks: Sequence[Break], answered: Mapping[Arm, int]) -> bool:
    """Whether the candidate shows some break more often than the baseline, for the requests that each `answered`.

    A burn-in or a load that was done again gives one arm more requests: what the baseline shows is scaled, rounded up.
    """
    seen = {arm: Counter(one.what for one in breaks if one.arm == arm) for arm in ("baseline", "candidate")}
    ours, theirs = answered["candidate"], max(answered["baseline"], 1)
    return any(count > -(-seen["baseline"][what] * ours // theirs) for what, count in seen["candidate"].items())


def whose(breaks: Iterable[Break]) -> str:
    """Say in which arms breaks are that are not the candidate's."""
    return "in both arms alike" if any(one.arm == "candidate" for one in breaks) else "in the baseline alone"


def next_step(step: str) -> dict[str, JsonValue]:
    """Return the input that names what to do."""
    return {NEXT_STEP: step}
