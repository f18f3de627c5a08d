"""What the checks say of both arms, side by side: what was broken, what is repaired, what was not tested."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from protocols.check_schema import Check
from protocols.checks.requirements import RequirementsCheck
from protocols.measurements import ARMS
from reports.facts import Facts, GateFact

NOT_ASKED: Final = "not asked"
REPAIRED: Final = "was broken, is repaired"
STILL_BROKEN: Final = "was broken, still is"
BROKEN: Final = "broken in the candidate"
SOUND: Final = "sound"
NOT_TESTED: Final = "not tested"
NOT_DECIDED: Final = "not decided"
BLIND: Final = "the check is blind: the baseline's known fault does not show"
ORDER: Final = (REPAIRED, STILL_BROKEN, BROKEN, BLIND, SOUND, NOT_DECIDED, NOT_TESTED)
COLUMNS: Final = ("check", "what it promises", "baseline", "candidate", "so")


class CheckRow(NamedTuple):
    """One check: its name, its promise, what each arm showed, and what follows."""

    check: str
    promise: str
    baseline: str
    candidate: str
    so: str


def check_rows(facts: Facts) -> tuple[CheckRow, ...]:
    """Return one row for each check of the protocol, in its order."""
    return tuple(_row(check, facts.gates) for check in facts.protocol.checks)


def requirement_rows(facts: Facts) -> tuple[CheckRow, ...]:
    """Return one row for each requirement of a project's own list, named `CHECK: REQUIREMENT`."""
    rows = []
    for check in facts.protocol.checks:
        if not isinstance(check, RequirementsCheck):
            continue
        judged = _judged(check, facts.gates)
        for place, one in enumerate(check.requirements):
            baseline, candidate = (_requirement_outcome(judged.get(arm), place) for arm in ARMS)
            so = _follows(baseline, candidate, must_fail=False)
            rows.append(CheckRow(f"{check.id}: {one.id}", one.meaning or " ".join(one.run), baseline, candidate, so))
    return tuple(rows)


def check_summary(rows: Iterable[CheckRow]) -> tuple[str, ...]:
    """Return one line for each thing that can follow, with the checks that it holds for."""
    found: dict[str, list[str]] = {so: [] for so in ORDER}
    for row in rows:
        found[row.so].append(row.check)
    return tuple(f"{so[0].upper()}{so[1:]}: {', '.join(names)}." for so, names in found.items() if names)


def _row(check: Check, gates: Iterable[GateFact]) -> CheckRow:
    judged = _judged(check, gates)
    baseline, candidate = (_outcome(judged.get(arm)) for arm in ARMS)
    control = judged.get("baseline")
    must_fail = control is not None and control.inputs["expect"] == "FAIL"
    shown = f"{baseline}, as it must" if must_fail and baseline == "FAIL" else baseline
    promise = " ".join((type(check).__doc__ or "").split("\n\n")[0].split())
    return CheckRow(check.id, promise, shown, candidate, _follows(baseline, candidate, must_fail=must_fail))


def _judged(check: Check, gates: Iterable[GateFact]) -> dict[str, GateFact]:
    """Return the gate over a check by the arm that it judges."""
    return {str(gate.inputs["arm"]): gate for gate in gates if gate.kind == "check" and _is_of(gate, check)}


def _requirement_outcome(gate: GateFact | None, place: int) -> str:
    """Return what one requirement showed; where the list as a whole was not run, what the list is."""
    if gate is None:
        return NOT_ASKED
    rows = gate.inputs.get("requirements")
    return str(rows[place]["status"]) if isinstance(rows, list) else str(gate.inputs["outcome"])


def _is_of(gate: GateFact, check: Check) -> bool:
    return gate.inputs.get("check") == check.id


def _outcome(gate: GateFact | None) -> str:
    return NOT_ASKED if gate is None else str(gate.inputs["outcome"])


def _follows(baseline: str, candidate: str, *, must_fail: bool) -> str:
    if must_fail and baseline == "PASS":
        return BLIND
    if candidate == "PASS":
        return REPAIRED if baseline == "FAIL" else SOUND
    if candidate == "FAIL":
        return STILL_BROKEN if baseline == "FAIL" else BROKEN
    return NOT_DECIDED if candidate == "INCONCLUSIVE" else NOT_TESTED
