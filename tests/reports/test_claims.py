"""Nothing is claimed that a gate does not support."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protocols.checks.capacity import CapacityCheck
from protocols.engine_schema import LlamaServerEngine
from protocols.results import GateStatus
from protocols.schema import Arm
from reports.claims import claims_of, control_lines, explanation_lines, headline, limits_of, not_measured, untouched
from reports.facts import Facts, VerdictFact
from reports.steps import next_step

Change = Callable[..., Facts]


def said(facts: Facts, gate_id: str, kind: str) -> list[str]:
    return [claim.text for claim in claims_of(facts) if (claim.gate, claim.kind) == (gate_id, kind)]


def test_a_loss_gate_that_passes_carries_the_claim_with_its_scope_and_confidence(passed: Facts) -> None:
    claim = (
        "On this host, with this model, 512 prompt tokens and 128 generated tokens, the candidate's generation rate is not "
        "lower than the baseline's by 10 % or more (95 % confidence)."
    )
    assert said(passed, "generation-loss", "may_say") == [claim]
    assert said(passed, "generation-loss", "may_not_say") == []


@pytest.mark.parametrize("status", sorted(set(GateStatus.__args__) - {"PASS"}))  # type: ignore[attr-defined]
def test_no_other_status_of_a_loss_gate_claims_that_the_candidate_is_as_good(
    passed: Facts, with_gate: Change, status: str
) -> None:
    facts = with_gate(passed, "generation-loss", status=status, reason="Because.")
    assert not any("is not lower" in text for text in said(facts, "generation-loss", "may_say"))
    assert said(facts, "generation-loss", "may_not_say") == [
        f"That the candidate's generation rate is as good as the baseline's: gate generation-loss is {status}."
    ]


@pytest.mark.parametrize("status", sorted(set(GateStatus.__args__) - {"PASS", "FAIL"}))  # type: ignore[attr-defined]
def test_every_undecided_gate_has_a_next_step(passed: Facts, with_gate: Change, status: str) -> None:
    for gate in passed.gates:
        facts = with_gate(passed, gate.id, status=status)
        assert len(said(facts, gate.id, "next")) == 1


def test_a_step_that_many_gates_share_is_named_once(broken: Facts) -> None:
    assert [claim.text for claim in claims_of(broken) if claim.kind == "next"] == [
        "Complete the campaign: `assay resume`."
    ]


def test_a_campaign_without_a_recorded_verdict_claims_nothing(broken: Facts, passed: Facts) -> None:
    unrecorded = replace(passed, verdict=replace(passed.verdict, entry_seq=None))
    for facts in (broken, unrecorded):
        assert [claim for claim in claims_of(facts) if claim.kind == "may_say"] == []
        assert headline(facts).startswith("No verdict yet")
    assert next_step(broken.gates[0], broken) == "Complete the campaign: `assay resume`."


def test_an_invalid_campaign_claims_nothing(passed: Facts) -> None:
    invalid = replace(passed, verdict=VerdictFact(status="INVALID", reason="x", exit_code=4, entry_seq=3))
    assert [claim for claim in claims_of(invalid) if claim.kind == "may_say"] == []


def test_every_verdict_has_a_headline(passed: Facts) -> None:
    from protocols.verdicts import EXIT_CODES

    headlines = {headline(replace(passed, verdict=replace(passed.verdict, status=status))) for status in EXIT_CODES}
    assert len(headlines) == len(EXIT_CODES)


def test_unequal_work_is_named_as_the_thing_to_mend(passed: Facts, with_gate: Change) -> None:
    facts = with_gate(passed, "generation-loss", status="NOT_COMPARABLE", inputs={"blocked_by": ["tokens is FAIL"]})
    assert said(facts, "generation-loss", "next") == ["Make the work equal first: tokens is FAIL."]


def undecided(facts: Facts, with_gate: Change, inputs: dict[str, Any]) -> str:
    changed = with_gate(facts, "generation-loss", status="INCONCLUSIVE", inputs=inputs)
    return said(changed, "generation-loss", "next")[0]


def test_an_inconclusive_loss_names_the_blocks_that_would_decide(
    passed: Facts, with_gate: Change, loss_inputs: Any
) -> None:
    quiet = replace(passed, preflight=())
    step = undecided(quiet, with_gate, loss_inputs("generation_rate", 7.5, -1.0, 12.0))
    assert step.startswith(
        "Run a new campaign with more loads: 6 blocks of four loads decide with a chance of 0.83 if loads go on "
        "to vary by 2.50 % and the candidate stays 7.50 % slower; 2 pass it with a chance of 1.00 if it loses nothing"
    )
    faster = undecided(quiet, with_gate, loss_inputs("generation_rate", -7.5, -20.0, 12.0))
    assert "the candidate stays 7.50 % faster" in faster
    at_margin = undecided(quiet, with_gate, loss_inputs("generation_rate", 10.0, 2.0, 17.0))
    assert "lies too close to the margin of 10 %" in at_margin


@pytest.mark.parametrize(
    ("error_pct", "why"),
    [
        (6.0, "Loads of one engine vary by 8.49 % here: 8 of them rule out a loss of 16.14 % for an equal candidate"),
        (1.0, "The loads are steady enough for a margin of 10 %; the candidate itself lies too close to it"),
    ],
)
def test_an_undecided_loss_says_whether_noise_or_the_candidate_keeps_it_open(
    passed: Facts, with_gate: Change, loss_inputs: Any, error_pct: float, why: str
) -> None:
    inputs = loss_inputs("generation_rate", 9.5, 2.0, 17.0) | {
        "standard_error_pct": str(error_pct), "sigma_pct": str(error_pct * 2**0.5), "residual_df": 5, "alpha": "0.05",
    }  # fmt: skip
    changed = with_gate(passed, "generation-loss", status="INCONCLUSIVE", inputs=inputs)
    assert why in said(changed, "generation-loss", "may_not_say")[0]


def test_on_a_busy_host_the_cheapest_step_is_a_quiet_host(passed: Facts, with_gate: Change, loss_inputs: Any) -> None:
    step = undecided(passed, with_gate, loss_inputs("generation_rate", 7.5, -1.0, 12.0))
    assert step.startswith(
        "Run it again on a quiet host: other work ran on this one (see the limits). Otherwise 6 blocks"
    )
    hopeless = undecided(passed, with_gate, loss_inputs("generation_rate", 10.0, 2.0, 17.0))
    assert hopeless == "Run it again on a quiet host: other work ran on this one (see the limits)."


def test_a_control_shows_expected_against_found_and_the_fault_beside_the_loss(control: Facts) -> None:
    lines = control_lines(control)
    assert lines[0] == "This is a control. Expected verdict: FAIL. Found: FAIL, as expected."
    assert lines[1] == (
        "Known fault of the candidate: 30 % lower generation rate. Measured by gate generation-loss: loss of 29.90 % "
        "(bounds 28.75 % to 31.02 %)."
    )


def test_a_control_with_another_verdict_says_that_the_judge_cannot_be_believed(control: Facts) -> None:
    passed = replace(control, verdict=replace(control.verdict, status="PASS"))
    assert "NOT as expected: the judge cannot be believed" in control_lines(passed)[0]


def test_a_control_that_a_busy_host_could_not_decide_accuses_nobody(control: Facts) -> None:
    undecided = replace(control, verdict=replace(control.verdict, status="INCONCLUSIVE"))
    assert control_lines(undecided)[0].endswith("which says nothing about the judge: the control was not decided here.")


def test_a_protocol_without_an_expectation_is_no_control(passed: Facts) -> None:
    assert control_lines(passed) == ()


def test_what_was_not_measured_names_gates_loads_sensors_and_scope(
    passed: Facts, broken: Facts, with_gate: Change
) -> None:
    facts = with_gate(passed, "counters", status="NOT_RUN", reason="The engine reports no counters.")
    lines = not_measured(facts)
    assert lines[0] == "Gate counters was NOT_RUN: The engine reports no counters."
    assert "GPU: no GPU telemetry on this host." in lines
    assert any(line.startswith("Energy:") for line in lines)
    assert any("512 + 128 tokens" in line for line in lines)
    assert any(line.startswith("Loads that were not run: ") for line in not_measured(broken))


def test_limits_name_warnings_and_interruptions(passed: Facts, broken: Facts) -> None:
    assert "Host: other work runs (found 1.40, expected below 1)." in limits_of(passed)
    assert any("interrupted once" in line for line in limits_of(broken))


def test_a_pass_without_a_block_and_a_rule_that_nobody_checked_stand_among_the_limits(
    passed: Facts, with_gate: Change, loss_inputs: Any
) -> None:
    labels = [load.label for load in passed.loads if not load.is_burn_in]
    inputs = loss_inputs("generation_rate", 0.5, -1.0, 2.0) | {
        "invalid_blocks": [{"block": 2, "broken": ["C3 had 1 times that the GPU's clock was throttled"]}],
        "all_blocks": {"decision": "INCONCLUSIVE"},
        "unchecked_loads": {"foreign_gpu_processes": labels, "swap_in_pages": ["C1"]},
    }
    lines = limits_of(with_gate(passed, "generation-loss", inputs=inputs))
    left_out = "Gate generation-loss leaves out block 2 by a rule about the host; with every block it is INCONCLUSIVE."
    assert left_out in lines
    assert "The rule about processes of others on the GPU at once could not be checked in any load." in lines
    assert "The rule about pages swapped in could not be checked in C1." in lines


def test_a_campaign_before_a_look_says_what_it_lacked_and_whether_that_is_likely_to_decide(
    passed: Facts, with_gate: Change, loss_inputs: Any
) -> None:
    quiet = replace(passed, preflight=())
    steady = loss_inputs("generation_rate", 1.0, -9.0, 10.5) | {"next_look": 2, "sigma_pct": "4"}
    first = (
        "Run it again with more time for looks than 60 min (`limits.looks_min`): this one ended 0 loads before the look "
        "after 2 blocks"
    )
    assert undecided(quiet, with_gate, steady) == f"{first}."
    noisy = steady | {"sigma_pct": "25"}
    assert undecided(quiet, with_gate, noisy).startswith(f"{first}; with noise like this ")
    assert undecided(quiet, with_gate, noisy).endswith(" blocks decide, and this protocol has 2.")
    assert undecided(passed, with_gate, noisy).startswith("Run it again on a quiet host: other work ran on this one")


def test_each_gate_of_an_explanation_has_a_line_of_its_own(passed: Facts) -> None:
    first, second = passed.gates[-3:-1]
    reason = f"Not decided: {first.id} and {second.id}. {first.id}: {first.reason} {second.id}: {second.reason}"
    facts = replace(passed, verdict=replace(passed.verdict, status="INCONCLUSIVE", reason=reason))
    assert explanation_lines(facts) == [
        f"Not decided: {first.id} and {second.id}.",
        f"  {first.id}: {first.reason}",
        f"  {second.id}: {second.reason}",
    ]


def as_endpoints(facts: Facts, *arms: str) -> Facts:
    """Return the facts as if these arms were endpoints."""
    endpoint = Arm.model_validate({"engine": {"kind": "openai", "url": "http://h:1", "model": "stated"}})
    changes = dict.fromkeys(arms, endpoint)
    return replace(
        facts,
        protocol=facts.protocol.model_copy(update={"arms": facts.protocol.arms.model_copy(update=changes)}),
        arms=tuple(
            replace(arm, kind="openai", is_fresh=False, files=()) if arm.arm in arms else arm for arm in facts.arms
        ),
    )


def test_a_screen_over_an_endpoint_is_no_step_from_a_claim_but_from_an_engine_that_is_started(passed: Facts) -> None:
    gate = replace(passed.gates[5], status="SCREEN_ONLY")
    assert "claim: non_inferiority" in next_step(replace(gate, inputs={}), passed)
    for endpoints in (["candidate"], ["baseline", "candidate"]):
        step = next_step(gate, as_endpoints(passed, *endpoints))
        assert step.startswith("Let Assay start the engine")
        assert "non_inferiority" not in step


def test_a_prompt_that_came_from_the_cache_limits_what_its_rate_says(passed: Facts) -> None:
    assert not any("cache" in line for line in limits_of(passed))
    first = passed.loads[1]
    warm = replace(first, workloads=(replace(first.workloads[0], most_cached_tokens=511, cached_tokens=None),))
    limits = limits_of(replace(passed, loads=(passed.loads[0], warm, *passed.loads[2:])))
    (line,) = [line for line in limits if "cache" in line]
    assert line.startswith("Up to 511 of 512 prompt tokens of cold-512 came from the cache: its prefill rate")


def test_an_arm_that_does_not_start_is_corrected_and_not_resumed(broken: Facts) -> None:
    assert any("assay resume" in claim.text for claim in claims_of(broken))
    first = next(load for load in broken.loads if load.state == "PARTIAL")
    ended = replace(first, reason="the engine ended before it was ready (exit code 1); its last words: no such flag")
    facts = replace(broken, loads=tuple(ended if load is first else load for load in broken.loads))
    steps = [claim.text for claim in claims_of(facts) if claim.kind == "next"]
    assert facts.arms_that_do_not_start() == (first.arm,)
    assert steps == [
        "Correct the engine or its arguments, then run again: a resumed campaign would start what was locked."
    ]
    complete = replace(facts.loads[-1], arm=first.arm, attempt=1, state="COMPLETE")
    assert replace(facts, loads=(complete, *facts.loads)).arms_that_do_not_start() == ()


def test_a_break_of_the_baseline_has_its_own_headline_and_one_next_step(passed: Facts, with_gate: Change) -> None:
    step = "If that is what the request means, write prompt_tokens: 518 in workload cold-512, and run a new campaign."
    facts = with_gate(passed, "complete", status="NOT_COMPARABLE", inputs={"next_step": step})
    facts = with_gate(facts, "generation-loss", status="NOT_COMPARABLE", inputs={"blocked_by": ["complete is ..."]})
    facts = replace(facts, verdict=replace(facts.verdict, status="NOT_COMPARABLE"))
    assert headline(facts) == (
        "Not comparable: the baseline itself breaks what the protocol states, so nothing is said about the candidate."
    )
    assert [claim.text for claim in claims_of(facts) if claim.kind == "next"] == [step]


def test_a_screen_that_passes_does_not_say_that_it_qualified_a_speed(passed: Facts) -> None:
    screen = replace(passed, protocol=passed.protocol.model_copy(update={"claim": "screen"}))
    assert "leaves its speed out" in headline(screen)
    limits = " ".join(limits_of(screen))
    assert "No claim about speed (claim: screen)" in limits
    assert "never qualify" not in limits
    assert "leaves its speed out" not in headline(passed)


def test_what_nothing_here_touched_is_said_in_one_line(passed: Facts) -> None:
    whole = "Outside the scope, and not tested: other hosts, other models, contexts above 2,048 tokens, the engine on a GPU."
    assert untouched(passed) == whole
    settings = passed.protocol.settings.model_copy(update={"gpu_layers": 99, "context_tokens": 262144})
    on_gpu = replace(passed, protocol=passed.protocol.model_copy(update={"settings": settings}))
    assert (
        untouched(on_gpu)
        == "Outside the scope, and not tested: other hosts, other models, contexts above 262,144 tokens."
    )
    server = LlamaServerEngine(kind="llama-server", path="llama-server", arguments=("-ngl", "99"))
    arm = passed.protocol.arms.candidate.model_copy(update={"engine": server})
    arms = passed.protocol.arms.model_copy(update={"candidate": arm})
    other = replace(passed, protocol=passed.protocol.model_copy(update={"arms": arms}))
    assert (
        untouched(other) == "Outside the scope, and not tested: other hosts, other models, contexts above 2,048 tokens."
    )
    deep = CapacityCheck(kind="capacity", id="full", context_tokens=8192)
    deeper = replace(passed, protocol=passed.protocol.model_copy(update={"checks": (deep,)}))
    assert "contexts above 8,192 tokens, the engine on a GPU." in untouched(deeper)
