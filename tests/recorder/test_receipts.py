"""Receipts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recorder.audit import audit_store


def test_a_receipt_is_kept_with_its_attachments_also_when_the_action_failed(fast_path: Path, synthetic):
    root = fast_path / "s"
    with synthetic.open_store(root) as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        campaign.record_receipt("profiler", {"exit_code": 1, "seconds": 1.5}, {"stderr.txt": b"attach failed\n"})
        entry = store.entries()[-1]
        assert entry.text("receipt") == "profiler"
        assert json.loads(store.blobs.read(entry.blob("detail"))) == {"exit_code": 1, "seconds": 1.5}
        assert store.blobs.read(entry.blob("attachment")) == b"attach failed\n"
        assert "attach failed" not in entry.line.decode()
    assert audit_store(root).findings == ()


@pytest.mark.parametrize("kind", ["", "Build", "a b", "/home", "build/x"])
def test_a_kind_is_a_word(fast_path: Path, synthetic, kind: str):
    with synthetic.open_store(fast_path / "s") as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        with pytest.raises(ValueError, match="kind"):
            campaign.record_receipt(kind, {})
