"""An audit takes the memory of its largest load, however many there are."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from recorder.audit import audit_store

TOKENS = 1500


def fill(synthetic, root: Path, campaigns: int) -> None:
    """Record campaigns with long streams, those of each campaign with ids of their own."""
    for number in range(campaigns):
        with synthetic.open_store(root, clock=synthetic.StepClock((1_800_000_000 + number) * 10**9)) as store:
            campaign = store.begin_campaign(**synthetic.lock_parts())
            reads = synthetic.completion_reads(ids=tuple(range(number * TOKENS, (number + 1) * TOKENS)))
            for place in synthetic.positions():
                load = campaign.open_load(place)
                request = synthetic.http_request("/completion", synthetic.REQUESTS["requests/tiny.json"])
                sink = load.exchange(
                    name="tiny", route="/completion", kind="native", workload="tiny", repeat=0, is_warmup=False,
                    request=request,
                )  # fmt: skip
                synthetic.play(sink, reads, 10**9)
                load.seal(state="COMPLETE", reason=None)
            synthetic.judge(store, campaign)


def peak_bytes(root: Path) -> int:
    """The most that an audit allocates, the evidence of its having been sound aside."""
    tracemalloc.start()
    try:
        assert audit_store(root).findings == ()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_store_with_more_loads_is_audited_in_the_same_memory(tmp_path: Path, synthetic):
    fill(synthetic, tmp_path / "small", 1)
    fill(synthetic, tmp_path / "large", 6)
    audit_store(tmp_path / "small")  # whatever is loaded and kept for good is so by now
    small, large = peak_bytes(tmp_path / "small"), peak_bytes(tmp_path / "large")
    blobs = sum(path.stat().st_size for path in (tmp_path / "large/blobs").rglob("*") if path.is_file())
    assert blobs > 3_000_000
    assert large < small * 1.25
