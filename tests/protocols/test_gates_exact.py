from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protocols.canonical import token_digest
from protocols.load import LoadedProtocol
from protocols.measurements import CampaignMeasurements
from protocols.results import GateResult
from protocols.verdicts import combine

Make = Callable[..., CampaignMeasurements]
Edit = Callable[..., LoadedProtocol]
Judge = Callable[..., dict[str, GateResult]]

SCREENS = (
    "gates:\n",
    (
        'gates:\n  - {id: screen, kind: screen_loss, workload: cold-512, metric: generation_rate, max_loss_pct: "2", '
        "required: false}\n  - {id: cold, kind: cold_cache, workload: cold-512}\n"
    ),
)


def verdict_of(results: dict[str, GateResult]) -> str:
    return combine(list(results.values())).status


def test_a_load_that_was_done_again_counts_once(served_pair: LoadedProtocol, make_campaign: Make, judge: Judge) -> None:
    whole = make_campaign(served_pair.protocol)
    cut = replace(whole.loads[3], state="PARTIAL", reason="killed", requests=())
    again = CampaignMeasurements(loads=(*whole.loads[:3], cut, *whole.loads[3:]))
    assert verdict_of(judge(served_pair.protocol, again)) == "PASS"
    twice = CampaignMeasurements(loads=(*whole.loads, whole.loads[3]))
    result = judge(served_pair.protocol, twice)["complete"]
    assert result.status == "INCONCLUSIVE"
    assert "recorded as COMPLETE 2 times" in result.reason


