"""Canaries: secrets that the runner has, and that must reach no file of the store, no report and no output."""

from __future__ import annotations

from typing import Any

from harness.api_key import engine_environment, request_headers

KEY = "canary-key-5Qz81"
AMBIENT = "canary-ambient-77fe"
CARELESS = ["--careless-log", "--locked"]


def test_no_canary_reaches_store_reports_or_output(world: Any) -> None:
    """The engine is told the key, demands it with every request, and prints its whole environment into its log."""
    path = world.protocol(schedule=world.PAIR, baseline=CARELESS, candidate=CARELESS)
    variables = {"ASSAY_ENGINE_API_KEY": KEY, "HF_TOKEN": AMBIENT, "AWS_SECRET_ACCESS_KEY": AMBIENT}
    ended = world.run("run", path, "--store", world.store, "--json", **variables)
    assert (ended.code, ended.json()["verdict"]["status"]) == (0, "PASS"), ended.err
    assert world.run("audit", "--store", world.store).code == 0

    files = [file for file in world.store.rglob("*") if file.is_file()]
    assert len(files) > 30
    for canary in (KEY, AMBIENT):
        holders = [str(file) for file in files if canary.encode() in file.read_bytes()]
        assert holders == [], canary
        assert canary not in ended.out + ended.err
    logs = [file.read_bytes() for file in files if b"debug: environment" in file.read_bytes()]
    assert logs, "the engine's log is evidence"
    assert all(b"[redacted]" in log for log in logs)


def test_a_request_without_the_key_is_refused_by_the_engine_so_the_canary_test_can_fail(world: Any) -> None:
    path = world.protocol(schedule=world.PAIR, baseline=CARELESS)
    ended = world.run("run", path, "--store", world.store, "--json")
    assert ended.code == 5
    assert "401" in ended.json()["loads"][0]["reason"]


def test_the_key_travels_only_in_the_engines_environment_and_the_authorization_header(monkeypatch: Any) -> None:
    monkeypatch.delenv("ASSAY_ENGINE_API_KEY", raising=False)
    assert (engine_environment("bundled"), request_headers()) == ({}, {})
    monkeypatch.setenv("ASSAY_ENGINE_API_KEY", KEY)
    assert engine_environment("bundled") == {"API_KEY": KEY}
    assert engine_environment("llama-server") == {"LLAMA_API_KEY": KEY}
    assert engine_environment("openai") == {}
    assert request_headers() == {"Authorization": f"Bearer {KEY}"}
