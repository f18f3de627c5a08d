"""Rows: a pure function of entry and blobs; golden rows of one load."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocols.errors import EvidenceError
from recorder.rows import derive_rows
from recorder.store import Store


def test_deriving_twice_gives_the_same_rows(store_root: Path):
    store = Store.open(store_root, read_only=True)
    for entry in store.entries():
        assert derive_rows(entry, store.blobs.read) == derive_rows(entry, store.blobs.read)


def test_every_row_carries_the_number_of_its_entry(store_root: Path):
    store = Store.open(store_root, read_only=True)
    for entry in store.entries():
        for table, rows in derive_rows(entry, store.blobs.read).items():
            column = "seq" if table == "ledger_entry" else "entry_seq"
            assert {row[column] for row in rows} <= {entry.seq}


def test_the_rows_of_a_request_are_these(store_root: Path, synthetic):
    store = Store.open(store_root, read_only=True)
    entry = next(entry for entry in store.entries() if entry.kind == "load.sealed")
    rows = derive_rows(entry, store.blobs.read)
    (request,) = [row for row in rows["request"] if row["name"] == "tiny"]
    golden = {
        "route": "/completion",
        "kind": "native",
        "workload": "tiny",
        "repeat": 0,
        "is_warmup": 0,
        "http_status": 200,
        "outcome": "ok",
        "reason_code": None,
        "sent_ns": 4_000_000_000,
        "headers_ns": 4_001_000_000,
        "first_token_ns": 4_040_000_000,
        "last_token_ns": 4_065_000_000,
        "done_ns": 4_070_000_000,
        "end_ns": 4_070_010_001,
        "end_reason": "complete",
        "ttft_ns": 40_000_000,
        "e2e_ns": 70_000_000,
        "client_prefill_ns": 40_000_000,
        "client_generation_ns": 25_000_000,
        "server_prefill_ns": 40_000_000,
        "server_generation_ns": 25_000_000,
        "prompt_tokens": 16,
        "prompt_tokens_evaluated": 16,
        "cached_tokens": 0,
        "generated_tokens": 6,
        "drafted_tokens": 0,
        "accepted_tokens": 0,
        "stop_reason": "limit",
        "model": "tiny",
        "text": "".join(f"w{token} " for token in synthetic.IDS),
        "is_cut": 0,
    }
    assert {name: request[name] for name in golden} == golden
    tokens = [row for row in rows["token"] if row["request"] == request["request"]]
    assert [row["token_id"] for row in tokens] == [*synthetic.IDS]
    assert [row["t_ns"] for row in tokens] == [4_040_000_000 + 5_000_000 * number for number in range(6)]
    events = [row for row in rows["sse_event"] if row["request"] == request["request"]]
    assert [row["kind"] for row in events] == ["token"] * 6 + ["final"]
    assert events[0]["data"].startswith(b'{"index": 0, "content": "w71093 "')
    (props,) = rows["props"]
    assert props["props_json"] == '{"total_slots": 1, "bos_token": "<s>"}'
    assert [row["event"] for row in rows["load_event"]] == ["engine.started", *["exchange.opened"] * 3]


def test_rows_of_a_missing_blob_are_an_error_that_names_it(store_root: Path):
    store = Store.open(store_root, read_only=True)
    entry = next(entry for entry in store.entries() if entry.kind == "load.sealed")
    name = str(next(item["sha256"] for item in entry.blobs() if item["role"] == "exchange"))
    store.blobs.path_of(name).unlink()
    with pytest.raises(EvidenceError, match="missing"):
        derive_rows(entry, store.blobs.read)
