from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import ProtocolError
from protocols.load import LoadedProtocol
from protocols.measurements import CampaignMeasurements
from protocols.results import GateResult
from protocols.schedule import expand_schedule
from protocols.schema import Arm
from protocols.stats import Calibration, Observation, fit_loss
from protocols.verdicts import combine

Make = Callable[..., CampaignMeasurements]
Edit = Callable[..., LoadedProtocol]
Judge = Callable[..., dict[str, GateResult]]
Noisy = Callable[..., Callable[[Any], tuple[float, float]]]

SCREENS = (
    "gates:\n",
    (
        'gates:\n  - {id: screen, kind: screen_loss, workload: cold-512, metric: generation_rate, max_loss_pct: "2", '
        "required: false}\n  - {id: cold, kind: cold_cache, workload: cold-512}\n"
    ),
)
ONE_BLOCK = ("kind: blocks, blocks: 2, order: coin", "kind: blocks, blocks: 1, order: abba")
PAIR = ("kind: blocks, blocks: 2, order: coin, seed: 20261129, burn_in: true", "kind: explicit, order: [A1, C1]")
CLAIM_SCREEN = ("claim: non_inferiority", "claim: screen")
NO_MIRROR = (
    '  - {id: mirror, kind: mirror_gap, workload: cold-512, metric: generation_rate, limit_pp: "3", required: false}\n',
    "",
)


def verdict_of(results: dict[str, GateResult]) -> str:
    return combine(list(results.values())).status


def test_a_candidate_that_is_a_third_slower_fails_only_the_speed_gates(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge, noisy: Noisy
) -> None:
    results = judge(served_pair.protocol, make_campaign(served_pair.protocol, noisy(2, 0.005, candidate=0.7)))
    failed = {name for name, result in results.items() if result.status == "FAIL"}
    assert failed == {"prefill-loss", "generation-loss"}
    assert "with 95 % confidence the loss is at least" in results["generation-loss"].reason
    assert results["generation-loss"].inputs["loss_detected"] is True
    assert not results["generation-loss"].loss_detected  # the flag of a PASS; this is a FAIL
    assert verdict_of(results) == "FAIL"


def test_a_loss_result_carries_everything_that_a_reader_needs(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge, noisy: Noisy
) -> None:
    result = judge(served_pair.protocol, make_campaign(served_pair.protocol, noisy(3, 0.02)))["generation-loss"]
    inputs = result.inputs
    for key in ("loss_pct", "loss_low_pct", "loss_high_pct", "sigma_pct", "drift_pct_per_load", "standard_error_pct"):
        assert isinstance(inputs[key], str), key
        float(str(inputs[key]))
    assert (inputs["df"], inputs["n_baseline"], inputs["n_candidate"], inputs["alpha"]) == (5, 4, 4, "0.05")
    assert (inputs["clock"], inputs["sigma_source"], inputs["limits"]) == ("server", "loads", [])
    loads = inputs["loads"]
    assert isinstance(loads, list)
    assert len(loads) == 8
    assert float(str(inputs["loss_low_pct"])) < float(str(inputs["loss_pct"])) < float(str(inputs["loss_high_pct"]))
    assert inputs["client_loss_pct"] is not None
    assert "disagree" not in result.reason


def test_the_burn_in_load_never_enters_a_number(served_pair: LoadedProtocol, make_campaign: Make, judge: Judge) -> None:
    def rates(position: Any) -> tuple[float, float]:
        return (1.0, 1.0) if position.is_burn_in else (400.0, 100.0)

    results = judge(served_pair.protocol, make_campaign(served_pair.protocol, rates))
    assert results["generation-loss"].status == "PASS"
    assert float(str(results["generation-loss"].inputs["loss_pct"])) == pytest.approx(0.0, abs=1e-9)


