"""False alarms: the fault is gone from both arms, and what fires is counted gate by gate."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from protocols.alarms import count_alarms, fault_free
from protocols.errors import ProtocolError
from protocols.load import LIBRARY, load_protocol


def test_a_protocol_without_fault_has_two_right_builds_and_no_control():
    base = load_protocol(LIBRARY / "release-quick.yaml")
    protocol = fault_free(base).protocol
    arms = protocol.arms
    assert [(arm.engine.faults, arm.engine.layout_salt) for arm in (arms.baseline, arms.candidate)] == [
        ((), 0),
        ((), 1),
    ]
    assert [gate.id for gate in protocol.gates] == [gate.id for gate in base.protocol.gates]
    assert {getattr(gate, "expect", "PASS") for gate in protocol.gates} == {"PASS"}
    assert (protocol.id, protocol.expect) == ("release-quick.fault-free", None)


def test_the_bytes_of_a_protocol_without_fault_are_fixed_since_the_lock_names_their_hash():
    loaded = fault_free(load_protocol(LIBRARY / "release-quick.yaml"))
    lines = loaded.source.decode().splitlines()
    assert lines[:2] == ["{", ' "assay": 1,']
    assert loaded.source == (json.dumps(json.loads(loaded.source), indent=1) + "\n").encode()


def test_every_bundled_protocol_over_builds_of_ours_can_be_run_without_fault():
    for path in sorted(LIBRARY.glob("*.yaml")):
        loaded = load_protocol(path)
        kinds = {arm.engine.kind for arm in (loaded.protocol.arms.baseline, loaded.protocol.arms.candidate)}
        if kinds == {"bundled"}:
            assert fault_free(loaded).protocol.arms.baseline.engine.faults == ()


def test_an_arm_that_we_did_not_build_is_refused(world):
    loaded = load_protocol(world.protocol())
    with pytest.raises(ProtocolError, match="found an engine of kind llama-server, expected bundled") as caught:
        fault_free(loaded)
    assert caught.value.where == "fake-pair: arms.baseline.engine.kind"


def test_an_exact_gate_may_never_fire_and_one_over_rates_in_a_tenth_of_the_campaigns():
    loaded = load_protocol(LIBRARY / "served-pair.yaml")
    gates = [gate.id for gate in loaded.protocol.gates]
    speed = next(gate.id for gate in loaded.protocol.gates if gate.kind == "loss")
    exact = next(gate.id for gate in loaded.protocol.gates if gate.kind == "exact_tokens")
    good = [(gate, "PASS") for gate in gates]
    one_speed = [(gate, "FAIL" if gate == speed else "PASS") for gate in gates]
    one_exact = [(gate, "FAIL" if gate == exact else "PASS") for gate in gates]

    def too_often(*campaigns: list[tuple[str, str]]) -> set[str]:
        return {one.gate for one in count_alarms(loaded, campaigns) if one.is_too_often}

    assert too_often(*[good] * 10) == set()
    assert too_often(one_speed, *[good] * 9) == set()
    assert too_often(one_speed, *[good] * 8) == {speed}
    assert too_often(one_exact, *[good] * 49) == {exact}
    (found,) = [one for one in count_alarms(loaded, [one_speed, good]) if one.gate == speed]
    assert (found.fired, found.campaigns, found.is_exact, found.statuses) == (1, 2, False, Counter(FAIL=1, PASS=1))
