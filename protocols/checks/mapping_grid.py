"""Block selection without weights: the fast path against the general one by SHA-256, and the suites of the build."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from protocols.canonical import JsonValue
from protocols.checks.base import Capability, CheckBase, CheckOutcome, field, rows_of
from protocols.errors import EvidenceError
from protocols.measurements import CheckObservation
from protocols.results import some_of

CASES: Final = 288
Suite = Literal["reproducer", "mapping", "state", "allocation", "prefix", "routes", "equality"]
ALL_SUITES: Final[tuple[Suite, ...]] = (
    "reproducer", "mapping", "state", "allocation", "prefix", "routes", "equality",
)  # fmt: skip


class MappingGridCheck(CheckBase):
    """The guarded path hands the graphs the bytes that a scan of all cells gives, and every suite of the build passes.

    One case more compares two histories that differ in one cell: a positive control, whose hashes must differ.
    """

    NEEDS: ClassVar[frozenset[Capability]] = frozenset({"library", "suites"})

    kind: Literal["mapping_grid"]
    """The check."""
    suites: Annotated[tuple[Suite, ...], Field(strict=False, min_length=1, max_length=7)] = ALL_SUITES
    """Suites of the build that run."""


def judge_mapping_grid(check: MappingGridCheck, observation: CheckObservation) -> CheckOutcome:
    """PASS where no suite failed, no input differs between the two paths, and the control's inputs differ."""
    suites = {name: _suite(observation, name) for name in check.suites}
    cases = rows_of(observation.facts, "cases", CASES)
    control = observation.facts.get("control")
    if not isinstance(control, dict):
        raise EvidenceError("the check left no control")
    differing = [name for one in cases for name in _differing(one)]
    is_blind = not list(_differing(control))
    inputs: dict[str, JsonValue] = {
        "cases": CASES,
        "differing": [*differing[:20]],
        "control_differs": not is_blind,
        "suites": {name: {"cases": cases_, "failed": failed} for name, (cases_, failed, _) in suites.items()},
    }
    problems = [
        f"suite {name}: {failed} of {n} cases failed ({first})" for name, (n, failed, first) in suites.items() if failed
    ]
    if differing:
        problems.append(f"inputs differ between the two paths: {some_of(differing)}")
    if is_blind:
        problems.append("the positive control shows no difference: the comparison is blind")
    if problems:
        return CheckOutcome("FAIL", f"Block selection: {'; '.join(problems)}.", inputs)
    n_suites = sum(n for n, _, _ in suites.values())
    reason = (
        f"Both paths give equal SHA-256 of every input in {CASES} cases, the control differs, and {n_suites} cases of "
        f"{len(suites)} suites pass."
    )
    return CheckOutcome("PASS", reason, inputs)


def _suite(observation: CheckObservation, name: str) -> tuple[int, int, str]:
    """Return cases, failed cases, and the first failure in words."""
    suites = observation.facts.get("suites")
    one = suites.get(name) if isinstance(suites, dict) else None
    if not isinstance(one, dict) or field(one, "cases", int) == 0:
        raise EvidenceError(f"the check left no suite {name}")
    failures = one.get("failures")
    first = failures[0] if isinstance(failures, list) and failures else {}
    words = f"{first['case']}: {first['problem']}" if isinstance(first, dict) and "problem" in first else ""
    return field(one, "cases", int), field(one, "failed", int), words


def _differing(case: dict[str, Any]) -> list[str]:
    """Return the inputs of a case whose hashes differ, by case and input."""
    name, tensors = field(case, "name", str), field(case, "inputs", dict)
    if not tensors:
        raise EvidenceError(f"the case {name} has no inputs")
    found = []
    for tensor, hashes in tensors.items():
        if not isinstance(hashes, list) or len(hashes) != 2 or not all(isinstance(one, str) for one in hashes):
            raise EvidenceError(f"the input {tensor} of the case {name} has no two hashes")
        if hashes[0] != hashes[1]:
            found.append(f"{name}: {tensor}")
    return found