def test_a_loss_of_exactly_the_margin_does_not_pass(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    def rates(position: Any) -> tuple[float, float]:
        # 127 tokens and 512 tokens at rates whose times are whole nanoseconds in both arms.
        return (512.0, 127.0) if position.arm == "baseline" else (512.0 * 0.9, 127.0 * 0.9)

    def edit(position: Any, request: Any) -> Any:
        factor = 9 if position.arm == "baseline" else 10
        return replace(
            request, server_prefill_ns=factor * 10**8, server_generation_ns=factor * 10**8, client_prefill_ns=None
        )

    result = judge(served_pair.protocol, make_campaign(served_pair.protocol, rates, edit))["generation-loss"]
    assert float(str(result.inputs["loss_pct"])) == pytest.approx(10.0, abs=1e-10)
    assert result.status == "INCONCLUSIVE"


def test_a_pass_with_a_detected_loss_is_flagged_up_to_the_verdict(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge, noisy: Noisy
) -> None:
    results = judge(served_pair.protocol, make_campaign(served_pair.protocol, noisy(5, 0.002, candidate=0.96)))
    assert results["generation-loss"].status == "PASS"
    assert results["generation-loss"].loss_detected
    assert "small, but real" in results["generation-loss"].reason
    assert combine(list(results.values())).loss_detected


def test_too_few_tokens_or_no_times_leave_the_loss_gate_not_run(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    def timeless(_: Any, request: Any) -> Any:
        return replace(request, server_generation_ns=None, client_generation_ns=None)

    result = judge(served_pair.protocol, make_campaign(served_pair.protocol, edit_request=timeless))["generation-loss"]
    assert result.status == "NOT_RUN"
    assert "neither the server's nor the client's times" in result.reason


def test_an_engine_without_times_of_its_own_is_judged_by_the_clients_clock(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    def edit(_: Any, request: Any) -> Any:
        return replace(request, server_generation_ns=None)

    result = judge(served_pair.protocol, make_campaign(served_pair.protocol, edit_request=edit))["generation-loss"]
    assert (result.status, result.inputs["clock"]) == ("PASS", "client")


def test_times_that_disagree_are_said_in_the_reason(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    def edit(position: Any, request: Any) -> Any:
        if position.label != "C2":
            return request
        return replace(request, client_generation_ns=2 * request.server_generation_ns)

    result = judge(served_pair.protocol, make_campaign(served_pair.protocol, edit_request=edit))["generation-loss"]
    assert result.inputs["timing_disagreements"] == ["C2"]
    assert "differ by more than 2 % and 20 ms in C2: a note that fails nothing" in result.reason
    # One of four candidate loads takes twice as long by the client, whose times are a little longer than the server's.
    assert float(str(result.inputs["client_loss_pct"])) == pytest.approx(100 * client_loss(served_pair, "C2"), abs=0.05)


def client_loss(served_pair: LoadedProtocol, slow: str) -> float:
    positions = [one for one in expand_schedule(served_pair.protocol.schedule) if not one.is_burn_in]
    seen = [
        Observation(index=one.index, is_candidate=one.arm == "candidate", rate=50 if one.label == slow else 100)
        for one in positions
    ]
    return fit_loss(seen).loss


def test_a_load_without_the_clients_times_leaves_no_loss_by_the_clients_clock(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    def edit(position: Any, request: Any) -> Any:
        return replace(request, client_generation_ns=None) if position.label == "C2" else request

    result = judge(served_pair.protocol, make_campaign(served_pair.protocol, edit_request=edit))["generation-loss"]
    assert (result.status, result.inputs["clock"], result.inputs["client_loss_pct"]) == ("PASS", "server", None)


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        (("candidate",), "the candidate is an endpoint that is not started afresh for each load"),
        (("baseline", "candidate"), "the baseline and the candidate are endpoints that are not started afresh"),
    ],
)
def test_an_endpoint_can_only_be_screened(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge, arms: tuple[str, ...], words: str
) -> None:
    endpoint = Arm.model_validate({"engine": {"kind": "openai", "url": "http://h:1", "model": "m"}})
    changed = served_pair.protocol.arms.model_copy(update=dict.fromkeys(arms, endpoint))
    protocol = served_pair.protocol.model_copy(update={"arms": changed})
    result = judge(protocol, make_campaign(protocol))["generation-loss"]
    assert (result.status, words in result.reason) == ("SCREEN_ONLY", True)


def test_a_drifting_host_fails_the_mirror_gap_but_not_the_loss(
    served_pair: LoadedProtocol, make_campaign: Make, judge: Judge
) -> None:
    def rates(position: Any) -> tuple[float, float]:
        return 400.0, 100.0 * 0.97**position.index

    results = judge(served_pair.protocol, make_campaign(served_pair.protocol, rates))
    assert results["mirror"].status == "FAIL"
    assert results["generation-loss"].status == "PASS"
    assert float(str(results["generation-loss"].inputs["drift_pct_per_load"])) == pytest.approx(-3.05, abs=0.01)
    assert verdict_of(results) == "PASS"


def test_the_legacy_gates_reproduce_the_published_blocks(
    edited: Edit, make_campaign: Make, vectors: dict[str, dict[str, Any]], judge: Judge
) -> None:
    protocol = edited(SCREENS, ONE_BLOCK, CLAIM_SCREEN).protocol
    for row in vectors.values():
        if row["kind"] != "abba":
            continue

        def edit(position: Any, request: Any, row: dict[str, Any] = row) -> Any:
            rate = row.get(position.label, 100.0)
            tokens = 10**15  # so many that whole nanoseconds resolve the published rate to 1e-12
            ns = round((tokens - 1) / rate * 1e9)
            return replace(request, generated_tokens=tokens, server_generation_ns=ns, client_generation_ns=ns)

        results = judge(protocol, make_campaign(protocol, edit_request=edit))
        gap, screen = results["mirror"], results["screen"]
        assert float(str(gap.inputs["gap_pp"])) == pytest.approx(row["gap"], rel=1e-10)
        assert float(str(screen.inputs["pooled_change_pct"])) == pytest.approx(row["pooled"], rel=1e-10)
        passes = (gap.status, screen.status) == ("PASS", "SCREEN_ONLY")
        assert passes == (row["verdict"] == "pass"), row["id"]


def test_a_pair_of_loads_is_a_screen_and_never_a_pass(
    edited: Edit, make_campaign: Make, judge: Judge, noisy: Noisy
) -> None:
    protocol = edited(PAIR, CLAIM_SCREEN, NO_MIRROR).protocol
    result = judge(protocol, make_campaign(protocol))["generation-loss"]
    assert result.status == "SCREEN_ONLY"
    assert "2 loads without calibrated noise of this host carry no more" in result.reason
    assert result.inputs["loss_high_pct"] is None
    slow = judge(protocol, make_campaign(protocol, noisy(1, 0.0, candidate=0.8)))["generation-loss"]
    assert slow.status == "INCONCLUSIVE"


def test_calibrated_noise_lets_one_block_pass(edited: Edit, make_campaign: Make, judge: Judge, noisy: Noisy) -> None:
    protocol = edited(ONE_BLOCK, ("workloads:", "sigma: calibrated\nworkloads:")).protocol
    calibrations = {
        ("cold-512", metric): Calibration(sigma=0.02, df=18) for metric in ("prefill_rate", "generation_rate")
    }
    campaign = make_campaign(protocol, noisy(1, 0.005))
    assert verdict_of(judge(protocol, campaign, calibrations=calibrations)) == "PASS"
    assert verdict_of(judge(protocol, campaign)) == "SCREEN_ONLY"


def test_a_claim_of_a_screen_never_passes_a_speed_gate_but_can_fail_it(
    edited: Edit, make_campaign: Make, judge: Judge, noisy: Noisy
) -> None:
    protocol = edited(CLAIM_SCREEN).protocol
    fine = judge(protocol, make_campaign(protocol))
    assert fine["generation-loss"].status == "SCREEN_ONLY"
    assert "the protocol claims only a screen" in fine["generation-loss"].reason
    assert verdict_of(fine) == "SCREEN_ONLY"
    assert verdict_of(judge(protocol, make_campaign(protocol, noisy(1, 0.01, candidate=0.7)))) == "FAIL"


ORDER = {"PASS": 0, "INCONCLUSIVE": 1, "FAIL": 2}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), candidate=st.floats(0.5, 1.2), factor=st.floats(0.5, 1.0))
def test_a_slower_candidate_never_gets_a_better_result(
    served_pair: LoadedProtocol,
    make_campaign: Make,
    seed: int,
    candidate: float,
    factor: float,
    judge: Judge,
    noisy: Noisy,
) -> None:
    protocol = served_pair.protocol
    before = judge(protocol, make_campaign(protocol, noisy(seed, 0.03, candidate)))["generation-loss"].status
    after = judge(protocol, make_campaign(protocol, noisy(seed, 0.03, candidate * factor)))["generation-loss"].status
    assert ORDER[after] >= ORDER[before]


def test_a_claim_by_a_pair_is_refused_even_with_calibrated_noise(edited: Callable[..., LoadedProtocol]) -> None:
    changes = (
        ("kind: blocks, blocks: 2, order: coin, seed: 20261129, burn_in: true", "kind: explicit, order: [A1, C1]"),
        ("workloads:", "sigma: calibrated\nworkloads:"),
        (
            '  - {id: mirror, kind: mirror_gap, workload: cold-512, metric: generation_rate, limit_pp: "3", required: false}\n',
            "",
        ),
    )
    with pytest.raises(ProtocolError, match="a drift of the host looks like a loss"):
        edited(*changes)
