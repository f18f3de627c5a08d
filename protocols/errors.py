"""The one family of errors that Assay raises on purpose, and the exit code that each kind means.

Every error says whose fault it is (its class), what was wrong (the message), where (`where`) and what to do next
(`hint`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong in a file.

    `where` is `file:line` or `file:line: key.path`; `message` says what was found and what is expected; `hint` says
    what to write instead.
    """

    where: str
    message: str
    hint: str | None = None

    def line(self) -> str:
        """Return the problem as one line of text: `where: message; hint`."""
        text = f"{self.where}: {self.message}"
        return text if self.hint is None else f"{text}; {self.hint}"


class AssayError(Exception):
    """Base of the families. `str(error)` is one sentence: what was wrong."""

    exit_code: ClassVar[int] = 5
    family: ClassVar[str] = "assay"

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        return self.message

    def lines(self) -> tuple[str, ...]:
        """Return everything a person must read, one line a problem."""
        text = self.message if self.where is None else f"{self.where}: {self.message}"
        return (text if self.hint is None else f"{text}; {self.hint}",)


class ProtocolError(AssayError):
    """The protocol, its requests or the command is wrong: nothing was started (exit code 2)."""

    exit_code: ClassVar[int] = 2
    family: ClassVar[str] = "protocol"

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        problems: Sequence[Problem] = (),
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.problems: tuple[Problem, ...] = tuple(problems)

    @classmethod
    def from_problems(cls, source: str, problems: Sequence[Problem]) -> ProtocolError:
        """Build one error that carries every problem found in the file `source` (at least one)."""
        first = problems[0]
        if len(problems) == 1:
            return cls(first.message, where=first.where, hint=first.hint, problems=problems)
        message = f"{source} has {len(problems)} problems; the first one is {first.line()}"
        return cls(message, where=first.where, hint=first.hint, problems=problems)

    def lines(self) -> tuple[str, ...]:
        """Return one line a problem, in the order of the file."""
        if not self.problems:
            return super().lines()
        return tuple(problem.line() for problem in self.problems)


class UsageError(AssayError):
    """The command line names something that is not there, or in a form that it does not have (exit code 2)."""

    exit_code: ClassVar[int] = 2
    family: ClassVar[str] = "usage"


class EngineError(AssayError):
    """An engine did not build, start, answer or stop as it must (exit code 5)."""

    exit_code: ClassVar[int] = 5
    family: ClassVar[str] = "engine"


class HostError(AssayError):
    """The host cannot do what was asked: disk, memory, permissions, another campaign (exit code 5)."""

    exit_code: ClassVar[int] = 5
    family: ClassVar[str] = "host"


class EvidenceError(AssayError):
    """Recorded evidence does not hold, or a value may not stand in hashed evidence (exit code 6)."""

    exit_code: ClassVar[int] = 6
    family: ClassVar[str] = "evidence"
