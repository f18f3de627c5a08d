"""Drives the real recorder with byte streams of the server's shape: a small campaign without an engine.

Loaded by path (see conftest.py), also inside child processes that a test kills.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from protocols.canonical import sha256_hex
from protocols.gates import evaluate_gates
from protocols.lock import ArmIdentity, FileIdentity, Lock, LockedModel, ModelIdentity, locked_positions
from protocols.schedule import expand_schedule
from protocols.schema import Protocol
from protocols.verdicts import combine
from protocols.yaml_tree import parse_yaml, plain_value
from recorder.bundle import write_bundle
from recorder.campaign_state import read_campaigns
from recorder.files import Files
from recorder.keys import Signer
from recorder.measure import locked_calibrations
from recorder.reviews import record_review
from recorder.store import Store, salted_text
from recorder.telemetry.sample import FieldSpec, RawRead, Reading, Sample

SIGNER = Signer(name="tester", seed=bytes(range(32)))
PROMPT_TOKENS, GENERATED_TOKENS = 16, 6
IDS = (71093, 12305, 198, 464, 14856, 7)

PROTOCOL = b"""\
assay: 1
id: tiny-pair
title: A tiny pair
claim: screen
purpose: Exercises the recorder.
model: {path: tiny.gguf}
settings: {context_tokens: 256}
arms:
  baseline: {engine: {kind: bundled, layout_salt: 1}}
  candidate: {engine: {kind: bundled, layout_salt: 2}}
schedule: {kind: explicit, order: [A1, C1, C2, A2], burn_in: false}
workloads:
  - id: tiny
    route: /completion
    warmup: {request: requests/warm.json}
    request: requests/tiny.json
    prompt_tokens: 16
    generated_tokens: 6
gates:
  - {id: complete, kind: completeness}
  - {id: tokens, kind: exact_tokens, workload: tiny}
  - {id: work, kind: equal_work, workload: tiny, fields: [prompt_tokens_evaluated, generated_tokens]}
  - {id: counters, kind: equal_counters, workload: tiny}
  - {id: loss, kind: screen_loss, workload: tiny, metric: generation_rate, max_loss_pct: "10"}
  - {id: mirror, kind: mirror_gap, workload: tiny, metric: generation_rate, limit_pp: "3", required: false}
