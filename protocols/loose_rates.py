"""Rates without a record: a list of loads in run order, judged by the legacy screen and by the loss, side by side.

Nothing here is evidence. Whoever has only numbers can see what they would say if all that a campaign locks and records
had held: fresh loads, equal work, an order that was fixed beforehand.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from protocols import screens
from protocols.companions import RandomisationTest, randomisation_test
from protocols.decision import LossRule, judge_loss
from protocols.errors import Problem, ProtocolError
from protocols.measurements import Arm
from protocols.schedule import LOADS_PER_BLOCK, blocks_of, is_begun_mirror
from protocols.schema import VerdictStatus
from protocols.stats import Calibration, LossFit, Observation, design_factor, is_loss_detected

ARM_WORDS: dict[str, Arm | None] = {
    "a": "baseline",
    "baseline": "baseline",
    "c": "candidate",
    "candidate": "candidate",
    "burn-in": None,
}
"""What may stand in the column arm; a burn-in load is left out."""

COLUMNS = ("load", "arm", "rate")
LEAST_RATE: Final = 1e-30
MOST_RATE: Final = 1e30
"""Beyond these, the ratio of two rates is no number any more."""
_Rows = Any  # the type of a csv reader has no public name
_RATE: Final = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


@dataclass(frozen=True, kw_only=True)
class LooseLoad:
    """One load of a list: label, arm, rate (higher is better), and its mirrored block if it stands in one."""

    label: str
    arm: Arm
    rate: float
    block: int | None = None


@dataclass(frozen=True, kw_only=True)
class BlockScreen:
    """The legacy figures of one mirrored block."""

    block: int
    first_change_pct: float
    second_change_pct: float
    mirror_gap_pp: float


@dataclass(frozen=True, kw_only=True)
class LegacyScreen:
    """The older screen over the whole blocks, or over all loads where there are none.

    `mirror_gap_pp` is the largest of all blocks, None without mirrored blocks. `passes` is what the screen says, which
    is no verdict.
    """

    pooled_change_pct: float
    mirror_gap_pp: float | None
    max_loss_pct: float
    max_gap_pp: float
    passes: bool
    blocks: tuple[BlockScreen, ...]


@dataclass(frozen=True, kw_only=True)
class LooseJudgement:
    """The screen and the verdict over one list.

    `fit` is None where nothing was fitted because a block is not finished. `unfinished` are the labels of that block.
    `confounding` is how many times wider the bounds are than those of mirrored blocks, because arm and time are mixed.
    """

    loads: tuple[LooseLoad, ...]
    screen: LegacyScreen
    status: VerdictStatus
    fit: LossFit | None
    loss_detected: bool
    unfinished: tuple[str, ...]
    confounding: float
    randomisation: RandomisationTest | None


def parse_rates(text: str, source: str) -> tuple[LooseLoad, ...]:
    """Read the columns load, arm and rate (others are ignored) in run order; blocks are found in the order.

    ProtocolError with every line that is wrong, each named as `source:line`.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    head = next((line for line in lines if line.strip()), "")
    try:
        rows = csv.reader(lines, delimiter=max(",;\t", key=head.count))
        return _parse(rows, source)
    except csv.Error as error:
        raise ProtocolError(f"this is no CSV: {error}", where=f"{source}:{rows.line_num}") from None


def _parse(rows: _Rows, source: str) -> tuple[LooseLoad, ...]:
    header = _header(rows, source)
    problems: list[Problem] = []
    loads: list[LooseLoad] = []
    seen: dict[str, int] = {}
    for row in rows:
        if not any(cell.strip() for cell in row):
            continue
        where = f"{source}:{rows.line_num}"
        cells = dict(zip(header, (cell.strip() for cell in row), strict=False))
        load, problem = _load(cells, where)
        if any(cell.strip() for cell in row[len(header) :]):
            message = f"found {len(row)} cells, expected {len(header)} as in the first line"
            problem = Problem(where=where, message=message, hint="write decimals with a point: 43.14")
        label = cells.get("load", "")
        if problem is None and label in seen:
            message = f"found the load {label} again (line {seen[label]}), expected one row a fresh load"
            problem = Problem(where=where, message=message, hint="pool the requests of one load to one rate")
        seen.setdefault(label, rows.line_num)
        if problem is not None:
            problems.append(problem)
        elif load is not None:
            loads.append(load)
    if not problems and {load.arm for load in loads} != {"baseline", "candidate"}:
        message = f"found {len(loads)} loads of one arm, expected both: A (baseline) and C (candidate)"
        problems.append(Problem(where=f"{source}:1", message=message))
    if problems:
        raise ProtocolError.from_problems(source, problems)
    return _with_blocks(loads)


def _header(rows: _Rows, source: str) -> list[str]:
    header = [name.strip().lower() for name in next(rows, [])]
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        message = f"found the columns {', '.join(header) or 'none'}, expected {', '.join(COLUMNS)}"
        raise ProtocolError(message, where=f"{source}:1", hint=f"the first line lacks {' and '.join(missing)}")
    for name in COLUMNS:
        if header.count(name) > 1:
            message = f"found the column {name} {header.count(name)} times, expected it once"
            raise ProtocolError(message, where=f"{source}:1", hint="give each column that is not meant another name")
    return header


