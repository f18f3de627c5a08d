"""The order of the fresh loads, as a protocol writes it. `schedule.py` expands it, `looks.py` judges along it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from protocols.vocabulary import Part


class BlocksSchedule(Part):
    """Blocks of four fresh loads, each baseline, candidate, candidate, baseline or its mirror."""

    kind: Literal["blocks"]
    """Says that the order is made of mirrored blocks."""
    blocks: int = Field(ge=1, le=64)
    """Number of blocks of four loads."""
    order: Literal["coin", "abba", "baab"] = "coin"
    """Which mirror each block takes: by committed coin, or always the stated one."""
    seed: int = Field(default=0, ge=0, le=2**53 - 1)
    """Seed of the coins; the lock commits to it before the first load."""
    burn_in: bool = True
    """Whether one discarded baseline load comes first, because a host's first load is often slow."""
    looks: Annotated[tuple[int, ...], Field(strict=False, max_length=64)] = ()
    """Numbers of blocks after which the losses are judged, the last being blocks; the first that decides ends it."""
    stopping: Literal["spent", "anytime"] = "spent"
    """How looks keep the error rate: levels spent and locked beforehand, or bounds that hold at any time."""
    LATER: ClassVar[frozenset[str]] = frozenset({"looks", "stopping"})


LoadLabel = Annotated[str, StringConstraints(pattern=r"^[AC][1-9][0-9]{0,2}$")]


class ExplicitSchedule(Part):
    """Loads in exactly the stated order."""

    kind: Literal["explicit"]
    """Says that the order is written out."""
    order: Annotated[tuple[LoadLabel, ...], Field(strict=False, max_length=256)]
    """Labels such as A1, C1, C2, A2: A is the baseline, C the candidate, numbered from 1 in each arm."""
    burn_in: bool = False
    """Whether one discarded baseline load comes first."""


Schedule = Annotated[BlocksSchedule | ExplicitSchedule, Field(discriminator="kind")]
