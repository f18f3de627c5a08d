from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from protocols.canonical import canonical_bytes, sha256_hex
from protocols.errors import EvidenceError
from protocols.load import LoadedProtocol
from protocols.lock import Lock, judge_versions, locked_positions, parse_lock
from protocols.schedule import expand_schedule, seed_commitment
from protocols.stats import Calibration

HASH = "ab" * 32


def members(loaded: LoadedProtocol, **changes: Any) -> dict[str, Any]:
    file = {"name": "engine-server", "bytes": 1234, "sha256": HASH, "build_id": "0a1b", "needed": ["libc.so.6"]}
    arm = {"kind": "bundled", "files": [file], "settings": {"threads": 2}, "layout_salt": 1, "is_fresh": True}
    return {
        "protocol_id": loaded.protocol.id,
        "protocol_sha256": loaded.protocol.sha256(),
        "requests": loaded.request_hashes(),
        "arms": {"baseline": arm, "candidate": {**arm, "layout_salt": 2}},
        "model": {"model": {"sha256": HASH, "bytes": 98362432, "architecture": "llama"}},
        "host": {"cpu": "AMD EPYC", "cores": 2, "memory_bytes": 8 * 2**30},
        "schedule": locked_positions(expand_schedule(loaded.protocol.schedule)),
        "seed_commitment": seed_commitment(loaded.protocol.schedule),
        "margins": [{"gate": "prefill-loss", "margin_pct": "10", "alpha": "0.05"}],
        "versions": judge_versions("0.1.0"),
        "text_blobs": {"argv": HASH},
        **changes,
    }


def test_a_lock_names_everything_and_its_hash_is_that_of_its_bytes(served_pair: LoadedProtocol) -> None:
    lock = Lock.model_validate(members(served_pair))
    data = lock.lock_bytes()
    assert lock.sha256() == sha256_hex(data)
    value = json.loads(data)
    assert canonical_bytes(value) == data
    assert value["format"] == "assay.lock.v1"
    assert value["protocol_sha256"] == served_pair.protocol.sha256()
    assert [place["label"] for place in value["schedule"]][:2] == ["B0", "A1"]
    assert value["model"]["draft"] is None
    assert {"assay", "python", "numpy", "scipy"} <= value["versions"].keys()


def test_a_lock_reads_back_as_itself(served_pair: LoadedProtocol) -> None:
    lock = Lock.model_validate(members(served_pair))
    assert parse_lock(lock.lock_bytes()) == lock


def test_a_lock_over_endpoints_alone_has_no_model_and_others_keep_their_bytes(served_pair: LoadedProtocol) -> None:
    given = members(served_pair)
    with_model = Lock.model_validate(given)
    assert (json.loads(with_model.lock_bytes())["model"]["model"]["sha256"], with_model.model_sha256()) == (HASH, HASH)
    del given["model"]
    without = Lock.model_validate(given)
    assert "model" not in json.loads(without.lock_bytes())
    assert parse_lock(without.lock_bytes()).model_sha256() is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b'"bytes":1234', b'"bytes":1235.0'),
        lambda data: data.replace(b"{", b"{ ", 1),
        lambda data: data + b"\n",
        lambda data: data[:-1],
        lambda data: data.replace(b'"format"', b'"fromat"'),
        lambda data: data.replace(b"assay.lock.v1", b"assay.lock.v2"),
        lambda data: b"[]",
        lambda data: b"\xff" + data,
    ],
)
def test_a_damaged_lock_is_refused(served_pair: LoadedProtocol, damage: Any) -> None:
    data = Lock.model_validate(members(served_pair)).lock_bytes()
    damaged = damage(data)
    assert damaged != data
    with pytest.raises(EvidenceError):
        parse_lock(damaged)


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol_sha256": "AB" * 32},
        {"host": {"cpu": 1.5}},
        {"host": {"bytes": 2**53}},
        {"seed_commitment": "short"},
        {"extra": 1},
    ],
)
def test_a_lock_takes_no_floats_no_large_integers_and_no_unknown_keys(
    served_pair: LoadedProtocol, changes: dict[str, Any]
) -> None:
    with pytest.raises((ValidationError, EvidenceError)):
        Lock.model_validate(members(served_pair, **changes)).lock_bytes()


def test_every_change_of_what_is_locked_changes_the_hash(served_pair: LoadedProtocol) -> None:
    base = members(served_pair)
    changed = [
        {**base, "requests": {**base["requests"], "requests/cold-512.json": "cd" * 32}},
        {**base, "arms": {**base["arms"], "candidate": {**base["arms"]["candidate"], "faults": ["slow-decode=30"]}}},
        {**base, "model": {"model": {**base["model"]["model"], "tokenizer_sha256": HASH}}},
        {**base, "host": {**base["host"], "cores": 4}},
        {**base, "schedule": base["schedule"][:-1]},
        {**base, "seed_commitment": HASH},
        {**base, "text_blobs": {"argv": "cd" * 32}},
    ]
    hashes = {Lock.model_validate(one).sha256() for one in [base, *changed]}
    assert len(hashes) == len(changed) + 1


def test_locked_noise_is_what_the_gates_take(served_pair: LoadedProtocol) -> None:
    row = {"workload": "cold-512", "metric": "prefill_rate", "sigma": "0.0125", "df": 18}
    row = {**row, "receipt_sha256": HASH, "expires_utc": "2026-12-29T00:00:00Z"}
    lock = Lock.model_validate(members(served_pair, calibrations=[row]))
    assert lock.noise() == {("cold-512", "prefill_rate"): Calibration(sigma=0.0125, df=18)}
    assert parse_lock(lock.lock_bytes()) == lock
