"""From a schedule to the ordered list of fresh loads: a pure function of the protocol.

Coins: block n (numbered from 1) is mirrored (candidate, baseline, baseline, candidate) where the lowest bit of the
first byte of SHA-256("assay.coin.v1" NUL seed NUL n) is 1, seed and n in decimal ASCII. The lock holds the commitment,
SHA-256("assay.seed.v1" NUL seed), and the expanded positions, before the first load.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from protocols.canonical import JsonValue
from protocols.measurements import Arm
from protocols.schema import BlocksSchedule, ExplicitSchedule

BURN_IN_LABEL = "B0"
LOADS_PER_BLOCK = 4

_MIRRORS: dict[str, tuple[Arm, Arm, Arm, Arm]] = {
    "abba": ("baseline", "candidate", "candidate", "baseline"),
    "baab": ("candidate", "baseline", "baseline", "candidate"),
}
_LETTER: dict[Arm, str] = {"baseline": "A", "candidate": "C"}
_ARM: dict[str, Arm] = {"A": "baseline", "C": "candidate"}


@dataclass(frozen=True, kw_only=True)
class Position:
    """One place in the schedule: the load that is started there. `index` counts from 0, burn-in included."""

    index: int
    label: str
    arm: Arm
    block: int | None
    is_burn_in: bool

    def payload(self) -> dict[str, JsonValue]:
        """Return the position as canonical JSON."""
        return {
            "index": self.index,
            "label": self.label,
            "arm": self.arm,
            "block": self.block,
            "is_burn_in": self.is_burn_in,
        }


def coin(seed: int, block: int) -> bool:
    """Return whether block `block` (from 1) is mirrored; the module's docstring has the rule."""
    digest = hashlib.sha256(f"assay.coin.v1\0{seed}\0{block}".encode("ascii")).digest()
    return digest[0] & 1 == 1


def seed_commitment(schedule: BlocksSchedule | ExplicitSchedule) -> str | None:
    """Return the SHA-256 that commits to the seed of the coins, or None where the order has no coins."""
    if isinstance(schedule, ExplicitSchedule) or schedule.order != "coin":
        return None
    return hashlib.sha256(f"assay.seed.v1\0{schedule.seed}".encode("ascii")).hexdigest()


def expand_schedule(schedule: BlocksSchedule | ExplicitSchedule) -> tuple[Position, ...]:
    """Return the loads in order: the burn-in load B0 (baseline) first where there is one, then A1, C1, C2, A2, ..."""
    placed: list[tuple[str, Arm, int | None]] = []
    if isinstance(schedule, BlocksSchedule):
        counts: dict[Arm, int] = {"baseline": 0, "candidate": 0}
        for block in range(1, schedule.blocks + 1):
            for arm in _MIRRORS[_mirror_of(schedule, block)]:
                counts[arm] += 1
                placed.append((f"{_LETTER[arm]}{counts[arm]}", arm, block))
    else:
        arms = [_ARM[label[0]] for label in schedule.order]
        blocks = blocks_of(arms)
        placed.extend(zip(schedule.order, arms, blocks, strict=True))
    positions: list[Position] = []
    if schedule.burn_in:
        positions.append(Position(index=0, label=BURN_IN_LABEL, arm="baseline", block=None, is_burn_in=True))
    for label, arm, number in placed:
        positions.append(Position(index=len(positions), label=label, arm=arm, block=number, is_burn_in=False))
    return tuple(positions)


def _mirror_of(schedule: BlocksSchedule, block: int) -> str:
    if schedule.order != "coin":
        return schedule.order
    return "baab" if coin(schedule.seed, block) else "abba"


def blocks_of(arms: Sequence[Arm]) -> list[int | None]:
    """Give each load its block number, or None for all where the written order is not made of mirrored blocks."""
    groups = [tuple(arms[start : start + LOADS_PER_BLOCK]) for start in range(0, len(arms), LOADS_PER_BLOCK)]
    if groups and all(group in _MIRRORS.values() for group in groups):
        return [place // LOADS_PER_BLOCK + 1 for place in range(len(arms))]
    return [None] * len(arms)


def is_begun_mirror(arms: Sequence[Arm]) -> bool:
    """Return whether an order is the beginning of a mirrored block, at least one load of it."""
    return bool(arms) and any(mirror[: len(arms)] == tuple(arms) for mirror in _MIRRORS.values())
