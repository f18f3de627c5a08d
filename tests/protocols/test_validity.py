"""Rules about the host: blind to every rate, shown both ways, refused where they contradict."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protocols.decision import LossRule, judge_loss
from protocols.errors import ProtocolError
from protocols.gates import evaluate_gates
from protocols.load import LoadedProtocol
from protocols.looks import Look, spent_levels
from protocols.measurements import CampaignMeasurements
from protocols.results import GateResult
from protocols.schedule import expand_schedule
from protocols.simulate import HOSTS, Design, batches, lower_limit, observations_of
from protocols.stats import Calibration

Make = Callable[..., CampaignMeasurements]
Edit = Callable[..., LoadedProtocol]
Judge = Callable[..., dict[str, GateResult]]

SCHEDULE = "blocks: 2, order: coin"
FAULTS = ("limits:", "validity: [{reading: engine_major_faults, most: 10}]\nlimits:")
CANDIDATE = 'candidate: {engine: {kind: bundled, layout_salt: 2, faults: []}, environment: {GOMP_SPINCOUNT: "0"}}'
CAMPAIGNS = 2000
FOUR = (SCHEDULE, "blocks: 4, order: coin")


def in_blocks(*blocks: int, count: int = 500) -> Callable[[Any, Any], Any]:
    """Give each load its major faults: `count` in these blocks, none elsewhere."""
    return lambda position, load: replace(load, host={"engine_major_faults": count if position.block in blocks else 0})


def test_which_blocks_are_left_out_does_not_depend_on_any_rate(edited: Edit, make_campaign: Make, judge: Judge) -> None:
    protocol = edited(FOUR, FAULTS).protocol
    noise = random.Random(5)
    found = []
    for _ in range(20):
        rates = lambda _position: (400 * noise.lognormvariate(0, 1), 100 * noise.lognormvariate(0, 1))  # noqa: E731
        results = judge(protocol, make_campaign(protocol, rates, edit_load=in_blocks(2, 3)))
        found.append([results[gate].inputs["invalid_blocks"] for gate in ("generation-loss", "prefill-loss", "mirror")])
    assert all(one == found[0] for one in found)
    assert [block["block"] for block in found[0][0]] == [2, 3]  # type: ignore[index, call-overload, union-attr]


def test_a_block_that_many_loads_took_out_is_named_with_its_first_reason(
    edited: Edit, make_campaign: Make, judge: Judge
) -> None:
    """Eight loads of one busy host made a paragraph that nobody read to its end."""
    protocol = edited(FOUR, FAULTS).protocol
    results = judge(protocol, make_campaign(protocol, edit_load=in_blocks(2, count=11)))
    loads = [one for one in expand_schedule(protocol.schedule) if one.block == 2]
    first = (
        f"block 2 ({loads[0].label} had 11 major page faults of the engine, at most 10 allowed; {len(loads) - 1} more)"
    )
    assert f"Left out by rules fixed beforehand: {first}. With every block" in results["generation-loss"].reason
    broken = results["generation-loss"].inputs["invalid_blocks"][0]["broken"]  # type: ignore[index, call-overload]
    assert len(broken) == len(loads)  # type: ignore[arg-type]


def test_where_every_block_is_left_out_the_loss_of_all_is_still_shown(
    edited: Edit, make_campaign: Make, judge: Judge
) -> None:
    """It was not: the gate said only that no loss is computed."""
    protocol = edited(FAULTS).protocol
    results = judge(protocol, make_campaign(protocol, edit_load=in_blocks(1, 2)))
    loss, mirror = results["generation-loss"], results["mirror"]
    assert (loss.status, mirror.status) == ("INCONCLUSIVE", "INCONCLUSIVE")
    assert loss.inputs["all_blocks"]["decision"] == "PASS"  # type: ignore[index, call-overload]
    assert "No loss is computed. Left out by rules fixed beforehand: block 1" in loss.reason
    assert "With every block the loss would be 0.00 %" in loss.reason
    assert mirror.inputs["all_blocks"]["decision"] == "PASS"  # type: ignore[index, call-overload]
    assert "With every block the largest gap would be 0.00 percentage points: PASS" in mirror.reason


def test_one_block_with_calibrated_noise_is_judged_with_it_both_ways(
    edited: Edit, make_campaign: Make, judge: Judge
) -> None:
    """The judgement of all blocks forgot the calibration and could only be a screen."""
    protocol = edited(
        (SCHEDULE, "blocks: 1, order: abba"), ("workloads:", "sigma: calibrated\nworkloads:"), FAULTS
    ).protocol
    known = {("cold-512", metric): Calibration(sigma=0.01, df=11) for metric in ("prefill_rate", "generation_rate")}
    loss = judge(protocol, make_campaign(protocol, edit_load=in_blocks(1)), calibrations=known)["generation-loss"]
    assert loss.status == "INCONCLUSIVE"
    assert loss.inputs["all_blocks"]["decision"] == "PASS"  # type: ignore[index, call-overload]


def test_a_screen_is_shown_both_ways_and_names_what_nobody_could_check(
    edited: Edit, make_campaign: Make, judge: Judge
) -> None:
    screen = "  - {id: mirror,"
    extra = '  - {id: old, kind: screen_loss, workload: cold-512, metric: generation_rate, max_loss_pct: "2", required: false}\n'
    protocol = edited(FAULTS, (screen, extra + screen)).protocol

    def slow(position: Any) -> tuple[float, float]:
        return 400.0, 50.0 if position.block == 2 and position.arm == "candidate" else 100.0

    old = judge(protocol, make_campaign(protocol, slow, edit_load=in_blocks(2)))["old"]
    assert old.status == "SCREEN_ONLY"
    assert old.inputs["all_blocks"]["decision"] == "FAIL"  # type: ignore[index, call-overload]
    assert "With every block the pooled change would be -29.29 %: FAIL." in old.reason
    unknown = judge(protocol, make_campaign(protocol, slow))["old"]
    assert unknown.inputs["unchecked_readings"] == ["engine_major_faults"]
    assert "could not be checked here: major page faults of the engine (in no load)" in unknown.reason


def test_a_look_before_which_every_block_was_left_out_is_passed_over(edited: Edit, make_campaign: Make) -> None:
    """It ended in a fit without loads."""
    protocol = edited((SCHEDULE, "blocks: 6, looks: [2, 3, 6], order: coin"), FAULTS).protocol
    results = {
        result.id: result for result in evaluate_gates(protocol, make_campaign(protocol, edit_load=in_blocks(1, 2)))
    }
    loss = results["generation-loss"]
    assert loss.status == "PASS"
    assert [look["blocks"] for look in loss.inputs["looks"]] == [3, 6]  # type: ignore[index, call-overload, union-attr]
    assert loss.inputs["n_candidate"] == 8


def test_a_load_that_could_not_be_checked_is_named_with_its_rule(
    edited: Edit, make_campaign: Make, judge: Judge
) -> None:
    protocol = edited(FAULTS).protocol

    def one_blind(position: Any, load: Any) -> Any:
        partial = frozenset({"engine_major_faults"}) if position.label == "A2" else frozenset()
        host = None if position.label == "C1" else {"engine_major_faults": 3}
        return replace(load, host=host, host_partial=partial)

    loss = judge(protocol, make_campaign(protocol, edit_load=one_blind))["generation-loss"]
    order = [place.label for place in expand_schedule(protocol.schedule)]
    blind = sorted(("A2", "C1"), key=order.index)
    assert loss.inputs["unchecked_loads"] == {"engine_major_faults": blind}
    assert f"(not in {' and '.join(blind)})" in loss.reason
    assert loss.status == "PASS"


@pytest.mark.parametrize("left_out", [(1,), (2,), (4,), (1, 2), (2, 5), (1, 2, 3)])
def test_blocks_that_are_left_out_leave_the_promised_error(left_out: tuple[int, ...]) -> None:
    """The levels were spent for campaigns whose blocks all count; with fewer they still keep the promise."""
    looks = (2, 3, 4, 6)
    levels = spent_levels(looks, 0.05)
    rule = LossRule(
        margin=0.02, looks=tuple(Look(blocks=at, level=level) for at, level in zip(looks, levels, strict=True))
    )
    passed = failed = 0
    for arms, logs in batches(HOSTS["quiet"], Design(blocks=6, rule=rule), 0.02, campaigns=CAMPAIGNS):
        for row, flags in zip(logs, arms, strict=True):
            kept = [one for one in observations_of(row, flags) if one.block not in left_out]
            decision = judge_loss(kept, rule).decision
            passed, failed = passed + (decision == "PASS"), failed + (decision == "FAIL")
    for count in (passed, failed):
        assert count > 0
        assert lower_limit(count, CAMPAIGNS) <= 0.05


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((("limits:", "validity: [{reading: oom_kills, most: 0}, {reading: oom_kills, most: 2}]\nlimits:"),), "found 2 rules about oom_kills"),
        ((("limits:", "validity: [{reading: io_pressure_permille, most: 1000}]\nlimits:"),), "which no load can pass"),
        ((("limits:", "validity: [{reading: longest_sample_gap_ms, most: 249}]\nlimits:"),), "a sample is taken each 250 ms"),
        ((FAULTS, ("period_ms: 250", "period_ms: 250, off_in: candidate")), "no load of the candidate is sampled"),
    ],
)  # fmt: skip
def test_rules_that_contradict_or_can_never_say_anything_are_refused(
    edited: Edit, changes: tuple[tuple[str, str], ...], message: str
) -> None:
    with pytest.raises(ProtocolError) as refused:
        edited(*changes)
    assert message in "\n".join(refused.value.lines())


def test_rules_about_loads_outside_blocks_are_refused(edited: Edit) -> None:
    """They were accepted, and nothing could ever be left out."""
    order = (
        "schedule: {kind: blocks, blocks: 2, order: coin, seed: 20261129, burn_in: true}",
        "schedule: {kind: explicit, order: [A1, C1, A2, C2, A3, C3], burn_in: true}",
    )
    with pytest.raises(ProtocolError) as refused:
        edited(order, FAULTS)
    assert "a rule takes out a whole block" in "\n".join(refused.value.lines())


def test_a_rule_about_the_process_of_an_endpoint_is_refused(edited: Edit) -> None:
    with pytest.raises(ProtocolError) as refused:
        edited((CANDIDATE, 'candidate: {engine: {kind: openai, url: "http://127.0.0.1:8000", model: m}}'), FAULTS)
    found = [line for line in refused.value.lines() if "validity[0].reading" in line]
    assert len(found) == 1
    assert "found engine_major_faults, and the candidate is an endpoint whose process nobody sees" in found[0]
