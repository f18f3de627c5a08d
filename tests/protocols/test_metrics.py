from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import metrics
from protocols.load import LoadedProtocol
from protocols.measurements import LoadMeasurement, RequestMeasurement

NS = 1_000_000_000


def request(**changes: Any) -> RequestMeasurement:
    base = RequestMeasurement(workload="w", repeat=0, is_warmup=False, outcome="ok")
    return replace(base, **changes)


def load(*requests: RequestMeasurement, arm: Any = "baseline", label: str = "A1") -> LoadMeasurement:
    return LoadMeasurement(
        index=0, label=label, arm=arm, block=1, is_burn_in=False, state="COMPLETE", requests=requests
    )


def test_the_published_generation_rate_comes_out() -> None:
    # 520 tokens in 12029.42 ms: the first token belongs to prefill.
    assert metrics.generation_rate(520, 12_029_420_000) == pytest.approx(43.14422474234003, rel=1e-12)


def test_prefill_rate_counts_every_evaluated_token() -> None:
    assert metrics.prefill_rate(512, NS) == 512.0


def test_a_generation_of_one_token_and_a_time_of_zero_have_no_rate() -> None:
    with pytest.raises(ValueError, match="two tokens"):
        metrics.generation_rate(1, NS)
    with pytest.raises(ValueError, match="above zero"):
        metrics.prefill_rate(512, 0)
    with pytest.raises(ValueError, match="two tokens"):
        metrics.tpot_ns(1, NS)


def test_tpot_is_the_inverse_of_the_generation_rate() -> None:
    assert metrics.tpot_ns(11, NS) == NS / 10
    assert metrics.generation_rate(11, NS) == 10.0


def test_the_acceptance_ratio_needs_drafts() -> None:
    assert metrics.acceptance_ratio(674, 400) == 400 / 674
    with pytest.raises(ValueError, match="drafted"):
        metrics.acceptance_ratio(0, 0)


@pytest.mark.parametrize(
    ("server_ns", "client_ns", "is_flagged"),
    [
        (NS, NS + 20_000_000, False),
        (NS, NS + 21_000_000, True),
        (10 * NS, 10 * NS - 200_000_000, True),
        (9_800_000_000, 10 * NS, False),
        (9_799_999_999, 10 * NS, True),
        (None, NS, False),
        (NS, None, False),
        (1_000, 20_000_000, False),
    ],
)
def test_times_that_disagree_by_more_than_two_percent_and_twenty_ms_are_flagged(
    server_ns: int | None, client_ns: int | None, is_flagged: bool
) -> None:
    assert metrics.timing_disagreement(server_ns, client_ns) is is_flagged


def test_requests_of_a_load_are_pooled_over_tokens_and_time() -> None:
    both = load(
        request(repeat=1, generated_tokens=101, server_generation_ns=2 * NS, client_generation_ns=2 * NS),
        request(repeat=0, generated_tokens=11, server_generation_ns=NS, client_generation_ns=NS),
        request(repeat=0, is_warmup=True, generated_tokens=9999, server_generation_ns=1),
        request(workload="other", generated_tokens=9999, server_generation_ns=1),
    )
    rate = metrics.load_rate(both, "w", "generation_rate", "server")
    assert rate is not None
    assert (rate.tokens, rate.ns, rate.client_ns) == (110, 3 * NS, 3 * NS)
    assert rate.rate == pytest.approx(110 / 3, rel=1e-15)
    assert [r.repeat for r in metrics.measured_requests(both, "w")] == [0, 1]


def test_a_load_with_an_unknown_time_or_count_has_no_rate() -> None:
    known = request(prompt_tokens_evaluated=512, server_prefill_ns=NS)
    assert metrics.load_rate(load(known), "w", "prefill_rate", "server") is not None
    for unknown in (
        replace(known, server_prefill_ns=None),
        replace(known, server_prefill_ns=0),
        replace(known, prompt_tokens_evaluated=None),
        replace(known, prompt_tokens_evaluated=0),
    ):
        assert metrics.load_rate(load(known, replace(unknown, repeat=1)), "w", "prefill_rate", "server") is None
    assert metrics.load_rate(load(), "w", "prefill_rate", "server") is None


def test_one_clock_serves_all_loads_or_none() -> None:
    with_both = request(server_prefill_ns=NS, client_prefill_ns=NS)
    client_only = replace(with_both, server_prefill_ns=None)
    neither = replace(client_only, client_prefill_ns=None)
    assert metrics.choose_clock([load(with_both), load(with_both)], "w", "prefill_rate") == "server"
    assert metrics.choose_clock([load(with_both), load(client_only)], "w", "prefill_rate") == "client"
    assert metrics.choose_clock([load(with_both), load(neither)], "w", "prefill_rate") is None
    assert metrics.choose_clock([], "w", "prefill_rate") is None


def test_a_rate_is_recorded_with_what_it_was_made_from() -> None:
    rate = metrics.load_rate(
        load(request(prompt_tokens_evaluated=512, server_prefill_ns=NS, client_prefill_ns=2 * NS)),
        "w",
        "prefill_rate",
        "server",
    )
    assert rate is not None
    assert rate.payload() == {
        "label": "A1",
        "index": 0,
        "arm": "baseline",
        "block": 1,
        "tokens": 512,
        "ns": "1000000000",
        "rate": "512.0",
        "client_rate": "256.0",
        "timing_disagreement": True,
    }


@given(st.integers(1, 10**9), st.integers(1, 10**13), st.integers(2, 1000))
def test_a_rate_is_the_same_for_a_request_and_for_many_alike(tokens: int, ns: int, times: int) -> None:
    assert metrics.rate_per_s(tokens * times, ns * times) == metrics.rate_per_s(tokens, ns)


def test_the_fixture_campaign_has_the_rates_that_it_was_asked_for(
    served_pair: LoadedProtocol, make_campaign: Callable[..., Any]
) -> None:
    campaign = make_campaign(served_pair.protocol, rates=lambda position: (400.0, 100.0))
    for one in campaign.loads:
        rate = metrics.load_rate(one, "cold-512", "generation_rate", "server")
        assert rate is not None
        assert rate.rate == pytest.approx(100.0, rel=1e-8)
