from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import ProtocolError
from protocols.gates import evaluate_gates
from protocols.load import LoadedProtocol
from protocols.measurements import CampaignMeasurements
from protocols.results import GateResult
from protocols.verdicts import combine

Make = Callable[..., CampaignMeasurements]
Judge = Callable[..., dict[str, GateResult]]
Noisy = Callable[..., Callable[[Any], tuple[float, float]]]


def verdict_of(results: dict[str, GateResult]) -> str:
    return combine(list(results.values())).status


def test_two_equal_arms_pass_every_gate(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge, noisy: Noisy
) -> None:
    results = judge(served_pair.protocol, make_campaign(served_pair.protocol, noisy(1, 0.01)))
    assert {result.status for result in results.values()} == {"PASS"}
    assert verdict_of(results) == "PASS"


@pytest.mark.parametrize(
    ("state", "verdict", "words"),
    [
        ("PARTIAL", "INCONCLUSIVE", "C3 is PARTIAL (the runner was killed)"),
        ("INVALID", "INVALID", "C3 is INVALID (the runner was killed)"),
        (None, "INCONCLUSIVE", "C3 was not run"),
        ("absent", "INCONCLUSIVE", "C3 was not run"),
    ],
)
def test_a_schedule_with_a_hole_gives_no_number_at_all(
    served_pair: LoadedProtocol, make_campaign: Make, state: Any, verdict: str, words: str, judge: Judge, noisy: Noisy
) -> None:
    def edit(position: Any, load: Any) -> Any:
        if position.label != "C3":
            return load
        return None if state == "absent" else replace(load, state=state, reason="the runner was killed")

    results = judge(served_pair.protocol, make_campaign(served_pair.protocol, noisy(4, 0.01, 0.5), edit_load=edit))
    assert {result.status for result in results.values()} == {"INCONCLUSIVE"}
    for name, result in results.items():
        assert words in result.reason, name
        assert "loss_pct" not in result.inputs
        assert "gap_pp" not in result.inputs
    assert verdict_of(results) == verdict


def test_a_load_outside_the_schedule_is_not_overlooked(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    whole = make_campaign(served_pair.protocol)
    for stranger in (
        replace(whole.loads[-1], index=99, label="C9"),
        replace(whole.loads[2], state="PARTIAL", label="A7"),
    ):
        campaign = CampaignMeasurements(loads=(*whole.loads, stranger))
        result = judge(served_pair.protocol, campaign)["complete"]
        assert result.status == "INCONCLUSIVE"
        assert f"{stranger.label} stands outside the schedule" in result.reason


@pytest.mark.parametrize("outcome", ["http_error", "stream_error", "truncated", "timeout", "refused", "cancelled"])
def test_a_request_that_was_not_answered_leaves_the_campaign_undecided(
    served_pair: LoadedProtocol, make_campaign: Make, outcome: Any, judge: Judge
) -> None:
    def edit(position: Any, request: Any) -> Any:
        return replace(request, outcome=outcome) if position.label == "C1" else request

    results = judge(served_pair.protocol, make_campaign(served_pair.protocol, edit_request=edit))
    assert {result.status for result in results.values()} == {"INCONCLUSIVE"}
    assert f"C1 has requests of cold-512 that ended as {outcome}" in results["complete"].reason


def test_a_missing_or_doubled_request_and_a_failed_warm_up_are_named(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    def without(position: Any, load: Any) -> Any:
        return replace(load, requests=load.requests[:1]) if position.label == "A2" else load

    def doubled(position: Any, load: Any) -> Any:
        return replace(load, requests=(*load.requests, load.requests[-1])) if position.label == "A2" else load

    def cold(position: Any, load: Any) -> Any:
        return replace(load, requests=load.requests[1:]) if position.label == "A2" else load

    for edit, words in (
        (without, "A2 has 0 requests of cold-512, expected 1"),
        (doubled, "A2 has 2 requests of cold-512, expected 1"),
        (cold, "A2 has 0 warm-ups of cold-512, expected 1"),
    ):
        results = judge(served_pair.protocol, make_campaign(served_pair.protocol, edit_load=edit))
        assert results["complete"].status == "INCONCLUSIVE"
        assert words in results["complete"].reason


def test_gates_that_wait_for_each_other_are_refused(served_pair: LoadedProtocol, make_campaign: Make) -> None:
    gates = list(served_pair.protocol.gates)
    gates[4] = gates[4].model_copy(update={"after": ("generation-loss",)})
    gates[5] = gates[5].model_copy(update={"after": ("prefill-loss",)})
    protocol = served_pair.protocol.model_copy(update={"gates": tuple(gates)})
    with pytest.raises(ProtocolError, match="wait for gates that never come"):
        evaluate_gates(protocol, make_campaign(served_pair.protocol))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_is_missing_the_gates_give_a_result_and_never_pass(
    served_pair: LoadedProtocol, make_campaign: Make, data: st.DataObject, judge: Judge
) -> None:
    protocol = served_pair.protocol
    whole = make_campaign(protocol)
    kept = data.draw(st.lists(st.sampled_from(whole.loads), max_size=8, unique_by=lambda load: load.index))
    states = st.sampled_from(["COMPLETE", "PARTIAL", "INVALID", None])
    campaign = CampaignMeasurements(loads=tuple(replace(load, state=data.draw(states)) for load in kept))
    results = judge(protocol, campaign)
    assert verdict_of(results) in {"INCONCLUSIVE", "INVALID"}
