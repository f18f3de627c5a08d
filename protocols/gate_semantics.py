"""Checks of the gates: names that exist, margins that make sense, an order that can be followed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from protocols.canonical import decimal_text
from protocols.check_semantics import check_check_gate
from protocols.findings import Finding, unknown
from protocols.gate_schema import (
    CheckGate,
    ColdCacheGate,
    CompletenessGate,
    EqualCountersGate,
    EqualWorkGate,
    ExactTokensGate,
    Gate,
    LossGate,
    MirrorGapGate,
    ScreenLossGate,
    SoundRepliesGate,
)
from protocols.measurements import ARMS
from protocols.schedule import expand_schedule
from protocols.schema import Protocol
from protocols.yaml_tree import PathPart

MAX_ALPHA = Decimal("0.25")
MIN_ALPHA = Decimal("0.0001")

Path = tuple[PathPart, ...]


def check_gates(protocol: Protocol) -> Iterator[Finding]:
    """Yield every finding about the gates of a protocol."""
    for identifier, times in Counter(gate.id for gate in protocol.gates).items():
        if times > 1:
            message = f"found the id {identifier} {times} times, expected each once"
            yield Finding(path=("gates",), message=message, hint="give each gate an id of its own")
    if not any(gate.required for gate in protocol.gates):
        yield Finding(
            path=("gates",), message="found no required gate, expected one or more", hint="write required: true"
        )
    if not any(isinstance(gate, CompletenessGate) for gate in protocol.gates):
        message = "no gate of kind completeness stands here: token counts are then not checked against the stated ones"
        yield Finding(path=("gates",), message=message, hint="add {id: complete, kind: completeness}", is_warning=True)
    for index, gate in enumerate(protocol.gates):
        yield from _check_gate(protocol, gate, ("gates", index))
    yield from _check_cycles(protocol)
    yield from _check_contradictions(protocol)
    if protocol.margin_reason is None and any(isinstance(gate, LossGate) for gate in protocol.gates):
        message = "the key is missing, and a loss gate needs it: how was its margin chosen?"
        yield Finding(path=("margin_reason",), message=message, hint="add it")


def _check_contradictions(protocol: Protocol) -> Iterator[Finding]:
    """Find two statements about one thing that cannot both hold: margins of one rate, cached tokens of one workload."""
    said: dict[tuple[str, ...], tuple[str, object]] = {}
    key: tuple[str, ...]
    for index, gate in enumerate(protocol.gates):
        match gate:
            case LossGate():
                key, name, value = (gate.kind, gate.workload, gate.metric), "margin_pct", decimal_text(gate.margin_pct)
            case ScreenLossGate():
                key, name = (gate.kind, gate.workload, gate.metric), "max_loss_pct"
                value = decimal_text(gate.max_loss_pct)
            case ColdCacheGate():
                key, name, value = (gate.kind, gate.workload), "cached_tokens", str(gate.cached_tokens)
                yield from _check_cached(protocol, gate, ("gates", index, name))
            case _:
                continue
        other, before = said.setdefault(key, (gate.id, value))
        if before != value:
            message = f"found {value}, and the gate {other} states {before} for the same: which of them counts?"
            yield Finding(path=("gates", index, name), message=message, hint=f"remove {other} or {gate.id}")


def _check_cached(protocol: Protocol, gate: ColdCacheGate, path: Path) -> Iterator[Finding]:
    """Find a number of cached tokens that no engine can show: one prompt token is always evaluated."""
    for workload in protocol.workloads:
        if workload.id == gate.workload and gate.cached_tokens >= workload.prompt_tokens:
            prompt = workload.prompt_tokens
            message = f"found {gate.cached_tokens} cached tokens of a prompt of {prompt}, of which one is evaluated"
            yield Finding(path=path, message=message, hint=f"write {workload.prompt_tokens - 1} or less")


def _check_gate(protocol: Protocol, gate: Gate, path: Path) -> Iterator[Finding]:
    yield from _check_names(protocol, gate, path)
    match gate:
        case LossGate():
            yield from _check_loss(protocol, gate, path)
        case MirrorGapGate():
            yield from _check_mirror_gap(protocol, gate, path)
        case ScreenLossGate():
            yield from _check_percent(gate.max_loss_pct, (*path, "max_loss_pct"))
        case SoundRepliesGate():
            yield from _check_percent(gate.timing_limit_pct, (*path, "timing_limit_pct"))
        case ExactTokensGate() | EqualCountersGate():
            yield from _check_ability(protocol, gate, path)
        case EqualWorkGate():
            if len(set(gate.fields)) < len(gate.fields):
                yield Finding(path=(*path, "fields"), message="found a field twice, expected each once")
        case _:
            pass
    if isinstance(gate, (LossGate, MirrorGapGate, ScreenLossGate)):
        yield from _check_metric(protocol, gate, path)


def _check_names(protocol: Protocol, gate: Gate, path: Path) -> Iterator[Finding]:
    """Find names of workloads and checks that are not there."""
    if isinstance(gate, CheckGate):
        yield from check_check_gate(protocol, gate, path)
    elif not isinstance(gate, CompletenessGate):
        known = [workload.id for workload in protocol.workloads]
        if gate.workload not in known:
            yield unknown((*path, "workload"), "workload", gate.workload, known)


def _check_percent(value: Decimal, path: Path) -> Iterator[Finding]:
    if not 0 < value < 100:
        message = f"found {decimal_text(value)}, expected a percentage above 0 and below 100"
        yield Finding(path=path, message=message, hint='write a value such as "2"')


def _check_metric(protocol: Protocol, gate: LossGate | MirrorGapGate | ScreenLossGate, path: Path) -> Iterator[Finding]:
    for workload in protocol.workloads:
        if workload.id == gate.workload and gate.metric == "generation_rate" and workload.generated_tokens < 2:
            message = "found generation_rate for a workload of one token, whose rate is not defined"
            yield Finding(path=(*path, "metric"), message=message, hint="generate two tokens or more")


def _check_loss(protocol: Protocol, gate: LossGate, path: Path) -> Iterator[Finding]:
    yield from _check_percent(gate.margin_pct, (*path, "margin_pct"))
    if not MIN_ALPHA <= gate.alpha <= MAX_ALPHA:
        message = f"found {decimal_text(gate.alpha)}, expected a level from {MIN_ALPHA} to {MAX_ALPHA}"
        yield Finding(path=(*path, "alpha"), message=message, hint='write "0.05"')
    gates = {other.id: other for other in protocol.gates}
    for place, name in enumerate(gate.after):
        if name == gate.id:
            message = "found the gate itself, expected gates that come before it"
            yield Finding(path=(*path, "after", place), message=message, hint="remove it")
        elif name not in gates:
            others = [other for other in gates if other != gate.id and other not in gate.after]
            finding = unknown((*path, "after", place), "gate", name, others)
            yield replace(finding, hint=f"{finding.hint}, or remove the name" if finding.hint else "remove the name")
    equal_first = [gates[name] for name in gate.after if name in gates]
    is_known = any(workload.id == gate.workload for workload in protocol.workloads)
    if is_known and not any(
        isinstance(first, (ExactTokensGate, EqualWorkGate)) and first.workload == gate.workload for first in equal_first
    ):
        message = "no gate in after shows equal work of this workload: speeds of unequal work cannot be compared"
        hint = "name an exact_tokens or equal_work gate of the workload in after"
        yield Finding(path=path, message=message, hint=hint, is_warning=protocol.claim == "screen")


def _check_mirror_gap(protocol: Protocol, gate: MirrorGapGate, path: Path) -> Iterator[Finding]:
    if not 0 <= gate.limit_pp <= 100:
        message = f"found {decimal_text(gate.limit_pp)}, expected percentage points from 0 to 100"
        yield Finding(path=(*path, "limit_pp"), message=message, hint='write "3"')
    measured = [position for position in expand_schedule(protocol.schedule) if not position.is_burn_in]
    if measured and any(position.block is None for position in measured):
        message = "found a mirror gap with a schedule that is not made of mirrored blocks such as A1 C1 C2 A2"
        yield Finding(path=(*path, "kind"), message=message, hint="use blocks, or remove the gate")


def _check_ability(protocol: Protocol, gate: ExactTokensGate | EqualCountersGate, path: Path) -> Iterator[Finding]:
    """Find gates that an arm's kind of engine can never serve, so that they would always be NOT_RUN."""
    able = {"bundled", "folder"} if isinstance(gate, EqualCountersGate) else {"bundled", "folder", "llama-server"}
    what = "work counters" if isinstance(gate, EqualCountersGate) else "token ids"
    for name in ARMS:
        kind = protocol.arm(name).engine.kind
        if kind not in able:
            message = f"the {name} (kind {kind}) reports no {what}, so this gate will be NOT_RUN"
            hint = "write required: false, or remove the gate"
            yield Finding(path=path, message=message, hint=hint, is_warning=not gate.required)


def _check_cycles(protocol: Protocol) -> Iterator[Finding]:
    """Find loss gates that wait for each other."""
    after = {gate.id: set(gate.after) - {gate.id} for gate in protocol.gates if isinstance(gate, LossGate)}
    waiting = {name: {other for other in names if other in after} for name, names in after.items()}
    while ready := [name for name, names in waiting.items() if not names & waiting.keys()]:
        for name in ready:
            del waiting[name]
    if waiting:
        names = ", ".join(sorted(waiting))
        for index, gate in enumerate(protocol.gates):
            if gate.id in waiting:
                message = f"found gates that wait for each other: {names}"
                yield Finding(path=("gates", index, "after"), message=message, hint="remove one of the names")
                return