margin_reason: It is a test.
"""
REQUESTS = {
    "requests/tiny.json": b'{"prompt":[1,2,3],"n_predict":6,"stream":true,"return_tokens":true}',
    "requests/warm.json": b'{"prompt":[9],"n_predict":1,"stream":true,"return_tokens":true}',
}
TEXTS = {"argv.baseline": b"engine-server\0--model\0tiny.gguf", "host.name": b"bench-host"}


def protocol_of(source: bytes = PROTOCOL) -> Protocol:
    return Protocol.model_validate(plain_value(parse_yaml(source, "protocol.yaml").root))


def file_identity(name: str) -> FileIdentity:
    return FileIdentity(
        name=name, bytes=1000, sha256=sha256_hex(name.encode()), build_id="ab" * 20, soname=name, needed=("libc.so.6",)
    )


def lock_parts() -> dict[str, Any]:
    """The arguments of `Store.begin_campaign`."""
    protocol = protocol_of()
    texts = {name: salted_text(text) for name, text in TEXTS.items()}
    lock = Lock(
        protocol_id=protocol.id,
        protocol_sha256=protocol.sha256(),
        requests={name: sha256_hex(body) for name, body in REQUESTS.items()},
        arms={
            arm: ArmIdentity(
                kind="bundled",
                files=(file_identity("engine-server"), file_identity("libassay-engine.so")),
                settings={"context_tokens": 256, "kv_type": "f16", "mmap": True},
                layout_salt=salt,
                capabilities=("native", "work"),
            )
            for salt, arm in ((1, "baseline"), (2, "candidate"))
        },
        model=LockedModel(model=ModelIdentity(sha256="c" * 64, bytes=5000, architecture="llama", parameters=135)),
        host={"cores": 2, "cpu": "test cpu"},
        schedule=locked_positions(expand_schedule(protocol.schedule)),
        seed_commitment=None,
        versions={"assay": "0.1.0"},
        text_blobs={name: sha256_hex(text) for name, text in texts.items()},
    )
    return {"lock": lock.lock_bytes(), "protocol": PROTOCOL, "requests": REQUESTS, "texts": texts}


def http_request(route: str, body: bytes, headers: Iterable[str] = ()) -> bytes:
    lines = [f"POST {route} HTTP/1.1", "Host: 127.0.0.1:8080", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def completion_reads(
    *, ids: tuple[int, ...] = IDS, step_ns: int = 5_000_000, prompt_tokens: int = PROMPT_TOKENS
) -> list[tuple[int, bytes]]:
    """(ns after sent, bytes) of each read of a streamed answer."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    prefill_ns = 40_000_000
    reads = [(1_000_000, head)]
    for number, token in enumerate(ids):
        event = {
            "index": 0,
            "content": f"w{token} ",
            "tokens": [token],
            "stop": False,
            "id_slot": 0,
            "tokens_predicted": number + 1,
            "tokens_evaluated": prompt_tokens,
        }
        reads.append((prefill_ns + number * step_ns, chunk(f"data: {json.dumps(event)}\n\n".encode())))
    generation_ms = (len(ids) - 1) * step_ns / 1e6
    final = {
        "index": 0,
        "content": "",
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": "tiny",
        "tokens_predicted": len(ids),
        "tokens_evaluated": prompt_tokens,
        "generation_settings": {"temperature": 0.0, "seed": 1, "n_predict": len(ids)},
        "prompt": "",
        "has_new_line": False,
        "truncated": False,
        "stop_type": "limit",
        "stopping_word": "",
        "tokens_cached": prompt_tokens + len(ids) - 1,
        "timings": {
            "cache_n": 0,
            "prompt_n": prompt_tokens,
            "prompt_ms": prefill_ns / 1e6,
            "predicted_n": len(ids),
            "predicted_ms": generation_ms,
            "draft_n": 0,
            "draft_n_accepted": 0,
            "graph_reuses": 3,
        },
        "work": {"n_graphs": 7, "n_flops": 123456789, "n_tokens_evaluated": prompt_tokens + len(ids) - 1},
        "ignored_fields": [],
    }
    last_ns = prefill_ns + len(ids) * step_ns
    reads.append((last_ns, chunk(f"data: {json.dumps(final)}\n\n".encode())))
    reads.append((last_ns + 10_000, b"0\r\n\r\n"))
    return reads


