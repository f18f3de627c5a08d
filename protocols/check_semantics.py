"""Checks of the checks: sizes that hold what they promise, names that exist, gates that can both hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from protocols.canonical import decimal_text
from protocols.check_schema import Check, RecallCheck
from protocols.checks.base import unmet_need
from protocols.checks.capacity import CapacityCheck
from protocols.checks.images_in_history import ImagesInHistoryCheck
from protocols.checks.operation_cost import OperationCostCheck
from protocols.checks.operator_boundaries import OperatorBoundariesCheck
from protocols.checks.requirements import ASSAY, PLACEHOLDER, PLACEHOLDERS, NumberBound, Requirement, RequirementsCheck
from protocols.checks.served_recall import ServedRecallCheck
from protocols.checks.smoke import SmokeCheck
from protocols.checks.stored_reference import StoredReferenceCheck
from protocols.findings import Finding, unknown
from protocols.gate_schema import CheckGate
from protocols.measurements import ARMS, Arm
from protocols.plain_text import one_line
from protocols.schema import BundledEngine, Protocol
from protocols.yaml_tree import PathPart

Path = tuple[PathPart, ...]

SECRET_TOKENS = 10
"""A key of two words and a code of eight."""
SERVED_SECRETS = 2
MOST_CONTEXT_TOKENS = 16_777_216
"""As for `settings.context_tokens`."""
BEFORE_IMAGE = 64
SHOWN_NAME = 80
QUESTION_TOKENS = 2


def check_checks(protocol: Protocol) -> Iterator[Finding]:
    """Yield every finding about the checks of a protocol."""
    for identifier, times in Counter(check.id for check in protocol.checks).items():
        if times > 1:
            message = f"found the id {identifier} {times} times, expected each once"
            yield Finding(path=("checks",), message=message, hint="give each check an id of its own")
    judged = {gate.check for gate in protocol.gates if isinstance(gate, CheckGate)}
    for index, check in enumerate(protocol.checks):
        if check.id not in judged:
            message = f"no gate judges the check {check.id}, so it is not run"
            hint = f"add {{id: {check.id}-candidate, kind: check, check: {check.id}}} to gates"
            yield Finding(path=("checks", index), message=message, hint=hint, is_warning=True)
        yield from check_model(check, protocol.model.name, ("checks", index))
        yield from _check_sizes(protocol, check, ("checks", index))
    yield from _check_contradictions(protocol)
    yield from _check_equal_arms(protocol)


def check_model(check: Check, name: str | None, path: Path) -> Iterator[Finding]:
    """Refuse a check over another model than the one that it is made for; nothing is said where no name is known."""
    if check.MODEL is not None and name is not None and name != check.MODEL:
        shown = one_line(name if len(name) <= SHOWN_NAME else f"{name[:SHOWN_NAME]}...")  # a file may claim any name
        message = (
            f"{check.kind} asks for private codes, which only {check.MODEL} gives back, and the model here is {shown}"
        )
        hint = f"write model: {{name: {check.MODEL}}}, or remove the check and its gates"
        yield Finding(path=path, message=message, hint=hint)


def check_check_gate(protocol: Protocol, gate: CheckGate, path: Path) -> Iterator[Finding]:
    """Yield every finding about a gate over a check: its name, and what the arms must be able to do."""
    known = [check.id for check in protocol.checks]
    if gate.check not in known:
        yield unknown((*path, "check"), "check", gate.check, known)
        return
    check, other = protocol.check(gate.check), _other(gate.arm)
    for name in (gate.arm, other) if check.BESIDE else (gate.arm,):
        unmet = unmet_need(check, protocol.arm(name).engine.kind)
        if unmet is not None:
            message = f"the {name} cannot be asked for {check.kind}, so this gate will be NOT_RUN: {unmet}"
            hint = "write required: false, or remove the gate"
            yield Finding(path=path, message=message, hint=hint, is_warning=not gate.required)
    engine = protocol.arm(gate.arm).engine
    if gate.expect == "FAIL" and isinstance(engine, BundledEngine) and not engine.faults:
        message = f"found a control that must FAIL, and the {gate.arm} is the bundled engine without a fault"
        hint = "write expect: PASS, or name the fault in the arm"
        yield Finding(path=(*path, "expect"), message=message, hint=hint, is_warning=True)


def _other(arm: Arm) -> Arm:
    return "candidate" if arm == "baseline" else "baseline"


def _check_contradictions(protocol: Protocol) -> Iterator[Finding]:
    """Find pairs of gates over one check of one arm that cannot both PASS."""
    first: dict[tuple[str, Arm], CheckGate] = {}
    for index, gate in enumerate(protocol.gates):
        if not isinstance(gate, CheckGate):
            continue
        before = first.setdefault((gate.check, gate.arm), gate)
        if before.expect != gate.expect:
            message = (
                f"found expect: {gate.expect}, and the gate {before.id} expects {before.expect} of the same check and "
                "arm: both can never hold"
            )
            yield Finding(path=("gates", index, "expect"), message=message, hint=f"remove {before.id} or {gate.id}")


def has_equal_arms(protocol: Protocol) -> bool:
    """Whether both arms are one engine with one environment and the same settings, as far as the protocol says."""
    baseline, candidate = protocol.arms.baseline, protocol.arms.candidate
    is_same_engine = baseline.engine == candidate.engine and baseline.environment == candidate.environment
    return is_same_engine and protocol.settings_of("baseline") == protocol.settings_of("candidate")


def _check_equal_arms(protocol: Protocol) -> Iterator[Finding]:
    """Find a check that must FAIL in one arm and PASS in the other, where both are the same: once, for all of them."""
    if not has_equal_arms(protocol):
        return
    gates = [gate for gate in protocol.gates if isinstance(gate, CheckGate)]
    fails = {(gate.check, gate.arm) for gate in gates if gate.expect == "FAIL"}
    split = sorted({gate.check for gate in gates if gate.expect == "PASS" and (gate.check, _other(gate.arm)) in fails})
    if split:
        message = f"the arms are the same, and one must FAIL what the other must PASS: {', '.join(split)}"
        yield Finding(path=("arms", "candidate"), message=message, hint="name the other engine in one of the arms")


def _check_sizes(protocol: Protocol, check: Check, path: Path) -> Iterator[Finding]:
    match check:
        case RecallCheck() | ServedRecallCheck():
            yield from _check_recall(check, (*path, "distance_tokens"))
        case ImagesInHistoryCheck():
            yield from _check_images(check, path)
        case StoredReferenceCheck():
            yield from _check_reference(protocol, check, path)
        case SmokeCheck():
            yield from _check_smoke(protocol, check, (*path, "workloads"))
        case CapacityCheck():
            yield from _check_capacity(protocol, check, path)
        case OperationCostCheck():
            yield from _check_cost(check, path)
        case RequirementsCheck():
            yield from _check_requirements(protocol, check, (*path, "requirements"))
        case OperatorBoundariesCheck():
            yield from _check_boundaries(check, path)
        case _:
            pass


def _check_boundaries(check: OperatorBoundariesCheck, path: Path) -> Iterator[Finding]:
    if check.tolerance <= 0:
        message = f"found {decimal_text(check.tolerance)}, expected a number above 0"
        yield Finding(path=(*path, "tolerance"), message=message, hint='write a value such as "0.000001"')
    if len(set(check.rows)) < len(check.rows):
        yield Finding(path=(*path, "rows"), message="found a count of rows twice, expected each once")


def _check_requirements(protocol: Protocol, check: RequirementsCheck, path: Path) -> Iterator[Finding]:
    for identifier, times in Counter(one.id for one in check.requirements).items():
        if times > 1:
            message = f"found the id {identifier} {times} times, expected each once"
            yield Finding(path=path, message=message, hint="give each requirement an id of its own")
    for index, one in enumerate(check.requirements):
        yield from _check_words(one, (*path, index, "run"))
        if one.limit_s > (whole_s := 60 * protocol.limits.campaign_min):
            message = f"found {one.limit_s} s, more than the whole campaign may take ({whole_s} s)"
            yield Finding(path=(*path, index, "limit_s"), message=message, hint="raise campaign_min or lower this")
        if one.not_run_exit_code == one.exit_code:
            message = f"found {one.exit_code} for both, so nothing could tell a PASS from a NOT_RUN"
            yield Finding(path=(*path, index, "not_run_exit_code"), message=message, hint="write another code, or null")
        if one.number is not None:
            yield from _check_bound(one.number, (*path, index, "number"))


def _check_words(one: Requirement, path: Path) -> Iterator[Finding]:
    for number, word in enumerate(one.run):
        is_assay = number == 0 and word == ASSAY
        for name in () if is_assay else PLACEHOLDER.findall(word):
            if name == ASSAY:
                message = f"found {ASSAY} within the words, and it stands for a whole program"
                yield Finding(path=(*path, number), message=message, hint="write it as the first word, alone")
            elif name not in PLACEHOLDERS:
                yield unknown((*path, number), "placeholder", name, (*PLACEHOLDERS, ASSAY))


def _check_bound(bound: NumberBound, path: Path) -> Iterator[Finding]:
    if bound.least is None and bound.most is None:
        message = "found neither least nor most, so every number holds"
        yield Finding(path=path, message=message, hint="write one of them, or remove number")
    elif bound.least is not None and bound.most is not None and bound.least > bound.most:
        message = f"found least {decimal_text(bound.least)} above most {decimal_text(bound.most)}: no number holds"
        yield Finding(path=(*path, "least"), message=message, hint="exchange the two")


def _check_recall(check: RecallCheck | ServedRecallCheck, path: Path) -> Iterator[Finding]:
    secrets = check.secrets if isinstance(check, RecallCheck) else SERVED_SECRETS
    if check.distance_tokens < secrets * SECRET_TOKENS:
        message = f"found {check.distance_tokens} tokens, which do not hold {secrets} codes"
        yield Finding(path=path, message=message, hint=f"write {secrets * SECRET_TOKENS} or more")
    if isinstance(check, ServedRecallCheck) and check.slots * check.distance_tokens >= MOST_CONTEXT_TOKENS:
        message = f"found {check.distance_tokens} tokens in {check.slots} slots, more than a server's context holds"
        yield Finding(path=path, message=message, hint=f"write {MOST_CONTEXT_TOKENS // check.slots - 1} or less")


def _check_cost(check: OperationCostCheck, path: Path) -> Iterator[Finding]:
    if len(set(check.batches)) < len(check.batches):
        yield Finding(path=(*path, "batches"), message="found a batch twice, expected each once")
    for name in ("precision_pct", "most_increase_pct"):
        if not 0 < getattr(check, name) < 100:
            message = f"found {getattr(check, name)}, expected a percentage above 0 and below 100"
            yield Finding(path=(*path, name), message=message, hint='write a value such as "2"')


def _check_capacity(protocol: Protocol, check: CapacityCheck, path: Path) -> Iterator[Finding]:
    context = check.context_tokens or min(protocol.settings_of(arm).context_tokens for arm in ARMS)
    if check.generated_tokens >= context:
        message = f"found {check.generated_tokens} tokens, which leave no prompt in a context of {context}"
        yield Finding(path=(*path, "generated_tokens"), message=message, hint=f"write {context - 1} or less")


def _check_smoke(protocol: Protocol, check: SmokeCheck, path: Path) -> Iterator[Finding]:
    known = [workload.id for workload in protocol.workloads]
    for index, name in enumerate(check.workloads):
        if name not in known:
            yield unknown((*path, index), "workload", name, known)
    if len(set(check.workloads)) < len(check.workloads):
        yield Finding(path=path, message="found a workload twice, expected each once", hint="name it once")


def _check_images(check: ImagesInHistoryCheck, path: Path) -> Iterator[Finding]:
    depths = (*path, "depths")
    if any(left >= right for left, right in pairwise(check.depths)):
        yield Finding(path=depths, message="found depths that do not rise", hint="write the smallest first")
    least = max(check.ubatch_tokens + BEFORE_IMAGE, check.distance_tokens) + QUESTION_TOKENS
    if min(check.depths) < least:
        message = f"found {min(check.depths)} tokens, which hold no full chunk after the image and no code so far back"
        yield Finding(path=depths, message=message, hint=f"write {least} or more, or lower ubatch_tokens")
    if check.most_ratio < 1:
        message = f"found {decimal_text(check.most_ratio)}: with an image it would have to cost less than without"
        yield Finding(path=(*path, "most_ratio"), message=message, hint='write "1" or more')


def _check_reference(protocol: Protocol, check: StoredReferenceCheck, path: Path) -> Iterator[Finding]:
    known = {workload.id: workload for workload in protocol.workloads}
    if check.workload not in known:
        yield unknown((*path, "workload"), "workload", check.workload, known)
        return
    drafted, accepted = check.drafted_tokens, check.accepted_tokens
    if drafted is not None and accepted is not None and accepted > drafted:
        message = f"found {accepted} accepted of {drafted} drafted tokens"
        yield Finding(path=(*path, "accepted_tokens"), message=message, hint=f"write {drafted} or less")
    generated = known[check.workload].generated_tokens
    if len(check.tokens) > generated:
        message = f"found {len(check.tokens)} ids, and the workload generates {generated}"
        yield Finding(path=(*path, "tokens"), message=message, hint="store no more ids than are generated")
