"""The bundled release protocols hold together: each fault has a control, each check a candidate, and sizes alone differ."""

from __future__ import annotations

import pytest

from protocols.checks.requirements import RequirementsCheck
from protocols.gate_schema import CheckGate, EqualCountersGate
from protocols.load import library_protocol, load_protocol
from protocols.schema import Protocol

RELEASES = ("release-quick", "release", "release-full", "image-history")
# What the baseline's fault must be found by.
FOUND_BY = {
    "position-only-blocks": {"mapping_grid", "foreign_content", "recall", "served_recall"},
    "copy-loses-index-keys": {"sequence_copy"},
    "state-loses-positions": {"state_round_trip"},
    "norm-65535": {"operator_boundaries"},
    "image-disables-prefix": {"images_in_history", "mapping_grid"},
}


def protocol(name: str) -> Protocol:
    return load_protocol(library_protocol(name)).protocol


def check_gates(one: Protocol) -> list[CheckGate]:
    return [gate for gate in one.gates if isinstance(gate, CheckGate)]


@pytest.mark.parametrize("name", RELEASES)
def test_every_fault_of_the_baseline_has_its_controls_and_nothing_else_must_fail(name: str) -> None:
    one = protocol(name)
    faults = one.arms.baseline.engine.faults  # type: ignore[union-attr]
    controls = {one.check(gate.check).kind for gate in check_gates(one) if gate.expect == "FAIL"}
    assert controls - {"requirements"} == set().union(*(FOUND_BY[fault] for fault in faults))
    assert all(gate.arm == "baseline" and gate.required for gate in check_gates(one) if gate.expect == "FAIL")


@pytest.mark.parametrize("name", RELEASES)
def test_the_candidate_must_pass_every_check_but_the_cost(name: str) -> None:
    one = protocol(name)
    required = {gate.check for gate in check_gates(one) if gate.arm == "candidate" and gate.required}
    assert required == {check.id for check in one.checks} - {"cost"}
    assert one.arms.candidate.engine.faults == ()  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["release", "release-full"])
def test_a_release_is_smoked_out_of_its_package_and_meets_the_requirements_of_its_project(name: str) -> None:
    one = protocol(name)
    kinds = {check.kind: check for check in one.checks}
    asked = {(one.check(gate.check).kind, gate.arm): (gate.expect, gate.required) for gate in check_gates(one)}
    assert asked["smoke", "candidate"] == ("PASS", True)
    assert asked["smoke", "baseline"] == ("PASS", False)
    assert asked["requirements", "candidate"] == ("PASS", True)
    assert asked["requirements", "baseline"] == ("FAIL", True)  # position-only-blocks fails the suites
    listed = kinds["requirements"]
    assert isinstance(listed, RequirementsCheck)
    assert "{folder}/bin/qsa_suites" in [one.run[0] for one in listed.requirements]


def test_the_short_and_the_full_release_differ_in_sizes_only() -> None:
    short, full = protocol("release"), protocol("release-full")
    assert [(check.id, check.kind) for check in short.checks] == [(check.id, check.kind) for check in full.checks]
    assert {gate.id for gate in short.gates} == {gate.id for gate in full.gates if "longest" not in gate.id}
    assert short.arms == full.arms
    assert full.settings.context_tokens == 262_144
    assert [(one.prompt_tokens, one.generated_tokens) for one in full.workloads] == [
        (57, 520),
        (8192, 128),
        (65_536, 128),
    ]
    assert {
        check.distance_tokens for check in full.checks if hasattr(check, "distance_tokens") and "image" not in check.id
    } == {13_062}


@pytest.mark.parametrize("size", ["262,144", "13,062", "65,536 + 128", "57 + 520"])
def test_the_shorter_ones_print_the_sizes_of_the_real_release_beside_their_own(size: str) -> None:
    for name in ("release", "release-quick"):
        assert size in " ".join(protocol(name).purpose.split()), name


def test_the_rejected_candidate_asks_the_same_question_and_is_rejected_by_exact_work() -> None:
    rejected, release = protocol("release-general-only"), protocol("release")
    assert (rejected.arms.baseline, rejected.model) == (release.arms.baseline, release.model)
    assert rejected.workloads == release.workloads
    assert rejected.expect == "FAIL"
    assert [gate.workload for gate in rejected.gates if isinstance(gate, EqualCountersGate)] == ["short", "long"]
