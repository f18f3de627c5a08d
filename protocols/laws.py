"""Laws that an engine must keep: pairs of histories that must give the same logits, drawn from a seed.

A case is one such pair. What its law says is not trusted: `promise` follows both histories and refuses a pair whose
compared steps do not stand after the same tokens, so that a shortened case is a case or is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import Field

from protocols.canonical import real_text
from protocols.check_schema import split_mix
from protocols.conversation_laws import (
    beside_alone,
    chunked_whole,
    copied_single,
    restored_continued,
    reused_fresh,
    rolled_back_never,
    split_unified,
)
from protocols.draws import Abilities, Draw, Pair, Weights
from protocols.form_laws import (
    axes_position,
    bucket_rank,
    drafts_none,
    hole_none,
    parts_whole,
    roomy_tight,
    shifted_unshifted,
    wide_narrow,
)
from protocols.history import Meaningless, Trace, trace
from protocols.operations import Evaluate, History, Skip, Step
from protocols.vocabulary import KvType, Part

LawName = Literal[
    "split=unified",
    "chunked=whole",
    "restored=continued",
    "copied=single",
    "reused=fresh",
    "rolled-back=never",
    "beside=alone",
    "parts=whole",
    "shifted=unshifted",
    "axes=position",
    "bucket=rank",
    "drafts=none",
    "hole=none",
    "wide=narrow",
    "roomy=tight",
]
TOLERANCE: Final[Mapping[KvType, float]] = {"f32": 1e-4, "f16": 5e-3, "q8_0": 0.05}
"""Largest absolute difference of logits where bytes are not promised, by the type of the cache."""
ROUNDING: Final[Mapping[Weights, float]] = {"single": 0.0, "half": 5e-3, "quantised": 2.0}
"""The same by the type of the weights: activations are rounded to half precision or to 8 bits with them."""


class Case(Part):
    """Two histories that must give the same logits."""

    law: LawName
    """The law that it was drawn under."""
    seed: int = Field(ge=0, lt=2**64)
    """Seed of the token ids."""
    left: History
    """The history with what must not matter."""
    right: History
    """The history without it."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What must hold: equal bytes, or a largest absolute difference in logits; and the cells both sessions need.

    Tokens that are chosen by their logits must be the same in any case. `is_work`: so must every work counter.
    `is_logits` is false where nothing is said about logits and tokens: then only the work must be the same.
    """

    is_bytes: bool
    tolerance: float
    is_work: bool = False
    is_logits: bool = True
    cells_each: int
    cells_together: int

    def text(self) -> str:
        """Return what is promised of the logits in a word: `bytes`, a tolerance, or `work` where nothing is."""
        if not self.is_logits:
            return "work"
        return "bytes" if self.is_bytes else real_text(self.tolerance)


def promise(case: Case, abilities: Abilities) -> Promise:
    """Return what a case promises. Raises Meaningless where its histories do not mean the same."""
    left, right = trace(case.left), trace(case.right)
    if case.law in _OF_WORK:
        return _promise_of_work(case, left)
    if not _meaning(left) or _meaning(left) != _meaning(right):
        raise Meaningless("the compared steps do not stand after the same tokens")
    if [one.tokens for one in case.left.generations] != [one.tokens for one in case.right.generations]:
        raise Meaningless("not as many tokens are chosen")
    one, other = case.left.settings, case.right.settings
    if one.kv_type != other.kv_type:
        raise Meaningless("caches of different types hold different numbers")
    if one.is_bucket != other.is_bucket and not (left.do_policies_agree and right.do_policies_agree):
        raise Meaningless("the policies of blocks have other blocks here")
    is_equal = (one.is_bucket, left.compared, left.generated) == (other.is_bucket, right.compared, right.generated)
    is_bytes = abilities.is_byte_exact and is_equal
    return Promise(
        is_bytes=is_bytes,
        tolerance=0.0 if is_bytes else max(TOLERANCE[one.kv_type], ROUNDING[abilities.weights]),
        is_work=case.left != case.right and _in_one_form(case.left) == _in_one_form(case.right),
        cells_each=max(left.most_cells, right.most_cells),
        cells_together=max(left.most_together, right.most_together),
    )


def _promise_of_work(case: Case, left: Trace) -> Promise:
    """Return what is promised where positions are left out: not the logits, but the work."""
    if not left.compared or left.generated:
        raise Meaningless("there is no compared step, or tokens are chosen by logits that differ")
    if _without_holes(case.left) != _without_holes(case.right):
        raise Meaningless("the histories differ by more than the positions that they leave out")
    if case.left.settings.is_bucket:
        raise Meaningless("other positions are other blocks")
    return Promise(
        is_bytes=False,
        tolerance=0.0,
        is_work=True,
        is_logits=False,
        cells_each=left.most_cells,
        cells_together=left.most_together,
    )


def _without_holes(history: History) -> History:
    """Return a history with no position left out."""
    kept = tuple(one for one in history.operations if not isinstance(one, Skip))
    return history.model_copy(update={"operations": kept})


def _meaning(found: Trace) -> list[object]:
    return [one.meaning for one in (*found.compared, *found.generated)]


def _in_one_form(history: History) -> History:
    """Return a history with every position written alone, in a session without spare cells."""
    plain = (
        one.model_copy(update={"coordinates": "p"}) if isinstance(one, Evaluate | Step) else one
        for one in history.operations
    )
    tight = history.settings.model_copy(update={"spare_cells": 0})
    return history.model_copy(update={"operations": tuple(plain), "settings": tight})


def unmet_need(law: LawName, abilities: Abilities) -> str | None:
    """Return what a law needs and a model lacks; none where cases can be drawn."""
    if law in _WITH_IMAGES and not abilities.takes_images:
        return "it needs a model that takes images and has blocks of sparse attention"
    return None


def draw_case(law: LawName, seed: int, number: int, abilities: Abilities) -> Case:
    """Return case `number` of a law for a seed: the same on every host."""
    start = split_mix(seed)
    for byte in law.encode():
        start = split_mix(start ^ byte)
    draw = Draw(split_mix(start + number))
    left, right = LAWS[law](draw, abilities)
    return Case(law=law, seed=draw.below(2**32), left=left, right=right)


LAWS: Final[Mapping[LawName, Callable[[Draw, Abilities], Pair]]] = {
    "split=unified": split_unified,
    "chunked=whole": chunked_whole,
    "restored=continued": restored_continued,
    "copied=single": copied_single,
    "reused=fresh": reused_fresh,
    "rolled-back=never": rolled_back_never,
    "beside=alone": beside_alone,
    "parts=whole": parts_whole,
    "shifted=unshifted": shifted_unshifted,
    "axes=position": axes_position,
    "bucket=rank": bucket_rank,
    "drafts=none": drafts_none,
    "hole=none": hole_none,
    "wide=narrow": wide_narrow,
    "roomy=tight": roomy_tight,
}
"""The laws, each with what draws a pair of histories."""
_OF_WORK: Final[frozenset[LawName]] = frozenset({"hole=none"})
"""Laws under which only the work is the same."""
_WITH_IMAGES: Final[frozenset[LawName]] = frozenset({"parts=whole", "axes=position", "bucket=rank", "hole=none"})
