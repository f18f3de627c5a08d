"""Positive controls: known faults, the protocol that each is run under, and the gate that is there to catch it.

A control is its protocol with one change: what is wrong with the candidate. A protocol without any fault is run too: a
gate that fires there cannot be believed anywhere else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from protocols.errors import ProtocolError
from protocols.load import LIBRARY, PACKAGE, LoadedProtocol, load_protocol, parse_protocol
from protocols.problems import schema_problems
from protocols.schema import BundledEngine, Protocol
from protocols.vocabulary import Identifier, Line, Part
from protocols.yaml_tree import parse_yaml, plain_value

CONTROLS: Final = PACKAGE / "controls.yaml"
IDENTITY: Final = "identity"
"""Stands for the comparison of every load with the lock: a load that runs something else is INVALID."""
VALIDITY: Final = "validity"
"""Stands for the protocol's rules about the host: a block that they leave out of the losses."""
_FIRED: Final = frozenset({"FAIL"})
_ALARMING: Final = frozenset({"FAIL", "NOT_COMPARABLE"})
"""Without a fault, a baseline that breaks what its protocol states is as wrong as a candidate that does."""


class Control(Part):
    """One known fault of a candidate."""

    id: Identifier
    """Name of the control."""
    meaning: Line
    """What is wrong with the candidate, in words."""
    faults: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Faults that are compiled into the candidate."""
    swap_library: bool = False
    """Whether the candidate's process is made to load the library of another build than the locked one."""
    throttled_gpu: bool = False
    """Whether the telemetry of the candidate's loads is that of a made-up GPU whose clock collapses under a limit."""
    protocol: Identifier
    """Bundled protocol that it is run under."""
    gate: Identifier
    """Gate that is there to catch it; `identity` for the comparison of loads with the lock, `validity` for the rules
    about the host."""

    @model_validator(mode="after")
    def _has_a_fault(self) -> Self:
        if sum((bool(self.faults), self.swap_library, self.throttled_gpu)) != 1:
            raise ValueError("a control has one of faults, swap_library and throttled_gpu")
        return self


class ControlList(Part):
    """The controls of a file."""

    assay_controls: Literal[1]
    """Version of the format."""
    controls: Annotated[tuple[Control, ...], Field(strict=False, min_length=1)]
    """The controls, in the order in which they are run."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one campaign of a control showed. `control` is None for the protocol without any fault."""

    protocol: str
    control: Control | None
    campaign: str
    verdict: str
    caught: bool
    """Whether the gate that is meant to fired; without a fault, whether no required gate fired."""
    fired: tuple[str, ...]
    """Every gate that fired, `identity` and `validity` among them."""
    not_run: tuple[str, ...]
    """Gates that could not be judged."""


def load_controls(path: Path = CONTROLS) -> tuple[Control, ...]:
    """Read a list of controls. ProtocolError carries every problem, names that do not exist among them."""
    tree = parse_yaml(path.read_bytes(), str(path))
    try:
        controls = ControlList.model_validate(plain_value(tree.root)).controls
    except ValidationError as error:
        raise ProtocolError.from_problems(
            str(path), [*tree.problems, *schema_problems(error, tree, ControlList)]
        ) from None
    if tree.problems:
        raise ProtocolError.from_problems(str(path), tree.problems)
    known: dict[str, Protocol] = {}
    for one in controls:
        if one.protocol not in known:
            known[one.protocol] = base_protocol(one).protocol
        rules = [VALIDITY] if known[one.protocol].validity else []
        gates = [IDENTITY, *rules, *(gate.id for gate in known[one.protocol].gates)]
        if one.gate not in gates:
            message = f"the control {one.id} names the gate {one.gate}, expected one of {', '.join(gates)}"
            raise ProtocolError(message, where=str(path))
    names = [one.id for one in controls]
    if len(set(names)) < len(names):
        raise ProtocolError("a control is named twice", where=str(path), hint="give each an id of its own")
    return controls


def base_protocol(control: Control) -> LoadedProtocol:
    """Return the protocol of a control as it is bundled, without any fault."""
    return load_protocol(LIBRARY / f"{control.protocol}.yaml")


def control_protocol(loaded: LoadedProtocol, control: Control, environment: Mapping[str, str]) -> LoadedProtocol:
    """Return the protocol of one control: another candidate, everything else as it is.

    `environment` is added to that of the candidate. ProtocolError where the candidate is no build of ours.
    """
    engine = loaded.protocol.arms.candidate.engine
    if not isinstance(engine, BundledEngine):
        message = f"found a candidate of kind {engine.kind}, expected bundled"
        raise ProtocolError(message, where=f"{loaded.protocol.id}: arms.candidate.engine.kind")
    value: dict[str, Any] = loaded.protocol.model_dump(mode="json")
    value["id"] = f"{loaded.protocol.id}.{control.id}"[:64]
    value["title"] = f"Control: {control.meaning}"[:200]
    value["arms"]["candidate"]["engine"]["faults"] = list(control.faults)
    value["arms"]["candidate"]["environment"] |= environment
    value["expect"] = None
    return parse_protocol((json.dumps(value, indent=1) + "\n").encode(), loaded.path)


def outcome_of(
    protocol: str,
    control: Control | None,
    *,
    campaign: str,
    verdict: str,
    gates: Iterable[tuple[str, str, bool]],
    has_invalid_loads: bool,
    has_invalid_blocks: bool = False,
) -> Outcome:
    """Say what fired. `gates` are (id, status, whether it is required) of every gate.

    A gate that is not required (the drift of the host, say) is shown, and its firing without a fault is no false alarm.
    """
    gates = list(gates)
    firing = _ALARMING if control is None else _FIRED
    fired = [gate for gate, status, _ in gates if status in firing]
    alarms = [gate for gate, status, is_required in gates if status in firing and is_required]
    for name, has_fired in ((IDENTITY, has_invalid_loads), (VALIDITY, has_invalid_blocks)):
        if has_fired:
            fired.append(name)
            alarms.append(name)
    return Outcome(
        protocol=protocol,
        control=control,
        campaign=campaign,
        verdict=verdict,
        caught=control.gate in fired if control is not None else not alarms,
        fired=tuple(fired),
        not_run=tuple(gate for gate, status, _ in gates if status == "NOT_RUN"),
    )
