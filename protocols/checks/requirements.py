"""A project's own requirements: programs that run with a time limit, each with what its end and its output must be.

A requirement is PASS, FAIL or NOT_RUN, judged from the recorded exit and the recorded output; the check is what its
worst requirement is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from pydantic import Field, StringConstraints

from protocols.canonical import JsonValue, decimal_text
from protocols.checks.base import Capability, CheckBase, CheckOutcome, CheckStatus, field, rows_of
from protocols.errors import EvidenceError
from protocols.measurements import CheckObservation
from protocols.results import some_of
from protocols.vocabulary import FileName, Identifier, Line, Part, PlainDecimal

MAX_OUTPUT_BYTES: Final = 4 << 20
"""Output that is kept; a program that writes more is ended."""
ASSAY: Final = "{assay}"
"""Stands for this Assay, as the first word."""
PLACEHOLDERS: Final = ("{folder}", "{model}", "{here}")
"""The arm's build folder or the folder of its server, the model file, and the protocol's folder."""
PLACEHOLDER: Final = re.compile(r"\{[a-z_]+\}")
_NUMBER: Final = re.compile(r"\s*([-+]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,4})?)")
_GOES_ON: Final = re.compile(r"[^\W_]|[.,_'\u00a0\u2009\u202f][0-9]")
"""What shows that a number was cut: a letter, or a mark with a digit behind it, as in 1,234 or 1.2.3."""

Word = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]


class NumberBound(Part):
    """A number in the output, and what it must lie within."""

    after: Line
    """Text right before the number; the last place in the output counts."""
    least: PlainDecimal | None = None
    """Smallest number that holds; null sets no bound."""
    most: PlainDecimal | None = None
    """Largest number that holds; null sets no bound."""


class Requirement(Part):
    """One program and what must come of it."""

    id: Identifier
    """Name of the requirement."""
    meaning: Line | None = None
    """What is required, for the report."""
    run: Annotated[tuple[Word, ...], Field(strict=False, min_length=1, max_length=256)]
    """Program and arguments, run in the protocol's folder without a shell. {assay}, {folder}, {model} and {here} are
    filled in. A program with a slash is a file, any other is looked up in PATH."""
    limit_s: int = Field(ge=1, le=86_400)
    """Seconds until the program must have ended."""
    exit_code: int = Field(default=0, ge=0, le=255)
    """Exit code that holds."""
    not_run_exit_code: int | None = Field(default=None, ge=0, le=255)
    """Exit code by which the program says that it could not test; null means that there is none."""
    number: NumberBound | None = None
    """A number in the output that must lie within bounds; null looks at the exit code alone."""
    files: Annotated[tuple[FileName, ...], Field(strict=False, max_length=256)] = ()
    """Further files that it reads, locked by hash like the program and every argument that is a file."""


class RequirementsCheck(CheckBase):
    """Everything that the project itself requires holds: its suites, its corpora, its own tools."""

    NEEDS: ClassVar[frozenset[Capability]] = frozenset({"server"})

    kind: Literal["requirements"]
    """The check."""
    requirements: Annotated[tuple[Requirement, ...], Field(strict=False, min_length=1, max_length=256)]
    """The requirements, in the order in which they are run."""


class RequirementOutcome(NamedTuple):
    """What one requirement showed. `number` is the number as it stood in the output, None where none was looked for."""

    id: str
    status: CheckStatus
    reason: str
    exit_code: int | None
    number: str | None

    def payload(self) -> dict[str, JsonValue]:
        """Return the outcome as plain JSON values."""
        return self._asdict()


def judge_requirements(check: RequirementsCheck, observation: CheckObservation) -> CheckOutcome:
    """FAIL where a requirement does not hold, else NOT_RUN where one could not be tested, else PASS."""
    rows = rows_of(observation.facts, "requirements", len(check.requirements))
    found = [_judge(one, row, observation) for one, row in zip(check.requirements, rows, strict=True)]
    inputs: dict[str, JsonValue] = {"requirements": [one.payload() for one in found]}
    broken = [f"{one.id} ({one.reason})" for one in found if one.status == "FAIL"]
    not_run = [f"{one.id} ({one.reason})" for one in found if one.status == "NOT_RUN"]
    n_held = len(found) - len(broken) - len(not_run)
    sentence = f"{n_held} of {len(found)} requirements hold"
    if broken:
        sentence += f"; not met: {some_of(broken)}"
    if not_run:
        sentence += f"; not tested: {some_of(not_run)}"
    status: CheckStatus = "FAIL" if broken else "NOT_RUN" if not_run else "PASS"
    return CheckOutcome(status, f"{sentence}.", inputs)


def _judge(one: Requirement, row: Mapping[str, Any], observation: CheckObservation) -> RequirementOutcome:
    if field(row, "id", str) != one.id:
        raise EvidenceError(f"the check left the requirement {row['id']}, expected {one.id}")
    unmet, code, signal = row.get("unmet"), row.get("exit_code"), row.get("signal")
    if isinstance(unmet, str):
        return RequirementOutcome(one.id, "NOT_RUN", unmet, None, None)
    if code is not None and type(code) is not int:
        raise EvidenceError(f"the requirement {one.id} left no exit code")
    status, reason, number = _status(one, row, code, signal, observation)
    return RequirementOutcome(one.id, status, reason, code, number)


def _status(
    one: Requirement, row: Mapping[str, Any], code: int | None, signal: object, observation: CheckObservation
) -> tuple[CheckStatus, str, str | None]:
    if gone := row.get("gone"):
        return "FAIL", f"a locked file is gone: {some_of([str(name) for name in gone])}", None
    if changed := row.get("changed"):
        return "FAIL", f"not what is locked: {some_of([str(name) for name in changed])}", None
    if field(row, "is_too_long", bool):
        return "FAIL", f"ended after more than {MAX_OUTPUT_BYTES} bytes of output", None
    if field(row, "is_timed_out", bool):
        return "FAIL", f"ended after {one.limit_s} s", None
    if code is None:
        return "FAIL", f"ended by signal {signal}", None
    if code == one.not_run_exit_code:
        return "NOT_RUN", f"exit code {code} says that it could not test", None
    if code != one.exit_code:
        return "FAIL", f"exit code {code}, expected {one.exit_code}", None
    if one.number is None:
        return "PASS", f"exit code {code}", None
    return _bounded(one.number, observation.outputs[one.id])


def _bounded(bound: NumberBound, output: bytes) -> tuple[CheckStatus, str, str | None]:
    text, value = _number(bound.after, output)
    if text is None or value is None:
        return "FAIL", f'the output has no number behind "{bound.after}"', None
    if bound.least is not None and value < bound.least:
        return "FAIL", f"{bound.after} {text} is below {decimal_text(bound.least)}", text
    if bound.most is not None and value > bound.most:
        return "FAIL", f"{bound.after} {text} is above {decimal_text(bound.most)}", text
    return "PASS", f"{bound.after} {text}", text


def _number(after: str, output: bytes) -> tuple[str | None, Decimal | None]:
    """Return the number behind the last place of a text, as it stands and exactly; None where none stands there."""
    _, found, behind = output.decode("utf-8", "replace").rpartition(after)
    match = _NUMBER.match(behind) if found else None
    if match is None or _GOES_ON.match(behind, match.end()):
        return None, None
    try:
        return match[1], Decimal(match[1])
    except InvalidOperation:
        return None, None