def _load(cells: dict[str, str], where: str) -> tuple[LooseLoad | None, Problem | None]:
    label, word, text = (cells.get(name, "") for name in COLUMNS)
    if not label:
        return None, Problem(where=where, message="found no load, expected its label, such as A1")
    if word.lower() not in ARM_WORDS:
        message = f"found the arm {word!r}, expected one of {', '.join(ARM_WORDS)}"
        return None, Problem(where=where, message=message)
    arm = ARM_WORDS[word.lower()]
    rate = float(text) if _RATE.fullmatch(text) else math.nan
    if not LEAST_RATE <= rate <= MOST_RATE:
        message = f"found the rate {text!r}, expected a number above zero such as 43.14"
        return None, Problem(
            where=where, message=message, hint="rates grow with speed: give tokens per second, not times"
        )
    return (None if arm is None else LooseLoad(label=label, arm=arm, rate=rate)), None


def _with_blocks(loads: Sequence[LooseLoad]) -> tuple[LooseLoad, ...]:
    """Give the loads of whole mirrored blocks their number, where the list begins with one."""
    arms = [load.arm for load in loads]
    whole = len(arms) // LOADS_PER_BLOCK * LOADS_PER_BLOCK
    numbers = blocks_of(arms[:whole])
    return tuple(
        LooseLoad(label=load.label, arm=load.arm, rate=load.rate, block=number)
        for load, number in zip(loads, [*numbers, *[None] * (len(arms) - whole)], strict=True)
    )


def judge_rates(
    loads: Sequence[LooseLoad], rule: LossRule, *, max_gap_pp: float = 3.0, calibration: Calibration | None = None
) -> LooseJudgement:
    """Judge a list by the legacy screen and by the loss. An unfinished block leaves the loss undecided."""
    unfinished = _unfinished(loads)
    whole = [load for load in loads if load.block is not None] or list(loads)
    fit: LossFit | None = None
    status: VerdictStatus = "INCONCLUSIVE"
    observations = _observations(loads)
    if not unfinished:
        judgement = judge_loss(observations, rule, calibration=calibration)
        fit, status = judgement.fit, judgement.decision
    arms = [load.arm == "candidate" for load in loads]
    best = math.sqrt(1 / sum(arms) + 1 / (len(arms) - sum(arms)))
    return LooseJudgement(
        loads=tuple(loads),
        screen=_screen(whole, 100 * rule.margin, max_gap_pp),
        status=status,
        fit=fit,
        loss_detected=status == "PASS" and fit is not None and is_loss_detected(fit),
        unfinished=tuple(load.label for load in unfinished),
        confounding=design_factor(range(len(arms)), arms) / best,
        randomisation=None if unfinished else randomisation_test(observations, rule.margin),
    )


def _unfinished(loads: Sequence[LooseLoad]) -> list[LooseLoad]:
    """Return the loads of a block that was begun and not finished: after whole blocks, or three of a first one."""
    tail = [load for load in loads if load.block is None]
    has_blocks = len(tail) < len(loads)
    is_begun = len(tail) < LOADS_PER_BLOCK and is_begun_mirror([load.arm for load in tail])
    return tail if is_begun and (has_blocks or len(tail) == LOADS_PER_BLOCK - 1) else []


def _observations(loads: Sequence[LooseLoad]) -> list[Observation]:
    return [
        Observation(index=place, is_candidate=load.arm == "candidate", rate=load.rate, block=load.block)
        for place, load in enumerate(loads)
    ]


def _screen(loads: Sequence[LooseLoad], max_loss_pct: float, max_gap_pp: float) -> LegacyScreen:
    def rates(arm: Arm, some: Sequence[LooseLoad]) -> list[float]:
        return [load.rate for load in some if load.arm == arm]

    blocks: list[BlockScreen] = []
    members: dict[int, list[LooseLoad]] = {}
    for load in loads:
        if load.block is not None:
            members.setdefault(load.block, []).append(load)
    for block, some in sorted(members.items()):
        pair = rates("baseline", some), rates("candidate", some)
        first, second = screens.mirror_changes_pct(*pair)
        blocks.append(
            BlockScreen(
                block=block,
                first_change_pct=first,
                second_change_pct=second,
                mirror_gap_pp=screens.mirror_gap_pp(*pair),
            )
        )
    pooled = screens.pooled_change_pct(rates("baseline", loads), rates("candidate", loads))
    gap = max((block.mirror_gap_pp for block in blocks), default=None)
    return LegacyScreen(
        pooled_change_pct=pooled,
        mirror_gap_pp=gap,
        max_loss_pct=max_loss_pct,
        max_gap_pp=max_gap_pp,
        passes=screens.is_loss_within(pooled, max_loss_pct) and (gap is None or screens.is_gap_within(gap, max_gap_pp)),
        blocks=tuple(blocks),
    )
