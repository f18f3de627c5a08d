"""A build taken out of its package, somewhere else, against the build itself; `smoke_package.py` judges it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from protocols.checks.base import Capability, CheckBase
from protocols.vocabulary import Identifier


class SmokeCheck(CheckBase):
    """The package of this build, unpacked, does what the build does on this host; `assay smoke` asks another one.

    The build makes a smoke reference from a fresh start. Then it is packed, unpacked into a new temporary folder,
    started from there, and asked for everything that the reference holds.
    """

    NEEDS: ClassVar[frozenset[Capability]] = frozenset({"package", "server", "token_ids"})

    kind: Literal["smoke"]
    """The check."""
    workloads: Annotated[tuple[Identifier, ...], Field(strict=False, max_length=64)] = ()
    """Workloads whose prompts are asked; an empty list asks all that are posted to /completion as text or ids."""
