"""The gate over replies: what contradicts itself fails, what noise can do does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protocols.gates_replies import UNSOUND
from protocols.load import LoadedProtocol
from protocols.measurements import CampaignMeasurements, LoadMeasurement, RequestMeasurement
from protocols.results import GateResult
from protocols.schedule import Position
from recorder import consistency

Make = Callable[..., CampaignMeasurements]
Edit = Callable[..., LoadedProtocol]
Judge = Callable[..., dict[str, GateResult]]
SOUND = ("gates:\n", "gates:\n  - {id: sound, kind: sound_replies, workload: cold-512}\n")


@pytest.fixture
def sound(edited: Edit, make_campaign: Make, judge: Judge) -> Callable[..., GateResult]:
    """Judge a campaign in which some requests were replaced."""
    protocol = edited(SOUND).protocol

    def result(edit: Callable[[Position, RequestMeasurement], RequestMeasurement], **options: Any) -> GateResult:
        return judge(protocol, make_campaign(protocol, edit_request=edit, **options))["sound"]

    return result


def of_candidate(**changes: Any) -> Callable[[Position, RequestMeasurement], RequestMeasurement]:
    return lambda position, request: replace(request, **changes) if position.arm == "candidate" else request


def test_replies_that_add_up_pass(sound: Callable[..., GateResult]) -> None:
    result = sound(lambda _, request: replace(request, text_sha256="a" * 64, flags=("generation_disagreement",)))
    assert (result.status, result.threshold) == ("PASS", "20%")
    assert result.inputs["codes"] == {"generation_disagreement": result.inputs["replies"]}


@pytest.mark.parametrize("code", UNSOUND)
def test_one_reply_that_contradicts_itself_fails(sound: Callable[..., GateResult], code: str) -> None:
    result = sound(lambda place, one: replace(one, flags=(code,)) if place.label == "C2" else one)
    assert result.status == "FAIL"
    assert f"C2 request 0 ({code})" in result.reason
    assert f"{code} means that {UNSOUND[code]}" in result.reason


def test_what_the_baseline_does_as_often_is_not_the_candidates_fault(sound: Callable[..., GateResult]) -> None:
    flagged = {"flags": ("ids_lost", "running_count_differs")}
    both = sound(lambda _, request: replace(request, **flagged))
    assert both.status == "NOT_COMPARABLE"
    assert "in both arms alike, which says nothing against the candidate" in both.reason
    assert "The baseline does it too" in str(both.inputs["next_step"])
    alone = sound(lambda place, request: replace(request, **flagged) if place.arm == "baseline" else request)
    assert (alone.status, "in the baseline alone" in alone.reason) == ("NOT_COMPARABLE", True)
    worse = sound(
        lambda place, one: replace(one, flags=("ids_lost", "finals_differ")[: 1 + (place.arm == "candidate")])
    )
    assert worse.status == "FAIL"
    rare = sound(lambda place, one: replace(one, **flagged) if place.label in {"A1", "C1", "C2"} else one)
    assert rare.status == "FAIL"


def test_texts_and_times_that_the_baseline_gives_too_are_not_the_candidates_fault(
    sound: Callable[..., GateResult],
) -> None:
    assert sound(lambda _, one: halved(one)).status == "NOT_COMPARABLE"
    two = {"A2": "b" * 64, "C2": "b" * 64}
    assert sound(lambda place, one: replace(one, text_sha256=two.get(place.label, "a" * 64))).status == "NOT_COMPARABLE"
    other = {"A2": "b" * 64, "C2": "c" * 64}
    assert sound(lambda place, one: replace(one, text_sha256=other.get(place.label, "a" * 64))).status == "FAIL"


def test_every_code_that_fails_is_one_that_the_recorder_gives() -> None:
    assert consistency.__doc__ is not None
    assert [code for code in UNSOUND if f"\n{code} " not in consistency.__doc__] == []


def test_a_contradiction_counts_in_a_load_that_broke_off(sound: Callable[..., GateResult]) -> None:
    def broken(position: Position, load: LoadMeasurement) -> LoadMeasurement:
        return replace(load, state="PARTIAL", reason="broke off") if position.label == "C1" else load

    edit = of_candidate(outcome="stream_error", flags=("ids_doubled",))
    assert sound(edit, edit_load=broken).status == "FAIL"
    assert sound(lambda _, request: request, edit_load=broken).status == "INCONCLUSIVE"


def test_equal_ids_with_another_text_fail_and_other_ids_are_left_to_their_own_gate(
    sound: Callable[..., GateResult],
) -> None:
    result = sound(of_candidate(text_sha256="b" * 64))
    assert (result.status, "texts: C1 request 0 and " in result.reason) == ("FAIL", True)
    assert sound(of_candidate(text_sha256="b" * 64, token_ids=(1, 2, 3))).status == "PASS"


def test_times_of_the_engine_that_are_not_ours_fail_and_one_late_reply_does_not(
    sound: Callable[..., GateResult],
) -> None:
    half = sound(lambda place, one: halved(one) if place.arm == "candidate" else one)
    assert half.status == "FAIL"
    assert "generation of the candidate, in the first reply 635 ms instead of 1271 ms" in half.reason
    assert sound(lambda place, one: halved(one) if place.label == "C2" else one).status == "PASS"


def test_times_that_no_reply_states_are_not_said_to_be_ours(sound: Callable[..., GateResult]) -> None:
    assert sound(lambda _, request: request).reason.endswith(
        "add up, and the engine's times are ours within 20 % or 200 ms."
    )
    result = sound(of_candidate(server_prefill_ns=None))
    assert (result.status, "no times of the engine to compare: prefill of the candidate." in result.reason) == (
        "PASS",
        True,
    )


def halved(request: RequestMeasurement) -> RequestMeasurement:
    assert request.server_generation_ns is not None
    return replace(request, server_generation_ns=request.server_generation_ns // 2)


def test_a_difference_below_the_limit_or_below_200_ms_is_noise(sound: Callable[..., GateResult]) -> None:
    assert sound(of_candidate(server_generation_ns=1_200_000_000, client_generation_ns=1_000_000_000)).status == "PASS"
    assert sound(of_candidate(server_generation_ns=40_000_000, client_generation_ns=240_000_000)).status == "PASS"
    assert sound(of_candidate(server_generation_ns=39_999_999, client_generation_ns=240_000_000)).status == "FAIL"


def test_a_limit_that_is_no_percentage_is_refused(edited: Edit) -> None:
    with pytest.raises(Exception, match="expected a percentage above 0 and below 100"):
        edited((SOUND[0], SOUND[1].replace("cold-512}", 'cold-512, timing_limit_pct: "100"}')))
