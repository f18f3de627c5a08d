"""From sealed loads to measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocols.errors import ProtocolError
from protocols.lock import LockedCalibration, parse_lock
from recorder.measure import locked_calibrations, protocol_of_source
from recorder.store import Store


def test_plain_exchanges_and_streams_without_a_workload_are_not_measured(fast_path: Path, synthetic):
    with synthetic.open_store(fast_path / "s") as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        load = campaign.open_load(synthetic.positions()[0])
        for name, kind, workload in (("props", "plain", "tiny"), ("probe", "native", None)):
            sink = load.exchange(
                name=name,
                route="/completion",
                kind=kind,
                workload=workload,
                repeat=0,
                is_warmup=False,
                request=synthetic.http_request("/completion", b"{}"),
            )
            synthetic.play(sink, synthetic.completion_reads(), 10)
        load.seal(state="COMPLETE", reason=None)
        assert store.measurements(campaign.campaign_id).loads[0].requests == ()


def test_an_engine_that_never_answers_is_a_measurement_without_numbers(fast_path: Path, synthetic):
    with synthetic.open_store(fast_path / "s") as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        load = campaign.open_load(synthetic.positions()[0])
        sink = load.exchange(
            name="tiny",
            route="/completion",
            kind="native",
            workload="tiny",
            repeat=0,
            is_warmup=False,
            request=synthetic.http_request("/completion", b"{}"),
        )
        sink.on_sent(5)
        sink.close("total_timeout", 10)
        load.seal(state="PARTIAL", reason="timeout")
        (one,) = store.measurements(campaign.campaign_id).loads[0].requests
    assert one.outcome == "timeout"
    assert (one.token_ids, one.generated_tokens, one.ttft_ns) == (None, None, None)


def test_calibrations_come_from_the_lock(store_root: Path):
    lock = Store.open(store_root, read_only=True).lock_of("latest")
    assert locked_calibrations(lock) == {}
    one = LockedCalibration(
        workload="tiny", metric="prefill_rate", sigma="0.0125", df=9, receipt_sha256="a" * 64, expires_utc="2027-01-01"
    )
    found = locked_calibrations(lock.model_copy(update={"calibrations": (one,)}))
    assert found[("tiny", "prefill_rate")].sigma == 0.0125
    assert found[("tiny", "prefill_rate")].df == 9


def test_a_protocol_is_read_from_its_source_alone(synthetic, store_root: Path):
    lock = parse_lock(next((store_root / "campaigns").rglob("lock.json")).read_bytes())
    assert protocol_of_source(synthetic.PROTOCOL).sha256() == lock.protocol_sha256
    with pytest.raises(ProtocolError):
        protocol_of_source(synthetic.PROTOCOL + b"id: twice\n")
