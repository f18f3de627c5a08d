"""Two real campaigns on an H200: their bundles still audit, gates and verdicts included, with the key that signed them."""

from __future__ import annotations

from pathlib import Path

import pytest

from recorder.audit import audit_store
from recorder.bundle import opened_evidence
from recorder.keys import parse_verifier_key

EVIDENCE = Path(__file__).parents[1] / "evidence"
VERDICTS = {"h200-smollm2": "PASS", "h200-qwen4exp": "INCONCLUSIVE"}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_campaign_of_a_gpu_audits_from_its_bundle(name: str):
    with opened_evidence(EVIDENCE / f"{name}.assay.tar.zst") as folder:
        key = parse_verifier_key(next((folder / "keys").glob("*")).read_text().strip())
        result = audit_store(folder, trusted_keys=(key,))
        ledger = (folder / "ledger.jsonl").read_text()
    assert (result.findings, result.trust, result.is_partial) == ((), "VERIFIED", False)
    assert f'"status":"{VERDICTS[name]}"' in ledger
    assert (result.counts["loads"], result.counts["verdicts"]) == (9, 1)
