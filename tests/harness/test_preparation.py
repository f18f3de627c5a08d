"""The lock that a protocol gives, and what differs when something changed since."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.preparation import Prepared, lock_differences, prepare
from protocols.errors import EngineError, ProtocolError
from protocols.load import load_protocol
from protocols.lock import Lock


@pytest.fixture
def prepared(world: Any, as_user_of: Any) -> Callable[..., Prepared]:
    as_user_of(world)

    def make(**options: Any) -> Prepared:
        loaded = load_protocol(world.protocol(**options))
        return prepare(loaded, base=world.root, cache=world.root / "cache", log=lambda _: None)

    return make


def test_the_lock_names_engine_model_requests_schedule_and_versions(
    world: Any, prepared: Callable[..., Prepared]
) -> None:
    lock = prepared().lock
    engine = hashlib.sha256(world.engine.read_bytes()).hexdigest()
    assert [file.sha256 for file in lock.arms["baseline"].files] == [engine]
    assert lock.model.model.sha256 == hashlib.sha256((world.root / "tiny.gguf").read_bytes()).hexdigest()
    assert lock.requests["cold.json"] == hashlib.sha256((world.root / "cold.json").read_bytes()).hexdigest()
    assert [place.label for place in lock.schedule] == ["A1", "C1", "C2", "A2"]
    assert {"assay", "python", "numpy", "scipy"} <= set(lock.versions)


def test_free_text_is_in_the_lock_only_as_the_hash_of_a_salted_blob(
    world: Any, prepared: Callable[..., Prepared]
) -> None:
    made = prepared()
    text = made.lock.lock_bytes().decode()
    assert str(world.root) not in text
    assert set(made.lock.text_blobs) == set(made.texts)
    for name, blob in made.texts.items():
        assert hashlib.sha256(blob).hexdigest() == made.lock.text_blobs[name]
    argv = json.loads(made.texts["argv.baseline"][16:])
    assert argv[0] == str(world.engine)


def test_the_same_protocol_prepared_twice_has_no_differences(prepared: Callable[..., Prepared]) -> None:
    one, other = prepared(), prepared()
    assert one.lock.lock_bytes() != other.lock.lock_bytes(), "texts are salted"
    assert lock_differences(one.lock, other.lock) == []


def test_every_part_that_changes_is_named_with_both_values(world: Any, prepared: Callable[..., Prepared]) -> None:
    before = prepared()
    world.engine.write_bytes(world.engine.read_bytes() + b"#\n")
    (world.root / "cold.json").write_bytes((world.root / "cold.json").read_bytes() + b"\n")
    after = prepared(schedule=world.PAIR)
    differences = lock_differences(before.lock, after.lock)
    assert any(line.startswith("arms.candidate.files.fake_engine.py.sha256: locked ") for line in differences)
    assert any(line.startswith("requests.cold.json: locked ") for line in differences)
    assert any(line.startswith("protocol_sha256: locked ") for line in differences)
    assert any(line.startswith("schedule: locked ") for line in differences)


def test_of_two_files_of_one_name_each_is_compared(prepared: Callable[..., Prepared]) -> None:
    lock = prepared().lock
    one = lock.arms["baseline"].files[0].model_copy(update={"name": "libggml-cpu.so", "sha256": "1" * 64})

    def with_files(*digits: str) -> Lock:
        files = tuple(one.model_copy(update={"sha256": digit * 64}) for digit in digits)
        return lock.model_copy(
            update={"arms": {**lock.arms, "baseline": lock.arms["baseline"].model_copy(update={"files": files})}}
        )

    assert lock_differences(with_files("1", "2"), with_files("2", "1")) == []
    (found,) = lock_differences(with_files("1", "2"), with_files("1", "3"))
    assert found.startswith("arms.baseline.files.libggml-cpu.so #2.sha256: locked ")


def test_only_the_allowlist_of_the_environment_reaches_an_engine(
    prepared: Callable[..., Prepared], monkeypatch: Any
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/evil.so")
    monkeypatch.setenv("HF_TOKEN", "x" * 20)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    environment = prepared().arms["baseline"].resolved.environment
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["LC_ALL"] == "C.UTF-8"
    assert {"LD_PRELOAD", "HF_TOKEN"}.isdisjoint(environment)


def endpoint(world: Any, url: str, model: str) -> Any:
    path = world.protocol()
    text = path.read_text()
    start, end = text.index("  candidate:"), text.index("schedule:")
    engine = f"  candidate: {{engine: {{kind: openai, url: '{url}', model: {model}}}}}\n"
    whole = text[:start] + engine + text[end:]
    whole = whole.replace("/completion", "/v1/completions")
    path.write_text(whole[: whole.index("gates:")] + "gates:\n  - {id: complete, kind: completeness}\n")
    for name in ("cold.json", "warm.json"):
        body = json.loads((world.root / name).read_text()) | {"model": "fake", "max_tokens": 24}
        (world.root / name).write_text(json.dumps(body))
    loaded = load_protocol(path)
    return prepare(loaded, base=world.root, cache=world.root / "cache", log=lambda _: None)


def test_an_endpoint_gets_the_frozen_request_or_none(world: Any, as_user_of: Any) -> None:
    as_user_of(world)
    made = endpoint(world, "http://127.0.0.1:9", "fake")
    assert made.lock.arms["candidate"].files == ()
    assert made.lock.arms["candidate"].is_fresh is False
    with pytest.raises(ProtocolError, match="names the model 'fake', and the candidate is asked for 'other'"):
        endpoint(world, "http://127.0.0.1:9", "other")
    with pytest.raises(ProtocolError, match="the address has the path /v2"):
        endpoint(world, "http://127.0.0.1:9/v2", "fake")
    with pytest.raises(EngineError, match="plain http"):
        endpoint(world, "https://127.0.0.1:9", "fake")
