"""Protocols whose checks and gates cannot hold are refused before anything runs, with line, key, and what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protocols.errors import ProtocolError
from protocols.load import LoadedProtocol

Edit = Callable[..., LoadedProtocol]
LIMITS = "limits: {load_s: 120"
GATES = "gates:\n"


def problems(edited: Edit, *changes: tuple[str, str]) -> list[str]:
    with pytest.raises(ProtocolError) as caught:
        edited(*changes)
    return list(caught.value.lines())


def with_check(check: str, *gates: str) -> tuple[tuple[str, str], tuple[str, str]]:
    lines = "".join(f"  - {{{gate}}}\n" for gate in gates or ("id: g, kind: check, check: c",))
    return (LIMITS, f"checks:\n  - {{id: c, {check}}}\n\n{LIMITS}"), (GATES, f"{GATES}{lines}")


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("kind: recall, secrets: 8, distance_tokens: 70", "checks[0].distance_tokens: found 70 tokens, which do not hold 8 codes; write 80 or more"),
        ("kind: images_in_history, depths: [900, 700, 800]", "checks[0].depths: found depths that do not rise"),
        ("kind: images_in_history, depths: [512, 700, 800]", "checks[0].depths: found 512 tokens, which hold no full chunk"),
        ("kind: stored_reference, workload: cold-513, tokens: [1]", "checks[0].workload: found the unknown workload cold-513, expected one of cold-512; write cold-512"),
        (f"kind: stored_reference, workload: cold-512, tokens: {[1] * 129}", "checks[0].tokens: found 129 ids, and the workload generates 128"),
        ("kind: stored_reference, workload: cold-512, tokens: [1], drafted_tokens: 1, accepted_tokens: 2", "checks[0].accepted_tokens: found 2 accepted of 1 drafted tokens; write 1 or less"),
        ("kind: smoke, workloads: [cold-513]", "checks[0].workloads[0]: found the unknown workload cold-513, expected one of cold-512; write cold-512"),
        ("kind: smoke, workloads: [cold-512, cold-512]", "checks[0].workloads: found a workload twice, expected each once; name it once"),
        ("kind: capacity, context_tokens: 64, generated_tokens: 64", "checks[0].generated_tokens: found 64 tokens, which leave no prompt in a context of 64; write 63 or less"),
        ("kind: capacity, generated_tokens: 4096", "checks[0].generated_tokens: found 4096 tokens, which leave no prompt in a context of"),
        ('kind: operator_boundaries, tolerance: "-0.1"', "checks[0].tolerance: found -0.1, expected a number above 0"),
        ('kind: images_in_history, depths: [700, 800, 900], most_ratio: "0.9"', "checks[0].most_ratio: found 0.9: with an image it would have to cost less than without"),
        ("kind: served_recall, slots: 16, distance_tokens: 1048576", "checks[0].distance_tokens: found 1048576 tokens in 16 slots, more than a server's context holds; write 1048575 or less"),
        ("kind: operation_cost, depth_tokens: 64, batches: [1, 1]", "checks[0].batches: found a batch twice"),
        ('kind: operation_cost, depth_tokens: 64, precision_pct: "0"', "checks[0].precision_pct: found 0, expected a percentage"),
        ("kind: served_recall, distance_tokens: 512", "checks[0]: served_recall asks for private codes, which only qwen4exp-recall gives back, and the model here is smollm2; write model: {name: qwen4exp-recall}, or remove the check and its gates"),
        ("kind: images_in_history, depths: [700, 800]", "checks[0].depths: found a list, expected at least 3 items"),
        ("kind: images_in_history, depths: []", "checks[0].depths: found an empty list, expected at least 3 items"),
        ("kind: operator_boundaries, rows: []", "checks[0].rows: found an empty list, expected at least 1 item"),
        ("kind: operator_boundaries, rows: [7, 7]", "checks[0].rows: found a count of rows twice, expected each once"),
        ("kind: requirements, requirements: [{id: r, run: [make], limit_s: 86400}]", "checks[0].requirements[0].limit_s: found 86400 s, more than the whole campaign may take"),
        ("kind: telepathy", "checks[0].kind"),
    ],
)  # fmt: skip
def test_a_check_that_cannot_hold_is_refused_at_its_key(edited: Edit, check: str, words: str) -> None:
    found = problems(edited, *with_check(check))
    assert any(words in line and "edited.yaml:" in line for line in found), found


def test_two_gates_that_expect_opposite_things_of_one_check_are_refused(edited: Edit) -> None:
    found = problems(
        edited,
        ("baseline: {engine: {kind: bundled, layout_salt: 1, faults: []}", "baseline: {engine: {kind: bundled, layout_salt: 1, faults: [leak]}"),
        *with_check(
            "kind: mapping_grid",
            "id: one, kind: check, check: c, arm: baseline",
            "id: two, kind: check, check: c, arm: baseline, expect: FAIL",
        ),
    )  # fmt: skip
    assert any("gates[1].expect: found expect: FAIL, and the gate one expects PASS" in line for line in found), found


def test_a_control_in_one_of_two_equal_arms_is_refused_once_for_all_checks(edited: Edit) -> None:
    gates = ("id: one, kind: check, check: c, arm: baseline, expect: FAIL", "id: two, kind: check, check: c")
    words = (
        "arms.candidate: the arms are the same, and one must FAIL what the other must PASS: c; name the other engine"
    )
    found = problems(edited, ("layout_salt: 2", "layout_salt: 1"), *with_check("kind: mapping_grid", *gates))
    assert [words in line for line in found] == [True], found
    assert edited(*with_check("kind: mapping_grid", *gates)), "two engines may differ in it"
    equal = (gates[0].replace("FAIL", "PASS"), gates[1])
    assert edited(("layout_salt: 2", "layout_salt: 1"), *with_check("kind: mapping_grid", *equal)), "an A/A may agree"


def test_a_control_of_an_arm_without_a_fault_is_a_warning(edited: Edit) -> None:
    loaded = edited(*with_check("kind: mapping_grid", "id: one, kind: check, check: c, expect: FAIL"))
    lines = [warning.line() for warning in loaded.warnings]
    assert any("the candidate is the bundled engine without a fault" in line for line in lines), lines


def test_two_margins_of_one_rate_are_refused(edited: Edit) -> None:
    gate = '  - {id: again, kind: loss, workload: cold-512, metric: prefill_rate, margin_pct: "3", after: [tokens]}\n'
    found = problems(edited, (GATES, f"{GATES}{gate}"))
    assert any("margin_pct: found 10, and the gate again states 3 for the same" in line for line in found), found


@pytest.mark.parametrize(
    ("gates", "words"),
    [
        ("[{cached: 0}, {cached: 4}]", "cached_tokens: found 4, and the gate cold-0 states 0 for the same"),
        ("[{cached: 512}]", "cached_tokens: found 512 cached tokens of a prompt of 512, of which one is evaluated; write 511 or less"),
    ],
)  # fmt: skip
def test_caches_that_cannot_be_are_refused(edited: Edit, gates: str, words: str) -> None:
    numbers = [int(part.split("}")[0]) for part in gates.split("cached: ")[1:]]
    lines = "".join(
        f"  - {{id: cold-{place}, kind: cold_cache, workload: cold-512, cached_tokens: {number}}}\n"
        for place, number in enumerate(numbers)
    )
    found = problems(edited, (GATES, f"{GATES}{lines}"))
    assert any(words in line for line in found), found


def test_a_budget_counts_the_checks_with_the_loads(edited: Edit) -> None:
    gates = [f"id: g{place}, kind: check, check: c{place}" for place in range(60)]
    checks = "".join(f"  - {{id: c{place}, kind: mapping_grid}}\n" for place in range(60))
    lines = "".join(f"  - {{{gate}}}\n" for gate in gates)
    found = problems(
        edited,
        (LIMITS, f"checks:\n{checks}\n{LIMITS}"),
        (GATES, f"{GATES}{lines}"),
        ("campaign_min: 60", "campaign_min: 1"),
        ("request_s: 300, idle_s: 60", "request_s: 30, idle_s: 30"),
        ("load_s: 120", "load_s: 30"),
    )
    assert any("limits.campaign_min: found 60 s for 9 fresh loads and 60 checks" in line for line in found), found


def test_an_arm_that_cannot_be_asked_is_refused_unless_the_gate_is_not_required(edited: Edit) -> None:
    endpoint = ("candidate: {engine: {kind: bundled, layout_salt: 2, faults: []}, environment: {GOMP_SPINCOUNT: \"0\"}}",
                "candidate: {engine: {kind: openai, url: \"http://h:1\", model: m}}")  # fmt: skip
    found = problems(edited, endpoint, *with_check("kind: restart, prompt_tokens: 32"))
    assert any(
        "the candidate cannot be asked for restart" in line and "no server that we start" in line for line in found
    ), found


def test_a_cost_needs_both_arms(edited: Edit) -> None:
    server = (
        "baseline: {engine: {kind: bundled, layout_salt: 1, faults: []}",
        "baseline: {engine: {kind: llama-server, path: x}",
    )
    found = problems(edited, server, *with_check("kind: operation_cost, depth_tokens: 64"))
    assert any("the baseline cannot be asked for operation_cost" in line for line in found), found


def test_what_is_left_of_one_check_is_counted(edited: Any) -> None:
    from protocols.check_rules import block_rows

    loaded = edited(*with_check("kind: foreign_content, prompt_tokens: 8, foreign_tokens: 8, steps: 5"))
    assert block_rows(loaded.protocol.checks[0]) == 15
    loaded = edited(*with_check("kind: mapping_grid"))
    assert block_rows(loaded.protocol.checks[0]) == 0


def test_a_long_list_of_names_does_not_hide_the_nearest(edited: Edit) -> None:
    gates = [f"id: g{number}, kind: check, check: c, required: false" for number in range(20)]
    found = problems(edited, *with_check("kind: mapping_grid", *gates), ("after: [complete, tokens, work]", "after: [complete, tokens, wrok]"))  # fmt: skip
    known = next(line for line in found if "wrok" in line)
    assert "found the unknown gate wrok, expected one of " in known
    assert known.endswith("; write work, or remove the name")
    assert "g19" not in known