def json_answer(value: object, headers: Iterable[str] = ()) -> bytes:
    body = json.dumps(value).encode()
    head = ["HTTP/1.1 200 OK", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode() + body


SPECS = (
    FieldSpec(name="rss_bytes", unit="bytes", kind="gauge", domain="process", source="/proc/PID/status"),
    FieldSpec(name="cpu_clock_hz", unit="hz", kind="gauge", domain="host", source="cpufreq", instance="policy0"),
    FieldSpec(name="gpu_power_uw", unit="uw", kind="gauge", domain="gfx", source="none"),
    FieldSpec(name="event_power_cap_ns", unit="ns", kind="counter", domain="gfx", source="NVML"),
)


def samples(count: int = 3) -> list[Sample]:
    return [
        Sample(
            tick=tick,
            deadline_ns=10**9 + tick * 250_000_000,
            t_begin_ns=10**9 + tick * 250_000_000 + 10,
            t_end_ns=10**9 + tick * 250_000_000 + 900,
            readings=(
                Reading(field=SPECS[0], raw=100_000_000 + tick),
                Reading(field=SPECS[1], raw=3_000_000_000),
                Reading(field=SPECS[2], raw=None, status="unsupported"),
                Reading(field=SPECS[3], raw=tick * 1_000_000),
            ),
            raws=(RawRead("gpu_metrics", bytes([tick, 0, 1, 3])),),
            cpu_ns=500,
        )
        for tick in range(count)
    ]


class StepClock:
    """A clock that goes on by 1 ms at each look, so that runs are the same."""

    def __init__(self, start_ns: int = 1_800_000_000_000_000_000) -> None:
        self.now_ns = start_ns
        self.mono_ns = 10**9

    def utc_ns(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns

    def monotonic_ns(self) -> int:
        self.mono_ns += 1_000_000
        return self.mono_ns


def play(sink: Any, reads: list[tuple[int, bytes]], sent_ns: int, reason: str = "complete") -> None:
    sink.on_sent(sent_ns)
    for offset_ns, data in reads:
        sink.on_read(sent_ns + offset_ns, data)
    sink.close(reason, sent_ns + reads[-1][0] + 1)


def run_load(campaign: Any, position: Any, *, step_ns: int = 5_000_000, headers: Iterable[str] = ()) -> None:
    """One whole load: /props, a warm-up, the measured request, samples, a log, an attachment."""
    load = campaign.open_load(position)
    load.log_path("engine.log").write_bytes(b"engine: loaded tiny\nengine: ready\n")
    load.note("engine.started", pid=1234)
    props = load.exchange(
        name="props",
        route="/props",
        kind="plain",
        workload=None,
        repeat=0,
        is_warmup=False,
        request=b"GET /props HTTP/1.1\r\nHost: x\r\n\r\n",
    )
    play(props, [(1000, json_answer({"total_slots": 1, "bos_token": "<s>"}))], 2 * 10**9)
    for sample in samples(1):
        load.sample(sample)
    warm = load.exchange(
        name="tiny-warmup",
        route="/completion",
        kind="native",
        workload="tiny",
        repeat=0,
        is_warmup=True,
        request=http_request("/completion", REQUESTS["requests/warm.json"], headers),
    )
    play(warm, completion_reads(ids=IDS[:1], prompt_tokens=1), 3 * 10**9)
    measured = load.exchange(
        name="tiny",
        route="/completion",
        kind="native",
        workload="tiny",
        repeat=0,
        is_warmup=False,
        request=http_request("/completion", REQUESTS["requests/tiny.json"], headers),
    )
    play(measured, completion_reads(step_ns=step_ns), 4 * 10**9)
    for sample in samples(3)[1:]:
        load.sample(sample)
    load.attach("maps.json", b'{"files":["engine-server"]}')
    load.seal(state="COMPLETE", reason=None)


def positions() -> tuple[Any, ...]:
    return expand_schedule(protocol_of().schedule)


def judge(store: Any, campaign: Any) -> None:
    """Evaluate the gates over what was recorded, and record verdict and report."""
    lock = store.lock_of(campaign.campaign_id)
    protocol = protocol_of(store.protocol_of(campaign.campaign_id))
    measured = store.measurements(campaign.campaign_id)
    results = evaluate_gates(protocol, measured, calibrations=locked_calibrations(lock))
    verdict = combine(results)
    campaign.record_verdict(results, verdict)
    report = f"# {campaign.campaign_id}\n\n{verdict.status}\n"
    campaign.record_report({"report.md": report.encode(), "report.json": json.dumps({"v": verdict.status}).encode()})


def review(store: Any, *, decision: str, status: str | None = None, by: Signer = SIGNER) -> None:
    """Review the newest verdict of the newest campaign."""
    state = list(read_campaigns(store.entries()).values())[-1]
    record_review(
        store.writer, state, decision=decision, status=status, reviewer="A. Reader", statement="seen it", by=by
    )


def foreign_bundle(folder: Path) -> Path:
    """The bundle of another store with one campaign."""
    root, target = folder / "foreign-store", folder / "foreign.assay.tar.zst"
    run_campaign(root, clock=StepClock(1_700_000_000_000_000_000))
    write_bundle(root, target)
    return target


def open_store(root: Path, *, files: Files | None = None, create: bool = True, clock: Any = None, **more: Any) -> Store:
    return Store.open(root, signer=SIGNER, create=create, files=files, clock=clock or StepClock(), **more)


def run_campaign(
    root: Path, *, files: Files | None = None, clock: Any = None, between: Callable[[int], None] = lambda _: None
) -> str:
    """A whole campaign in a new or old store. Returns its name."""
    with open_store(root, files=files, clock=clock) as store:
        campaign = store.begin_campaign(**lock_parts())
        campaign.record_preflight([{"check": "governor", "found": "performance", "effect": "record"}])
        campaign.record_receipt("build", {"seconds": 3, "command": ["cmake", "--build", "."]}, {"build.log": b"ok\n"})
        for place in positions():
            between(place.index)
            run_load(campaign, place)
        judge(store, campaign)
        return str(campaign.campaign_id)


def resume_campaign(root: Path, *, files: Files | None = None, clock: Any = None) -> str:
    """Do what a runner does after a crash: go on, or begin anew if nothing was locked."""
    with open_store(root, files=files, clock=clock) as store:
        if not store.campaigns():
            campaign = store.begin_campaign(**lock_parts())
        elif store.campaigns()[-1].verdict is not None:
            campaign = store.campaign_recorder("latest")
            campaign.record_report({"report.md": b"again\n"})
            return str(campaign.campaign_id)
        else:
            campaign = store.resume_campaign("latest")
        campaign.seal_abandoned()
        for place in positions():
            if place.index not in campaign.completed_positions():
                run_load(campaign, place)
        judge(store, campaign)
        return str(campaign.campaign_id)


class FaultyFiles(Files):
    """A disk whose n-th change fails: with nothing done, or (for writes) with half of it done."""

    def __init__(self, fail_at: int, error: OSError | None = None, *, half: bool = False) -> None:
        self.fail_at, self.error, self.half = fail_at, error, half
        self.steps = 0

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.fail_at:
            self.fail()

    def fail(self) -> None:
        """What happens at the chosen step."""
        raise self.error or OSError(5, "Input/output error (injected)")

    def write(self, descriptor: int, data: bytes | memoryview) -> None:
        self.steps += 1
        if self.steps == self.fail_at:
            if self.half:
                super().write(descriptor, memoryview(data)[: len(data) // 2])
            self.fail()
        super().write(descriptor, data)

    def open_append(self, path: Path) -> int:
        self._step()
        return super().open_append(path)

    def open_new(self, path: Path, *, mode: int = 0o644) -> int:
        self._step()
        return super().open_new(path, mode=mode)

    def fsync(self, descriptor: int) -> None:
        self._step()
        super().fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def fsync_folder(self, folder: Path) -> None:
        self._step()
        super().fsync_folder(folder)

    def make_folder(self, folder: Path) -> None:
        self._step()
        super().make_folder(folder)

    def truncate(self, path: Path, size: int) -> None:
        self._step()
        super().truncate(path, size)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def remove_folder(self, path: Path) -> None:
        self._step()
        super().remove_folder(path)

    def close(self, descriptor: int) -> None:
        super().close(descriptor)  # the descriptor is gone whatever close says
        self._step()

    def commit(self, commit: Callable[[], None]) -> None:
        self._step()
        super().commit(commit)


class KillingFiles(FaultyFiles):
    """A disk at whose n-th change this process is killed; a write is cut in the middle."""

    def __init__(self, fail_at: int) -> None:
        super().__init__(fail_at, half=True)

    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class FullDisk(FaultyFiles):
    """A disk that is full from its n-th change on: nothing new is written, while removing still works."""

    def _step(self) -> None:
        self.steps += 1
        if self.fail_at and self.steps >= self.fail_at and self.takes_room:
            raise OSError(28, "No space left on device")
        self.takes_room = True

    takes_room = True

    def write(self, descriptor: int, data: bytes | memoryview) -> None:
        if self.fail_at and self.steps + 1 >= self.fail_at:
            Files.write(self, descriptor, memoryview(data)[: len(data) // 2])
        self._step()
        Files.write(self, descriptor, data)

    def unlink(self, path: Path) -> None:
        self.takes_room = False
        super().unlink(path)

    def remove_folder(self, path: Path) -> None:
        self.takes_room = False
        super().remove_folder(path)

    def close(self, descriptor: int) -> None:
        self.takes_room = False
        super().close(descriptor)


class HookedFiles(FaultyFiles):
    """A disk at whose n-th change something else happens first; the change itself works."""

    def __init__(self, fail_at: int, hook: Callable[[], None]) -> None:
        super().__init__(fail_at)
        self.hook = hook

    def fail(self) -> None:
        self.hook()
