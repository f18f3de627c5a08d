"""What one key alone cannot show: schedules that cannot decide, arms that are alike, budgets that cannot hold.

Every check yields findings with the path of the key at fault. A finding is a refusal, or a warning where the protocol
can be carried out but says less than its author may think. Gates are checked in `gate_semantics.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from protocols.check_semantics import check_checks, has_equal_arms
from protocols.endpoint_semantics import check_endpoints, is_one_address
from protocols.findings import Finding
from protocols.gate_schema import CheckGate, LossGate, ScreenLossGate
from protocols.gate_semantics import check_gates
from protocols.looks import look_blocks
from protocols.measurements import ARMS
from protocols.measurements import Arm as ArmName
from protocols.schedule import expand_schedule
from protocols.schema import (
    BlocksSchedule,
    BundledEngine,
    ExplicitSchedule,
    LlamaServerEngine,
    ModelReference,
    OpenAIEngine,
    Protocol,
)
from protocols.stats import LEAST_LOADS, MIN_DF
from protocols.validity_semantics import check_validity
from protocols.yaml_tree import PathPart

FITTED_PARAMETERS = 3
"""Level, loss and drift: what the loss fit takes from the degrees of freedom."""

SHORTEST_LOAD_S = 1
"""No fresh load starts, answers and stops in less than this."""

_SECRET_NAME = re.compile(r"(?i)(^|_)(api_?key|key|token|secret|password|passwd|credentials?|auth)(_|$)")
_RELATIVE_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")


def check_protocol(protocol: Protocol) -> tuple[Finding, ...]:
    """Return every finding about a protocol whose keys are sound one by one."""
    findings: list[Finding] = [*_check_model(protocol), *_check_arms(protocol)]
    schedule_findings = list(_check_schedule(protocol))
    findings += schedule_findings
    findings += [*_check_workloads(protocol), *_check_limits(protocol), *check_gates(protocol), *check_checks(protocol)]
    findings += [*check_validity(protocol), *check_endpoints(protocol)]
    if not schedule_findings:
        findings += _check_claim(protocol)
    return tuple(findings)


def _check_model(protocol: Protocol) -> Iterator[Finding]:
    model = protocol.model
    if model.name is not None and model.path is not None:
        message = "found both name and path, expected exactly one of them"
        yield Finding(path=("model",), message=message, hint="write {name: smollm2}")
    started = [name for name in ARMS if not isinstance(protocol.arm(name).engine, OpenAIEngine)]
    if model.name is None and model.path is None and (started or model != ModelReference()):
        why = f"the {started[0]} is started with it" if started else "its companions stand beside it"
        message = f"found neither name nor path, expected exactly one of them: {why}"
        yield Finding(path=("model",), message=message, hint="write model: {name: smollm2}")


def _check_arms(protocol: Protocol) -> Iterator[Finding]:
    for name in ARMS:
        arm = protocol.arm(name)
        for variable in arm.environment:
            if _SECRET_NAME.search(variable):
                yield Finding(
                    path=("arms", name, "environment", variable),
                    message="found a name that looks like a secret, expected none: protocols are published",
                    hint="set it in the environment of assay instead",
                )
        yield from _check_drafts(protocol, name)
        if isinstance(arm.engine, BundledEngine):
            kinds = [fault.split("=")[0] for fault in arm.engine.faults]
            path: tuple[PathPart, ...] = ("arms", name, "engine", "faults")
            if len(set(kinds)) < len(kinds):
                yield Finding(path=path, message="found a fault twice, expected each once", hint="keep one of them")
            controls = {gate.arm for gate in protocol.gates if isinstance(gate, CheckGate) and gate.expect == "FAIL"}
            if kinds and protocol.expect is None and name not in controls:
                message = "the arm has a known fault, and the protocol states no expected verdict"
                yield Finding(path=path, message=message, hint="write expect: FAIL", is_warning=True)
    if has_equal_arms(protocol) and protocol.telemetry.off_in is None and not is_one_address(protocol):
        message = "the candidate is the same as the baseline: this compares an engine with itself (A/A)"
        yield Finding(path=("arms", "candidate"), message=message, is_warning=True)


def _check_drafts(protocol: Protocol, name: ArmName) -> Iterator[Finding]:
    engine, settings = protocol.arm(name).engine, protocol.settings_of(name)
    override = protocol.arm(name).settings
    is_own = override is not None and override.drafts is not None
    path: tuple[PathPart, ...] = ("arms", name, "settings", "drafts") if is_own else ("settings", "drafts")
    if settings.drafts and settings.slots > 1:
        message = f"found {settings.drafts} drafts with {settings.slots} slots for the {name}, expected one slot"
        yield Finding(path=path, message=message, hint="write slots: 1, or drafts: 0")
    if settings.drafts and isinstance(engine, LlamaServerEngine):
        message = f"the {name} is a llama-server, which does not know this setting"
        yield Finding(path=path, message=message, hint="write its own flags into engine.arguments, and drafts: 0 here")


def _check_schedule(protocol: Protocol) -> Iterator[Finding]:
    schedule = protocol.schedule
    if not isinstance(schedule, ExplicitSchedule):
        yield from _check_looks(protocol, schedule)
        return
    path: tuple[PathPart, ...] = ("schedule", "order")
    if not schedule.order:
        yield Finding(path=path, message="found no loads, expected some", hint="write [A1, C1, C2, A2]")
        return
    for label, times in Counter(schedule.order).items():
        if times > 1:
            yield Finding(
                path=path, message=f"found the load {label} {times} times, expected each once", hint="renumber it"
            )
    for letter, arm in (("A", "baseline"), ("C", "candidate")):
        numbers = [int(label[1:]) for label in dict.fromkeys(schedule.order) if label[0] == letter]
        if not numbers:
            other = "C" if letter == "A" else "A"
            message = f"found no load {letter}1 ({arm}), expected both arms: {other} alone compares nothing"
            yield Finding(path=path, message=message, hint=f"add {letter}1")
        elif numbers != list(range(1, len(numbers) + 1)):
            labels = ", ".join(f"{letter}{number}" for number in numbers)
            wanted = ", ".join(f"{letter}{number}" for number in range(1, len(numbers) + 1))
            yield Finding(
                path=path, message=f"found the order {labels}, expected {wanted}", hint="number loads as they come"
            )


def _check_looks(protocol: Protocol, schedule: BlocksSchedule) -> Iterator[Finding]:
    looks, path = schedule.looks, ("schedule", "looks")
    if not looks:
        if schedule.stopping == "anytime" and schedule.blocks < 2:
            message = "found bounds that hold at any time with one block, which gives none"
            yield Finding(path=("schedule", "stopping"), message=message, hint="use two blocks or more")
        return
    shown = ", ".join(str(look) for look in looks)
    if looks[0] < 2 or list(looks) != sorted(set(looks)) or looks[-1] != schedule.blocks:
        message = f"found {shown}, expected rising numbers from 2, the last {schedule.blocks} like blocks"
        yield Finding(path=path, message=message, hint=f"write [{', '.join(map(str, _some_looks(schedule.blocks)))}]")
    if not any(isinstance(gate, LossGate) and gate.required for gate in protocol.gates):
        message = "found looks without a required gate of kind loss, which alone can end a campaign early"
        yield Finding(path=path, message=message, hint="add a loss gate, or remove looks")


def _some_looks(blocks: int) -> list[int]:
    return sorted({min(2, blocks), *(look for look in (3, 4, 6) if look < blocks), blocks})


def _check_claim(protocol: Protocol) -> Iterator[Finding]:
    """Refuse a claim of non-inferiority that the design cannot decide, whatever the numbers will be."""
    if protocol.claim != "non_inferiority":
        return
    if not any(isinstance(gate, LossGate) and gate.required for gate in protocol.gates):
        message = "found non_inferiority without a required gate of kind loss, which alone can show it"
        yield Finding(path=("claim",), message=message, hint="add a loss gate, or write claim: screen")
    for name in ARMS:
        if isinstance(protocol.arm(name).engine, OpenAIEngine):
            message = f"found non_inferiority with a {name} that is not started afresh, which cannot decide it"
            yield Finding(path=("claim",), message=message, hint="write claim: screen")
    for index, gate in enumerate(protocol.gates):
        if isinstance(gate, ScreenLossGate) and gate.required:
            message = "found a required screen under claim non_inferiority: the verdict could never be PASS"
            yield Finding(path=("gates", index), message=message, hint="write required: false, or claim: screen")
    loads = sum(not position.is_burn_in for position in expand_schedule(protocol.schedule))
    df = max(loads - FITTED_PARAMETERS, 0)
    if protocol.sigma == "loads" and df < MIN_DF:
        message = (
            f"found non_inferiority with {loads} measured loads, which leave {df} degrees of freedom; "
            f"expected {MIN_DF} or more, or calibrated noise"
        )
        hint = "use two blocks or more, or write sigma: calibrated, or claim: screen"
        yield Finding(path=("claim",), message=message, hint=hint)
    if protocol.sigma == "calibrated" and loads < LEAST_LOADS:
        message = f"found non_inferiority with {loads} measured loads, in which a drift of the host looks like a loss"
        yield Finding(path=("claim",), message=message, hint="use a block of four loads, or write claim: screen")
    if protocol.sigma == "calibrated" and df >= MIN_DF:
        message = f"found calibrated noise with {loads} measured loads, which show their own noise"
        yield Finding(path=("sigma",), message=message, hint="write sigma: loads")


def _check_workloads(protocol: Protocol) -> Iterator[Finding]:
    for identifier, times in Counter(workload.id for workload in protocol.workloads).items():
        if times > 1:
            yield Finding(path=("workloads",), message=f"found the id {identifier} {times} times, expected each once")
    for index, workload in enumerate(protocol.workloads):
        path: tuple[PathPart, ...] = ("workloads", index)
        needed = workload.prompt_tokens + workload.generated_tokens
        for name in ARMS:
            context = protocol.settings_of(name).context_tokens
            if needed > context:
                message = f"prompt and generation need {needed} tokens, and the context of the {name} has {context}"
                yield Finding(path=path, message=message, hint=f"write context_tokens: {needed} or more")
            if isinstance(protocol.arm(name).engine, OpenAIEngine) and workload.route == "/completion":
                message = f"found /completion, which the {name} (kind openai) does not have"
                yield Finding(path=(*path, "route"), message=message, hint="write /v1/completions")
        references = [((*path, "request"), workload.request)]
        if workload.warmup is not None:
            references.append(((*path, "warmup", "request"), workload.warmup.request))
        for place, reference in references:
            if _RELATIVE_FILE.fullmatch(reference) is None:
                message = f"found the file name {reference!r}, expected a relative one of plain words without .."
                yield Finding(path=place, message=message, hint="put the file beside the protocol")


def _check_limits(protocol: Protocol) -> Iterator[Finding]:
    limits = protocol.limits
    budget_s = limits.campaign_min * 60
    for key in ("load_s", "request_s"):
        limit_s = getattr(limits, key)
        if limit_s > budget_s:
            message = f"found {limit_s} s, more than the whole campaign may take ({budget_s} s)"
            yield Finding(path=("limits", key), message=message, hint="raise campaign_min or lower this")
    if limits.idle_s > limits.request_s:
        message = f"found {limits.idle_s} s, more than a whole request may take ({limits.request_s} s)"
        yield Finding(path=("limits", "idle_s"), message=message, hint=f"write {limits.request_s} or less")
    loads = len(expand_schedule(protocol.schedule))
    checks = len({(gate.check, gate.arm) for gate in protocol.gates if isinstance(gate, CheckGate)})
    if (loads + checks) * SHORTEST_LOAD_S > budget_s:
        what = f"{loads} fresh loads" + (f" and {checks} checks" if checks else "")
        message = f"found {budget_s} s for {what}, of which none takes less than {SHORTEST_LOAD_S} s"
        yield Finding(path=("limits", "campaign_min"), message=message, hint="raise it, or plan fewer loads")
    if limits.looks_min is not None:
        yield from _check_looks_budget(protocol, limits.looks_min)
    if limits.loads is not None and limits.loads < loads:
        message = f"found {limits.loads}, and the schedule has {loads} loads"
        yield Finding(path=("limits", "loads"), message=message, hint=f"write {loads} or more, or plan fewer blocks")


def _check_looks_budget(protocol: Protocol, looks_min: int) -> Iterator[Finding]:
    path: tuple[PathPart, ...] = ("limits", "looks_min")
    if len(look_blocks(protocol.schedule)) < 2:
        message = f"found {looks_min} min for further looks, and the schedule has none"
        yield Finding(path=path, message=message, hint="remove it, or write looks into the schedule")
    if looks_min > protocol.limits.campaign_min:
        message = f"found {looks_min} min, more than the whole campaign may take ({protocol.limits.campaign_min} min)"
        yield Finding(path=path, message=message, hint="raise campaign_min or lower this")
