"""Checks of the rules about the host: contradictions, rules that no load can keep, and rules that none can break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from protocols.findings import Finding
from protocols.gate_schema import LossGate, MirrorGapGate, ScreenLossGate
from protocols.measurements import ARMS
from protocols.schedule import expand_schedule
from protocols.schema import OpenAIEngine, Protocol, ValidityRule
from protocols.yaml_tree import PathPart

_PERMILLE = "_permille"
_ENGINE = "engine_"


def check_validity(protocol: Protocol) -> Iterator[Finding]:
    """Yield every finding about the rules of validity of a protocol."""
    if not protocol.validity:
        return
    path: tuple[PathPart, ...] = ("validity",)
    for reading, times in Counter(rule.reading for rule in protocol.validity).items():
        if times > 1:
            message = f"found {times} rules about {reading}, expected one: they contradict each other"
            yield Finding(path=path, message=message, hint="keep the one that is meant")
    if not any(isinstance(gate, (LossGate, MirrorGapGate, ScreenLossGate)) for gate in protocol.gates):
        message = "found rules about the host without a gate over rates, from which alone they take blocks"
        yield Finding(path=path, message=message, hint="add a loss gate, or remove the rules", is_warning=True)
    measured = [position for position in expand_schedule(protocol.schedule) if not position.is_burn_in]
    if measured and any(position.block is None for position in measured):
        message = "found rules about the host with loads outside blocks: a rule takes out a whole block"
        yield Finding(path=path, message=message, hint="use blocks such as A1 C1 C2 A2, or remove the rules")
    if protocol.telemetry.off_in is not None:
        message = f"found rules about the host, and no load of the {protocol.telemetry.off_in} is sampled to check them"
        yield Finding(path=path, message=message, hint="remove telemetry.off_in, or the rules")
    for index, rule in enumerate(protocol.validity):
        yield from _check_rule(protocol, rule, (*path, index))


def _check_rule(protocol: Protocol, rule: ValidityRule, path: tuple[PathPart, ...]) -> Iterator[Finding]:
    period_ms = protocol.telemetry.period_ms
    if rule.reading == "longest_sample_gap_ms" and rule.most < period_ms:
        message = f"found at most {rule.most} ms without a sample, and a sample is taken each {period_ms} ms"
        yield Finding(path=(*path, "most"), message=message, hint=f"write {3 * period_ms} or more")
    if rule.reading.endswith(_PERMILLE) and rule.most >= 1000:
        message = f"found {rule.most} thousandths, which no load can pass: the rule says nothing"
        yield Finding(path=(*path, "most"), message=message, hint="write a number below 1000")
    if rule.reading.startswith(_ENGINE):
        for name in ARMS:
            if isinstance(protocol.arm(name).engine, OpenAIEngine):
                message = f"found {rule.reading}, and the {name} is an endpoint whose process nobody sees"
                yield Finding(path=(*path, "reading"), message=message, hint="remove the rule")
