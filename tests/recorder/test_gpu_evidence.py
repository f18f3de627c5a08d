"""Two real campaigns on an H200: their bundles still audit, gates and verdicts included, with the key that signed them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.recall_prompts import recall_prompt
from recorder.audit import audit_store
from recorder.bundle import opened_evidence
from recorder.importing import import_bundle
from recorder.keys import parse_verifier_key
from recorder.store import Store

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


def test_every_reply_of_the_gpu_begins_with_the_private_code_of_its_prompt(tmp_path: Path):
    """The code was given 13,062 tokens earlier: block selection by plain operators, on CUDA."""
    with Store.open(tmp_path / "s", create=True) as store:
        folder = tmp_path / "s" / import_bundle(store, EVIDENCE / "h200-qwen4exp.assay.tar.zst").folder
    expected = recall_prompt("gpu recall-13062").expected_ids
    with Store.open(folder, read_only=True) as store:
        measured = store.measurements(store.resolve_campaign("latest"))
    replies = [request.token_ids for load in measured.loads for request in load.requests if not request.is_warmup]
    assert len(replies) == 18
    assert all(reply is not None and reply[: len(expected)] == expected for reply in replies)
