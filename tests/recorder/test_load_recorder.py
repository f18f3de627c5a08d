"""One load: what reaches the spool when, and what a seal makes of it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from protocols.errors import HostError
from recorder.store import Store
from recorder.wire import read_wire


@pytest.fixture
def load(fast_path: Path, synthetic):
    with synthetic.open_store(fast_path / "store") as store:
        yield store.begin_campaign(**synthetic.lock_parts()).open_load(synthetic.positions()[0])


def exchange(load, synthetic, **more):
    return load.exchange(
        **{
            "name": "tiny",
            "route": "/completion",
            "kind": "native",
            "workload": "tiny",
            "repeat": 0,
            "is_warmup": False,
            "request": synthetic.http_request("/completion", b"{}"),
            **more,
        }
    )


def test_each_read_is_in_the_spool_file_when_the_call_returns(load, synthetic):
    sink = exchange(load, synthetic)
    path = load.spool / "wire" / "001-tiny.wire"
    assert read_wire(path.read_bytes()).request.endswith(b"{}")
    sink.on_sent(5)
    assert read_wire(path.read_bytes()).sent_ns == 5
    for number in range(1, 4):
        sink.on_read(5 + number, b"x" * number)
        found = read_wire(path.read_bytes())
        assert [(read.t_ns, len(read.data)) for read in found.reads] == [(5 + n, n) for n in range(1, number + 1)]
        assert found.is_cut
    sink.close("complete", 99)
    found = read_wire(path.read_bytes())
    assert (found.end_reason, found.end_ns, found.is_cut) == ("complete", 99, False)


def test_notes_and_samples_are_in_the_spool_when_the_call_returns(load, synthetic):
    load.note("engine.started", pid=7, reason=None)
    assert b'"engine.started"' in (load.spool / "events.jsonl").read_bytes()
    load.sample(synthetic.samples(1)[0])
    assert (load.spool / "samples.jsonl").read_bytes().count(b"\n") == 5


def test_samples_and_notes_may_come_from_several_threads(load, synthetic):
    def work(number: int) -> None:
        for step in range(50):
            load.note("tick", number=number, step=step)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (load.spool / "events.jsonl").read_bytes().splitlines()
    assert len(lines) == 200
    assert all(line.endswith(b"}") for line in lines)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".x", "a b", "x" * 200])
def test_names_cannot_leave_the_spool(load, synthetic, name: str):
    for use in (
        lambda: load.attach(name, b""),
        lambda: load.log_path(name),
        lambda: exchange(load, synthetic, name=name),
    ):
        with pytest.raises(ValueError, match="file name"):
            use()


def test_a_full_disk_while_reads_come_in_is_raised_and_raised_again_at_the_end(fast_path: Path, synthetic):
    files = synthetic.FaultyFiles(-1, OSError(28, "No space left on device"))
    with synthetic.open_store(fast_path / "s", files=files) as store:
        load = store.begin_campaign(**synthetic.lock_parts()).open_load(synthetic.positions()[0])
        sink = exchange(load, synthetic)
        sink.on_read(1, b"kept")
        files.fail_at = files.steps + 1
        for call in (lambda: sink.on_read(2, b"lost"), lambda: sink.close("complete", 3)):
            with pytest.raises(HostError, match="No space left") as caught:
                call()
            assert "free space" in str(caught.value.hint)
        summary = load.seal(state="PARTIAL", reason="disk full")
    assert summary.state == "PARTIAL"
    (request,) = Store.open(fast_path / "s", read_only=True).measurements("latest").loads[0].requests
    assert request.outcome == "truncated" or request.outcome == "stream_error"


def test_sealing_turns_every_file_into_a_blob_and_removes_the_spool(load, synthetic):
    root = load.spool.parents[2]
    load.log_path("engine.log").write_bytes(b"line\n")
    load.attach("maps.txt", b"maps")
    load.attach("maps.txt", b"newer maps")
    synthetic.play(exchange(load, synthetic), synthetic.completion_reads(), 10)
    summary = load.seal(state="COMPLETE", reason=None)
    assert summary.files == 5
    assert list((root / "spool").iterdir()) == []
    store = Store.open(root, read_only=True)
    sealed = next(entry for entry in store.entries() if entry.kind == "load.sealed")
    found = {str(item["name"]): (item["role"], item["is_partial"]) for item in sealed.blobs()}
    assert found == {
        "attachment/maps.txt": ("attachment", False),
        "events.jsonl": ("events", False),
        "log/engine.log": ("log", False),
        "samples.jsonl": ("telemetry", False),
        "wire/001-tiny.wire": ("exchange", False),
    }
    content = {str(item["name"]): store.blobs.read(str(item["sha256"])) for item in sealed.blobs()}
    assert content["attachment/maps.txt"] == b"newer maps"
    assert content["log/engine.log"] == b"line\n"


def test_an_exchange_that_was_not_closed_is_sealed_as_cut(load, synthetic):
    root = load.spool.parents[2]
    sink = exchange(load, synthetic)
    sink.on_sent(10)
    for offset, data in synthetic.completion_reads()[:4]:
        sink.on_read(10 + offset, data)
    load.seal(state="PARTIAL", reason="stopped")
    store = Store.open(root, read_only=True)
    sealed = next(entry for entry in store.entries() if entry.kind == "load.sealed")
    assert {item["name"] for item in sealed.blobs() if item["is_partial"]} == {"wire/001-tiny.wire"}
    (request,) = store.measurements("latest").loads[0].requests
    assert request.outcome != "ok"
    assert request.token_ids is None or len(request.token_ids) == 3


def test_an_attachment_may_be_a_file_or_bytes_and_text_in_it_is_filtered(load, tmp_path: Path):
    (tmp_path / "environ").write_bytes(b"A=1\0API_KEY=0123456789abcdef\0")
    load.attach("environ", tmp_path / "environ")
    assert (load.spool / "attachment" / "environ").read_bytes() == b"A=1\0API_KEY=[redacted]\0"
    binary = bytes(range(256)) + b"API_KEY=0123456789ABCDEF"
    load.attach("logits.bin", binary)
    assert (load.spool / "attachment" / "logits.bin").read_bytes() == binary
