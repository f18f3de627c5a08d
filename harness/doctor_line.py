"""One line of the doctor's page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "missing"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One thing that was looked at. `next` is a command or an action; None where nothing is to be done."""

    topic: str
    name: str
    state: State
    found: str
    next: str | None = None
