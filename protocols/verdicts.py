"""How gate results combine to the verdict of a campaign, and which exit code that verdict has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from protocols.canonical import JsonValue
from protocols.results import GateResult
from protocols.schema import VerdictStatus

EXIT_CODES: dict[VerdictStatus, int] = {
    "PASS": 0,
    "FAIL": 1,
    "INCONCLUSIVE": 3,
    "SCREEN_ONLY": 3,
    "NOT_RUN": 3,
    "INVALID": 4,
    "NOT_COMPARABLE": 4,
}
"""The exit code of each verdict."""

_PRECEDENCE = (130, 6, 5, 4, 2, 1, 3, 0)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The combination of all gate results of one campaign."""

    status: VerdictStatus
    reason: str
    exit_code: int
    loss_detected: bool = False
    """True where the verdict is PASS although a loss above zero is shown in some required gate."""

    def payload(self) -> dict[str, JsonValue]:
        """Return the verdict as canonical JSON."""
        return {
            "status": self.status,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "loss_detected": self.loss_detected,
        }


def combine(results: Sequence[GateResult]) -> Verdict:
    """Combine gate results to one verdict.

    Only required gates count. The first of these that holds is the verdict: FAIL where a gate FAILs; INVALID where a
    load broke a prespecified validity rule; NOT_COMPARABLE where a gate is; NOT_RUN; INCONCLUSIVE; SCREEN_ONLY; else
    PASS. No required gate at all is NOT_RUN: nothing was promised.
    """
    required = [result for result in results if result.required]
    if not required:
        return _verdict("NOT_RUN", "The protocol has no required gate, so nothing can be said.")
    failed = [result for result in required if result.status == "FAIL"]
    if failed:
        return _verdict("FAIL", _sentence("Failed", failed))
    invalid = _invalid_loads(results)
    if invalid:
        return _verdict("INVALID", f"A prespecified validity rule broke in {_names(invalid)}, so nothing is concluded.")
    order: tuple[tuple[VerdictStatus, str], ...] = (
        ("NOT_COMPARABLE", "Not comparable"),
        ("NOT_RUN", "Not run"),
        ("INCONCLUSIVE", "Not decided"),
        ("SCREEN_ONLY", "Screened only, which can reject but never qualify"),
    )
    for status, word in order:
        held = [result for result in required if result.status == status]
        if held:
            return _verdict(status, _sentence(word, held))
    detected = [result for result in required if result.loss_detected]
    if detected:
        ids = _names([result.id for result in detected])
        reason = f"All {len(required)} required gates passed; a loss smaller than the margin was detected in {ids}."
        return _verdict("PASS", reason, loss_detected=True)
    return _verdict("PASS", f"All {len(required)} required gates passed.")


def worst_exit_code(codes: Iterable[int]) -> int:
    """Return the exit code to end with when several hold: 130 first, then 6, 5, 4, 2, 1, 3, 0."""
    held = set(codes)
    for code in _PRECEDENCE:
        if code in held:
            return code
    return max(held, default=0)


def _verdict(status: VerdictStatus, reason: str, *, loss_detected: bool = False) -> Verdict:
    return Verdict(status=status, reason=reason, exit_code=EXIT_CODES[status], loss_detected=loss_detected)


def _invalid_loads(results: Sequence[GateResult]) -> list[str]:
    for result in results:
        if result.kind == "completeness":
            labels = result.inputs.get("invalid_loads")
            if isinstance(labels, list):
                return [str(label) for label in labels]
    return []


def _sentence(word: str, held: Sequence[GateResult]) -> str:
    details = " ".join(f"{result.id}: {result.reason}" for result in held)
    return f"{word}: {_names([result.id for result in held])}. {details}"


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
