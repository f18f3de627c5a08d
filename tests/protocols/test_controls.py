"""Controls: what the list names exists, and a control differs from its protocol in what is wrong with the candidate."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from protocols.controls import IDENTITY, VALIDITY, Control, base_protocol, control_protocol, load_controls, outcome_of
from protocols.errors import ProtocolError

CONTROL = Control(id="x", meaning="it is wrong", faults=("leak",), protocol="control-served", gate="replies")


def write(tmp_path: Path, **changes: object) -> Path:
    value = {"assay_controls": 1, "controls": [CONTROL.model_dump(mode="json") | changes]}
    (tmp_path / "controls.yaml").write_text(yaml.safe_dump(value))
    return tmp_path / "controls.yaml"


def test_every_bundled_control_names_a_protocol_and_a_gate_of_it():
    controls = load_controls()
    assert len(controls) >= 6
    assert len({one.id for one in controls}) == len(controls)


@pytest.mark.parametrize(
    ("text", "changed", "words"), [("id: x", "id: x\n  id: x", "twice"), ("id: x", "id: &a x", "anchor")]
)
def test_a_list_with_a_key_twice_or_an_anchor_is_refused(tmp_path: Path, text: str, changed: str, words: str):
    path = write(tmp_path)
    path.write_text(path.read_text().replace(text, changed))
    with pytest.raises(ProtocolError, match=words):
        load_controls(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gate": "nothing"}, "the control x names the gate nothing, expected one of identity, complete"),
        ({"protocol": "no-such"}, "no-such"),
        ({"faults": []}, "one of faults, swap_library and throttled_gpu"),
        ({"swap_library": True}, "one of faults, swap_library and throttled_gpu"),
        ({"throttled_gpu": True}, "one of faults, swap_library and throttled_gpu"),
        ({"gate": "validity"}, "the control x names the gate validity, expected one of identity, complete"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_list_that_cannot_be_carried_out_is_refused_in_words(tmp_path: Path, changes: dict[str, object], words: str):
    with pytest.raises(ProtocolError) as caught:
        load_controls(write(tmp_path, **changes))
    assert words in "\n".join(caught.value.lines())


def test_a_control_changes_the_candidate_only():
    base = base_protocol(CONTROL)
    changed = control_protocol(base, CONTROL, {"LD_LIBRARY_PATH": "/other"}).protocol
    before, after = base.protocol.model_dump(), changed.model_dump()
    assert after["arms"]["candidate"]["engine"]["faults"] == ("leak",)
    assert after["arms"]["candidate"]["environment"] == {"GOMP_SPINCOUNT": "0", "LD_LIBRARY_PATH": "/other"}
    assert (after["id"], after["title"]) == ("control-served.x", "Control: it is wrong")
    for value in (before, after):
        for key in ("id", "title"):
            del value[key]
        del value["arms"]["candidate"]
    assert after == before


def outcome(
    statuses: list[tuple[str, str]], *, required: bool = True, control: Control | None = CONTROL, invalid: bool = False
):
    gates = [(gate, status, required) for gate, status in statuses]
    return outcome_of("control-served", control, campaign="c", verdict="FAIL", gates=gates, has_invalid_loads=invalid)


def test_a_fault_is_caught_by_the_gate_that_is_meant_to_only():
    assert outcome([("replies", "FAIL"), ("tokens", "FAIL")]).caught
    assert outcome([("replies", "PASS"), ("tokens", "FAIL")]).caught is False
    assert outcome([("replies", "NOT_COMPARABLE")]).caught is False, "the baseline does it too"
    assert outcome([("replies", "INCONCLUSIVE")]).caught is False, "what could not be decided has caught nothing"
    assert outcome([("replies", "NOT_RUN")]).not_run == ("replies",)


def test_identity_fires_where_a_load_did_not_run_what_is_locked():
    control = CONTROL.model_copy(update={"gate": IDENTITY})
    assert outcome([], control=control, invalid=True).caught
    assert not outcome([], control=control).caught


def test_validity_fires_where_a_rule_about_the_host_left_a_block_out():
    control = Control(id="x", meaning="it throttles", throttled_gpu=True, protocol="control-telemetry", gate=VALIDITY)
    for has_invalid_blocks in (True, False):
        found = outcome_of(
            "control-telemetry",
            control,
            campaign="c",
            verdict="PASS",
            gates=[("loss", "INCONCLUSIVE", False)],
            has_invalid_loads=False,
            has_invalid_blocks=has_invalid_blocks,
        )
        assert (found.caught, found.fired) == (has_invalid_blocks, (VALIDITY,) * has_invalid_blocks)


def test_without_a_fault_every_gate_that_fires_is_a_false_alarm():
    assert outcome([("replies", "PASS"), ("tokens", "NOT_RUN")], control=None).caught
    assert not outcome([("replies", "FAIL")], control=None).caught
    assert not outcome([("complete", "NOT_COMPARABLE")], control=None).caught
    assert not outcome([], control=None, invalid=True).caught
    alarm = outcome_of(
        "p", None, campaign="c", verdict="PASS", gates=[], has_invalid_loads=False, has_invalid_blocks=True
    )
    assert (alarm.caught, alarm.fired) == (False, (VALIDITY,))
    drift = outcome([("mirror", "FAIL")], control=None, required=False)
    assert (drift.caught, drift.fired) == (True, ("mirror",))