def test_a_wrong_token_count_fails_completeness_and_makes_speeds_incomparable(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    def edit(position: Any, request: Any) -> Any:
        return replace(request, generated_tokens=100) if position.label == "C2" else request

    results = judge(served_pair.protocol, make_campaign(served_pair.protocol, edit_request=edit))
    assert results["complete"].status == "FAIL"
    assert "C2 request 0 of cold-512 has 100 generated tokens, stated are 128" in results["complete"].reason
    assert results["work"].status == "FAIL"
    assert results["generation-loss"].status == "NOT_COMPARABLE"
    assert "complete is FAIL and work is FAIL" in results["generation-loss"].reason
    assert "loss_pct" not in results["generation-loss"].inputs
    assert verdict_of(results) == "FAIL"


def test_an_unknown_token_count_is_an_unmet_need_not_a_pass(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    campaign = make_campaign(served_pair.protocol, edit_request=lambda _, r: replace(r, prompt_tokens=None))
    result = judge(served_pair.protocol, campaign)["complete"]
    assert result.status == "NOT_RUN"
    assert "has no count of prompt tokens" in result.reason


def test_the_first_different_token_is_named_with_both_ids(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    def edit(position: Any, request: Any) -> Any:
        if position.arm == "baseline":
            return request
        ids = list(request.token_ids)
        ids[17] = 5
        return replace(request, token_ids=tuple(ids))

    results = judge(served_pair.protocol, make_campaign(served_pair.protocol, edit_request=edit))
    tokens = results["tokens"]
    assert tokens.status == "FAIL"
    assert "C1 request 0 differs from A" in tokens.reason
    assert "at token 17: id 5 instead of 1017; 4 of 8 outputs differ." in tokens.reason
    assert tokens.inputs["deterministic"] == {"baseline": True, "candidate": True}
    assert results["prefill-loss"].status == results["generation-loss"].status == "NOT_COMPARABLE"


def test_an_arm_that_differs_from_itself_is_named_apart(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    def edit(position: Any, request: Any) -> Any:
        return replace(request, token_ids=(1, 2, 3)) if position.label == "A3" else request

    tokens = judge(served_pair.protocol, make_campaign(served_pair.protocol, edit_request=edit))["tokens"]
    assert tokens.status == "FAIL"
    assert tokens.inputs["deterministic"] == {"baseline": False, "candidate": True}
    assert tokens.reason.endswith("Between its own loads, the baseline differs from itself.")


def test_a_shorter_output_differs_where_it_ends(served_pair: LoadedProtocol, make_campaign: Make, judge: Judge) -> None:
    def edit(position: Any, request: Any) -> Any:
        return replace(request, token_ids=request.token_ids[:100]) if position.label == "C1" else request

    tokens = judge(served_pair.protocol, make_campaign(served_pair.protocol, edit_request=edit))["tokens"]
    assert "at token 100: id nothing instead of 1100" in tokens.reason


def test_equal_outputs_are_recorded_by_digest(served_pair: LoadedProtocol, make_campaign: Make, judge: Judge) -> None:
    tokens = judge(served_pair.protocol, make_campaign(served_pair.protocol))["tokens"]
    digests = tokens.inputs["digests"]
    assert isinstance(digests, dict)
    assert set(digests.values()) == {token_digest(range(1000, 1128))}
    assert tokens.inputs["tokens"] == 128 * len(digests)
    assert tokens.reason == (
        f"All {len(digests)} outputs are the same token ids (128 each), in both arms and in every load."
    )


def test_without_token_ids_the_tokens_gate_is_not_run_and_speeds_are_not_comparable(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    campaign = make_campaign(served_pair.protocol, edit_request=lambda _, r: replace(r, token_ids=None))
    results = judge(served_pair.protocol, campaign)
    assert results["tokens"].status == "NOT_RUN"
    assert results["prefill-loss"].status == "NOT_COMPARABLE"
    assert verdict_of(results) == "NOT_COMPARABLE"


@pytest.mark.parametrize("field", ["drafted_tokens", "accepted_tokens", "cached_tokens", "prompt_tokens_evaluated"])
def test_unequal_work_fails_and_names_field_load_and_counts(
    served_pair: LoadedProtocol, make_campaign: Make, field: str, judge: Judge
) -> None:
    def edit(position: Any, request: Any) -> Any:
        return replace(request, **{field: 7}) if position.label == "C4" else request

    work = judge(served_pair.protocol, make_campaign(served_pair.protocol, edit_request=edit))["work"]
    assert work.status == "FAIL"
    assert f"{field} is 7 in C4 request 0 and" in work.reason


def test_a_count_that_an_engine_does_not_report_is_not_run(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    campaign = make_campaign(served_pair.protocol, edit_request=lambda _, r: replace(r, drafted_tokens=None))
    work = judge(served_pair.protocol, campaign)["work"]
    assert work.status == "NOT_RUN"
    assert "drafted_tokens in A1 request 0" in work.reason


def test_one_operation_more_fails_the_counters_gate_at_any_size(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    def edit(position: Any, request: Any) -> Any:
        return replace(request, work={**request.work, "n_flops": 2**60 + 1}) if position.label == "C1" else request

    counters = judge(served_pair.protocol, make_campaign(served_pair.protocol, edit_request=edit))["counters"]
    assert counters.status == "FAIL"
    assert f"n_flops is {2**60 + 1} in C1 request 0 and {2**60} in A1" in counters.reason


def test_counters_that_an_arm_lacks_are_not_run(served_pair: LoadedProtocol, make_campaign: Make, judge: Judge) -> None:
    def silent(position: Any, request: Any) -> Any:
        return replace(request, work=None) if position.arm == "candidate" else request

    def fewer(position: Any, request: Any) -> Any:
        return replace(request, work={"n_graphs": 129}) if position.arm == "candidate" else request

    for edit, words in ((silent, "engine of the candidate reports no work counters"), (fewer, "n_flops in C1")):
        result = judge(served_pair.protocol, make_campaign(served_pair.protocol, edit_request=edit))["counters"]
        assert result.status == "NOT_RUN"
        assert words in result.reason


def test_a_warm_cache_fails_the_cold_cache_gate(edited: Edit, make_campaign: Make, judge: Judge) -> None:
    protocol = edited(SCREENS).protocol

    def edit(position: Any, request: Any) -> Any:
        return replace(request, cached_tokens=13) if position.label == "C1" else request

    assert judge(protocol, make_campaign(protocol))["cold"].status == "PASS"
    cold = judge(protocol, make_campaign(protocol, edit_request=edit))["cold"]
    assert (cold.status, cold.threshold) == ("FAIL", "0")
    assert "C1 request 0 took 13" in cold.reason
    unknown = make_campaign(protocol, edit_request=lambda _, r: replace(r, cached_tokens=None))
    assert judge(protocol, unknown)["cold"].status == "NOT_RUN"


def test_a_count_that_both_arms_have_and_the_protocol_states_wrongly_is_not_the_candidates_fault(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    results = judge(
        served_pair.protocol,
        make_campaign(served_pair.protocol, edit_request=lambda _, request: replace(request, prompt_tokens=518)),
    )
    complete = results["complete"]
    assert complete.status == verdict_of(results) == "NOT_COMPARABLE"
    assert "in both arms alike: A1 request 0 of cold-512 has 518 prompt tokens, stated are 512" in complete.reason
    step = "If that is what the request means, write prompt_tokens: 518 in workload cold-512, and run a new campaign."
    assert complete.reason.endswith(f"This says nothing against the candidate. {step}")
    assert complete.inputs["next_step"] == step
    assert results["generation-loss"].status == "NOT_COMPARABLE"


@pytest.mark.parametrize(
    ("baseline", "candidate", "status"),
    [
        ({"A1": 518}, {"C1": 518}, "NOT_COMPARABLE"),
        ({"A1": 518}, {}, "NOT_COMPARABLE"),
        ({"A1": 518}, {"C1": 519}, "FAIL"),
        ({"A1": 518}, {"C1": 518, "C2": 518}, "FAIL"),
        ({}, {"C1": 518}, "FAIL"),
    ],
)
def test_the_candidate_is_blamed_for_what_it_breaks_in_another_way_or_more_often(
    served_pair: LoadedProtocol,
    make_campaign: Make,
    judge: Judge,
    baseline: dict[str, int],
    candidate: dict[str, int],
    status: str,
) -> None:
    counts = baseline | candidate

    def edit(position: Any, request: Any) -> Any:
        return replace(request, prompt_tokens=counts.get(position.label, request.prompt_tokens))

    complete = judge(served_pair.protocol, make_campaign(served_pair.protocol, edit_request=edit))["complete"]
    assert complete.status == status
    assert ("next_step" in complete.inputs) == (status == "NOT_COMPARABLE")
    if status == "NOT_COMPARABLE":
        assert complete.inputs["next_step"] == "The baseline does it too: make its counts the stated ones first."
        assert ("in the baseline alone" in complete.reason) == (not candidate)


def test_a_cache_that_both_arms_use_alike_is_not_the_candidates_fault(
    edited: Edit, make_campaign: Make, judge: Judge
) -> None:
    protocol = edited(SCREENS).protocol
    warm = make_campaign(protocol, edit_request=lambda _, request: replace(request, cached_tokens=13))
    cold = judge(protocol, warm)["cold"]
    assert (cold.status, cold.threshold) == ("NOT_COMPARABLE", "0")
    assert "cache_prompt: false" in str(cold.inputs["next_step"])
