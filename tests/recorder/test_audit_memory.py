"""An audit takes the memory of its largest load, however many there are."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from recorder.audit import audit_store

TOKENS = 1000


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
    """The most that an audit allocates, its result included."""
    tracemalloc.start()
    try:
        assert audit_store(root).findings == ()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def blob_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "blobs").rglob("*") if path.is_file())


def test_the_bytes_of_more_loads_take_no_more_memory(tmp_path: Path, synthetic):
    """Token ids, facts and ledger entries stay; the bytes of a load go with it, and do not wait for the cycle finder."""
    small, large = tmp_path / "small", tmp_path / "large"
    fill(synthetic, small, 1)
    fill(synthetic, large, 5)
    audit_store(small)  # whatever is loaded and kept for good is so by now
    more_bytes = blob_bytes(large) - blob_bytes(small)
    assert more_bytes > 2_000_000
    assert peak_bytes(large) - peak_bytes(small) < more_bytes / 4
