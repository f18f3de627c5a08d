"""Looks, rules about the host, equivalence: how whole campaigns are judged with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protocols.errors import ProtocolError
from protocols.gates import blocks_wanted, evaluate_gates
from protocols.load import LoadedProtocol
from protocols.lock import locked_looks
from protocols.looks import spent_levels
from protocols.measurements import CampaignMeasurements
from protocols.plan import Noise, plan_protocol
from protocols.results import GateResult
from protocols.verdicts import combine

Make = Callable[..., CampaignMeasurements]
Edit = Callable[..., LoadedProtocol]
Judge = Callable[..., dict[str, GateResult]]
Noisy = Callable[..., Callable[[Any], tuple[float, float]]]

SCHEDULE = "blocks: 2, order: coin"
LOOKS = (SCHEDULE, "blocks: 6, looks: [2, 3, 6], order: coin")
ANYTIME = (SCHEDULE, "blocks: 6, stopping: anytime, order: coin")
FAULTS = ("limits:", "validity: [{reading: engine_major_faults, most: 10}]\nlimits:")
FOUR = (SCHEDULE, "blocks: 4, order: coin")


def status_of(results: Any) -> str:
    return combine(list(results)).status


def until(blocks: int) -> Callable[[Any, Any], Any]:
    """Keep the loads of the first blocks, as an unfinished campaign has them."""
    return lambda position, load: load if (position.block or 0) <= blocks else None


def test_a_quiet_campaign_ends_at_its_first_look(edited: Edit, make_campaign: Make, judge: Judge, noisy: Noisy) -> None:
    protocol = edited(LOOKS).protocol
    measured = make_campaign(protocol, noisy(1, 0.005), edit_load=until(2))
    results = judge(protocol, measured)
    assert status_of(results.values()) == "PASS"
    assert blocks_wanted(protocol, measured) is None
    inputs = results["generation-loss"].inputs
    (look,) = inputs["looks"]  # type: ignore[misc]
    assert look["blocks"] == 2
    assert look["loss_pct"] == inputs["loss_pct"]
    assert float(look["level"]) == spent_levels((2, 3, 6), 0.05)[0]
    assert "Decided after 2 of 6 blocks, look 1" in results["generation-loss"].reason
    assert "with 95 % confidence, all looks included," in results["generation-loss"].reason


def test_what_is_measured_after_a_look_that_decided_changes_nothing(
    edited: Edit, make_campaign: Make, noisy: Noisy
) -> None:
    protocol = edited(LOOKS).protocol
    quiet = noisy(1, 0.005)

    def rates(position: Any) -> tuple[float, float]:
        prefill, generation = quiet(position)
        slow = (position.block or 0) > 2 and position.arm == "candidate"
        return prefill * (0.5 if slow else 1), generation * (0.5 if slow else 1)

    early = evaluate_gates(protocol, make_campaign(protocol, noisy(1, 0.005), edit_load=until(2)))
    whole = evaluate_gates(protocol, make_campaign(protocol, rates))
    assert [one.payload() for one in whole] == [one.payload() for one in early]


def test_a_noisy_campaign_wants_the_next_look_and_ends_open_at_the_last(
    edited: Edit, make_campaign: Make, noisy: Noisy
) -> None:
    protocol = edited(LOOKS).protocol
    wanted = [
        blocks_wanted(protocol, make_campaign(protocol, noisy(2, 0.2), edit_load=until(done)))
        for done in (0, 1, 2, 3, 6)
    ]
    assert wanted == [2, 2, 3, 6, None]
    whole = evaluate_gates(protocol, make_campaign(protocol, noisy(2, 0.2)))
    assert status_of(whole) == "INCONCLUSIVE"
    assert "Not decided after 6 of 6 blocks, look 3" in next(r for r in whole if r.id == "generation-loss").reason


@pytest.mark.parametrize("loads", [1, 2, 3])
def test_a_campaign_that_broke_off_inside_a_block_has_no_verdict_from_half_a_block(
    edited: Edit, make_campaign: Make, judge: Judge, noisy: Noisy, loads: int
) -> None:
    """One load, one pair, three loads of the last block of a look: all the same, nothing is concluded."""
    protocol = edited(LOOKS).protocol

    def cut(position: Any, load: Any) -> Any:
        return load if position.index <= 4 + loads else None

    results = judge(protocol, make_campaign(protocol, noisy(1, 0.001), edit_load=cut))
    assert results["generation-loss"].status == "INCONCLUSIVE"
    assert "was not run" in results["generation-loss"].reason
    assert status_of(results.values()) == "INCONCLUSIVE"


def test_a_campaign_that_was_cut_short_after_a_look_is_as_undecided_as_that_look(
    edited: Edit, make_campaign: Make, judge: Judge, noisy: Noisy
) -> None:
    """It said that no loss is computed, although two whole blocks had been judged."""
    protocol = edited(LOOKS).protocol
    for done in (2, 3):
        whole = judge(protocol, make_campaign(protocol, noisy(2, 0.2), edit_load=until(done)))
        for extra in (0, 1, 3):

            def cut(position: Any, load: Any, last: int = 4 * done + extra) -> Any:
                return load if position.index <= last else None

            loss = judge(protocol, make_campaign(protocol, noisy(2, 0.2), edit_load=cut))["generation-loss"]
            assert loss.status == "INCONCLUSIVE"
            assert loss.inputs["loss_pct"] == whole["generation-loss"].inputs["loss_pct"]
            assert loss.inputs["n_candidate"] == 2 * done
            assert loss.inputs["next_look"] == (3 if done == 2 else 6)
            assert "was not reached" in loss.reason


def test_a_load_that_did_not_run_what_was_locked_is_never_passed_over(
    edited: Edit, make_campaign: Make, judge: Judge, noisy: Noisy
) -> None:
    protocol = edited(LOOKS).protocol

    def spoilt(position: Any, load: Any) -> Any:
        return replace(load, state="INVALID") if position.block == 3 else until(2)(position, load)

    assert status_of(judge(protocol, make_campaign(protocol, noisy(2, 0.2), edit_load=spoilt)).values()) == "INVALID"


def test_unequal_tokens_end_a_campaign_at_once(edited: Edit, make_campaign: Make) -> None:
    protocol = edited(LOOKS).protocol

    def other(position: Any, request: Any) -> Any:
        return replace(request, token_ids=(1, *request.token_ids[1:])) if position.arm == "candidate" else request

    measured = make_campaign(protocol, edit_request=other, edit_load=until(2))
    assert blocks_wanted(protocol, measured) is None
    assert status_of(evaluate_gates(protocol, measured)) == "FAIL"


def test_the_levels_of_the_lock_are_the_ones_that_count(edited: Edit, make_campaign: Make, noisy: Noisy) -> None:
    protocol = edited(LOOKS).protocol
    measured = make_campaign(protocol, noisy(3, 0.03), edit_load=until(2))
    strict = {row.gate: () for row in locked_looks(protocol)}
    assert set(strict) == {"prefill-loss", "generation-loss"}
    from protocols.looks import Look

    none = {gate: tuple(Look(blocks=count, level=1e-6) for count in (2, 3, 6)) for gate in strict}
    assert blocks_wanted(protocol, measured) is None
    assert blocks_wanted(protocol, measured, levels=none) == 3


def test_bounds_that_hold_at_any_time_are_looked_at_after_every_block(
    edited: Edit, make_campaign: Make, noisy: Noisy
) -> None:
    protocol = edited(ANYTIME).protocol
    measured = make_campaign(protocol, noisy(1, 0.005), edit_load=until(3))
    results = {one.id: one for one in evaluate_gates(protocol, measured)}
    looks = results["generation-loss"].inputs["looks"]
    assert [look["blocks"] for look in looks] in ([2], [2, 3])  # type: ignore[index, call-overload, union-attr]
    assert status_of(results.values()) == "PASS"


def with_faults(*labels: str) -> Callable[[Any, Any], Any]:
    return lambda position, load: replace(load, host={"engine_major_faults": 500 if load.label in labels else 0})


def test_a_block_with_a_load_that_broke_a_rule_is_left_out_whole_and_shown_both_ways(
    edited: Edit, make_campaign: Make, judge: Judge, noisy: Noisy
) -> None:
    protocol = edited(FOUR, FAULTS).protocol
    quiet = noisy(4, 0.004)

    def rates(position: Any) -> tuple[float, float]:
        prefill, generation = quiet(position)
        return prefill, generation * (0.6 if position.label == "C3" else 1)

    block = next(p.block for p in _positions(protocol) if p.label == "C3")
    broken = judge(protocol, make_campaign(protocol, rates, edit_load=with_faults("C3")))["generation-loss"]
    assert broken.status == "PASS"
    assert broken.inputs["invalid_blocks"] == [
        {"block": block, "broken": ["C3 had 500 major page faults of the engine, at most 10 allowed"]}
    ]
    assert (broken.inputs["n_baseline"], broken.inputs["n_candidate"]) == (6, 6)
    whole = broken.inputs["all_blocks"]
    assert isinstance(whole, dict)
    assert whole["n_candidate"] == 8
    assert float(str(whole["loss_pct"])) > float(str(broken.inputs["loss_pct"]))
    assert f"Left out by rules fixed beforehand: block {block}" in broken.reason
    assert "With every block the loss would be" in broken.reason


def test_no_outcome_alone_takes_a_block_out(edited: Edit, make_campaign: Make, judge: Judge) -> None:
    protocol = edited(FOUR, FAULTS).protocol

    def rates(position: Any) -> tuple[float, float]:
        return 400.0, 50.0 if position.label == "C3" else 100.0

    result = judge(protocol, make_campaign(protocol, rates, edit_load=with_faults()))["generation-loss"]
    assert result.inputs["invalid_blocks"] == []
    assert result.inputs["n_candidate"] == 8
    assert "all_blocks" not in result.inputs
    assert result.status == "INCONCLUSIVE"


def test_too_few_blocks_that_are_left_decide_nothing(edited: Edit, make_campaign: Make, judge: Judge) -> None:
    protocol = edited(FAULTS).protocol
    one = judge(protocol, make_campaign(protocol, edit_load=with_faults("A1")))
    assert one["generation-loss"].status == "INCONCLUSIVE"
    none = judge(protocol, make_campaign(protocol, edit_load=with_faults("A1", "A3")))
    assert (none["generation-loss"].status, none["mirror"].status) == ("INCONCLUSIVE", "INCONCLUSIVE")
    assert "Left out by rules fixed beforehand" in none["generation-loss"].reason
    assert none["tokens"].status == "PASS"  # equal tokens are asked of every load


def test_a_rule_whose_reading_the_host_does_not_give_is_named(edited: Edit, make_campaign: Make, judge: Judge) -> None:
    protocol = edited(FAULTS).protocol
    result = judge(protocol, make_campaign(protocol))["generation-loss"]
    assert result.status == "PASS"
    assert result.inputs["unchecked_readings"] == ["engine_major_faults"]
    assert "could not be checked" in result.reason


def test_the_burn_in_load_breaks_no_rule(edited: Edit, make_campaign: Make, judge: Judge) -> None:
    protocol = edited(FAULTS).protocol
    assert judge(protocol, make_campaign(protocol, edit_load=with_faults("B0")))["generation-loss"].status == "PASS"


def test_equivalence_is_said_and_a_gain_breaks_it(
    edited: Edit, make_campaign: Make, judge: Judge, noisy: Noisy
) -> None:
    after = "    after: [complete, tokens, work]\n  - {id: mirror"
    protocol = edited((after, after.replace("\n", "\n    equivalence: true\n", 1))).protocol
    same = judge(protocol, make_campaign(protocol, noisy(6, 0.005)))["generation-loss"]
    assert (same.status, same.inputs["equivalence"]) == ("PASS", True)
    assert "the two are equivalent" in same.reason
    fast = judge(protocol, make_campaign(protocol, noisy(6, 0.005, candidate=1.3)))["generation-loss"]
    assert fast.status == "FAIL"
    assert "gains at least" in fast.reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((SCHEDULE, "blocks: 4, looks: [1, 4], order: coin"), "found 1, 4, expected rising numbers from 2"),
        ((SCHEDULE, "blocks: 4, looks: [2, 3], order: coin"), "the last 4 like blocks"),
        ((SCHEDULE, "blocks: 4, looks: [3, 2, 4], order: coin"), "write [2, 3, 4]"),
        ((SCHEDULE, "blocks: 1, stopping: anytime, order: coin"), "which gives none"),
        (("campaign_min: 60", "campaign_min: 60, looks_min: 2"), "and the schedule has none"),
        (("campaign_min: 60", "campaign_min: 60, looks_min: 61"), "more than the whole campaign may take (60 min)"),
        (("campaign_min: 60", "campaign_min: 60, loads: 8"), "found 8, and the schedule has 9 loads"),
    ],
)
def test_looks_and_budgets_that_cannot_be_are_refused(edited: Edit, change: tuple[str, str], message: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        edited(change)
    assert message in "\n".join(refused.value.lines())


def test_a_schedule_without_looks_wants_all_its_loads(served_pair: LoadedProtocol, make_campaign: Make) -> None:
    with pytest.raises(ValueError, match="no looks"):
        blocks_wanted(served_pair.protocol, make_campaign(served_pair.protocol))


def test_keys_that_came_later_leave_the_hash_of_older_protocols_alone(
    served_pair: LoadedProtocol, edited: Edit
) -> None:
    """The hash of served-pair as it was before looks, rules, budgets of loads and equivalence existed."""
    text = served_pair.protocol.canonical()
    for key in (b'"looks', b'"stopping"', b'"validity"', b'"equivalence"', b'"loads":null'):
        assert key not in text
    assert edited(LOOKS).protocol.sha256() != served_pair.protocol.sha256()
    assert b'"looks":[2,3,6]' in edited(LOOKS).protocol.canonical()


def _positions(protocol: Any) -> Any:
    from protocols.schedule import expand_schedule

    return expand_schedule(protocol.schedule)


def test_planning_and_judging_a_campaign_of_24_loads_take_under_two_seconds_together(
    edited: Edit, make_campaign: Make, noisy: Noisy
) -> None:
    protocol = edited(LOOKS).protocol
    measured = make_campaign(protocol, noisy(2, 0.2))
    spent_levels.cache_clear()
    started_s = time.process_time()
    plan_protocol(protocol, Noise(sigma=0.02))
    evaluate_gates(protocol, measured)
    assert time.process_time() - started_s < 2
