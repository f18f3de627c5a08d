#!/usr/bin/env python3
"""A scripted engine: a real process that speaks the server's routes and breaks on demand.

It takes the flags of the bundled server and of llama-server, answers with tokens that depend only on the prompt, and keeps a
log of what was asked of it, so that tests can assert the order of a campaign from outside. Standard library only.

Faults (``--fault NAME[=VALUE]``, with ``--fault-start N`` only in the N-th start counted in ``--counter FILE``):
    not-start        exits with 7 before it listens
    never-ready      listens, but ``/health`` stays at 503
    die-after=N      kills itself after N streamed tokens of a measured request
    die              kills itself before it answers a measured request
    hang-after=N     stops sending after N streamed tokens and keeps the connection open
    nonsense         answers a completion with bytes that are not HTTP
    not-json         streams events whose data is not JSON
    wrong-counts     reports one prompt token and one generated token too many
    wrong-tokens     one token id differs
    short-answer     ends the stream two tokens early
    http-error       answers a completion with 500
    hostile-error    the same, with words that try to look like ours and to command a terminal
    slow=P           P percent lower generation rate
    ignore-term      does not react to SIGTERM
    exit-code=N      leaves with N after SIGTERM
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

VOCABULARY = 49152


def tokens_for(prompt: list[int], n: int) -> list[int]:
    """Return the n token ids that a prompt is answered with."""
    seed = sum((i + 1) * t for i, t in enumerate(prompt)) % 40000
    return [(seed + 13 * k * k + 7 * k) % VOCABULARY for k in range(n)]


def prompt_ids(prompt: Any) -> list[int]:
    """Return ids for a prompt that is text (one id a byte), a list of ids, or a mixture."""
    if isinstance(prompt, str):
        return list(prompt.encode())
    ids: list[int] = []
    for part in prompt:
        ids.extend(list(part.encode()) if isinstance(part, str) else [int(part)])
    return ids


class FakeEngine:
    """Holds the settings and answers requests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.fault, _, value = (options.fault or "").partition("=")
        self.value = float(value) if value else 0.0
        self.start_number = count_start(options.counter)
        if options.fault_start and options.fault_start != self.start_number:
            self.fault = ""
        self.log("start", number=self.start_number)
        self.requests = 0
        self.seen: set[tuple[int, ...]] = set()
        self.cached = 0

    def log(self, event: str, **fields: Any) -> None:
        """Append one line to the order log, with the monotonic time in ns."""
        if self.options.log:
            line = json.dumps(
                {"event": event, "t_ns": time.monotonic_ns(), "pid": os.getpid(), "arm": self.options.arm, **fields}
            )
            with Path(self.options.log).open("a") as f:
                f.write(line + "\n")

    def serve(self) -> None:
        """Listen, say so in one line, and answer until a signal ends the process."""
        listener = socket.create_server((self.options.host, self.options.port), backlog=64)
        port = listener.getsockname()[1]
        write(
            sys.stdout, json.dumps({"event": "listening", "host": self.options.host, "port": port, "pid": os.getpid()})
        )
        write(sys.stderr, f"main: server is listening on http://{self.options.host}:{port}")
        if self.options.careless_log:
            write(sys.stderr, f"debug: environment {dict(os.environ)} {sys.argv}")
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        """Answer one request on one connection, then close it."""
        try:
            self.route(connection)
        except (BrokenPipeError, ConnectionResetError):
            self.log("client-gone")
        finally:
            connection.close()

    def route(self, connection: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return None
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        headers = {k.strip().lower(): v.strip() for k, _, v in (f.partition(":") for f in fields)}
        while len(body) < int(headers.get("content-length", "0")):
            body += connection.recv(65536)
        method, target, _ = line.split(" ", 2)
        path = target.partition("?")[0]
        self.log("request", path=path, method=method)
        key = os.environ.get("LLAMA_API_KEY") or os.environ.get("API_KEY") or self.options.api_key
        if self.options.locked and not key:
            key = "a key that nobody knows"
        if key and path != "/health" and headers.get("authorization") != f"Bearer {key}":
            return self.send_error(connection, 401, "Invalid API Key", "authentication_error")
        if path == "/completion" and method == "POST":
            return self.completion(connection, json.loads(body))
        if path == "/tokenize":
            return self.send_json(connection, 200, {"tokens": prompt_ids(json.loads(body)["content"])})
        return self.look_up(connection, path)

    def look_up(self, connection: socket.socket, path: str) -> None:
        """Answer what is only asked for."""
        if path == "/health" and self.fault == "never-ready":
            return self.send_error(connection, 503, "Loading model", "unavailable_error")
        settings = {"n_ctx": self.options.ctx_size}
        answers: dict[str, Any] = {
            "/health": {"status": "ok"},
            "/props": {
                "model_path": self.options.model,
                "total_slots": self.options.parallel,
                "build_info": "fake-1",
                "default_generation_settings": settings,
            },
            "/slots": [{"id": 0, "is_processing": False}],
            "/v1/models": {"object": "list", "data": [{"id": "fake"}]},
        }
        if path in answers:
            return self.send_json(connection, 200, answers[path])
        return self.send_error(connection, 404, "File Not Found", "not_found_error")

    def send_error(self, connection: socket.socket, status: int, message: str, kind: str) -> None:
        self.send_json(connection, status, {"error": {"code": status, "message": message, "type": kind}})

    def send_json(self, connection: socket.socket, status: int, value: Any) -> None:
        self.send(connection, status, json.dumps(value).encode(), "application/json; charset=utf-8")

    def send(self, connection: socket.socket, status: int, body: bytes, kind: str) -> None:
        head = (
            f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        connection.sendall(head.encode() + body)

    def completion(self, connection: socket.socket, body: dict[str, Any]) -> None:
        """Stream (or send) a completion as llama-server does, with the faults of the command line."""
        self.requests += 1
        is_faulty = self.requests > self.options.good_requests
        fault = self.fault if is_faulty else ""
        prompt = prompt_ids(body["prompt"])
        is_cached = bool(body.get("cache_prompt")) and tuple(prompt) in self.seen
        self.seen.add(tuple(prompt))
        self.cached = len(prompt) - 1 if is_cached else 0
        n = int(body.get("n_predict", 16))
        tokens = tokens_for(prompt, n)
        if fault in {"nonsense", "http-error", "hostile-error", "die"}:
            self.answer_otherwise(connection, fault)
            return
        if fault == "wrong-tokens":
            tokens[n // 2] = (tokens[n // 2] + 1) % VOCABULARY
        if fault == "short-answer":
            tokens = tokens[:-2]
        prefill_s = len(prompt) / self.options.prefill_rate
        step_s = 1 / self.options.rate
        if self.fault == "slow":
            step_s /= 1 - self.value / 100
        if not body.get("stream"):
            time.sleep(prefill_s + step_s * len(tokens))
            self.send_json(connection, 200, self.final(prompt, tokens, prefill_s, step_s * (len(tokens) - 1), fault))
            return
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        started = time.monotonic()
        first = started + prefill_s
        for k, token in enumerate(tokens):
            sleep_until(first + k * step_s)
            if fault == "die-after" and k >= self.value:
                self.log("die")
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "hang-after" and k >= self.value:
                self.log("hang")
                time.sleep(3600)
            data = json.dumps(
                {
                    "index": 0,
                    "content": f" {token}",
                    "tokens": [token],
                    "stop": False,
                    "id_slot": 0,
                    "tokens_predicted": k + 1,
                    "tokens_evaluated": len(prompt),
                }
            )
            chunk(connection, b"data: " + (b"{not json" if fault == "not-json" else data.encode()) + b"\n\n")
        # Reported times are the stated ones, not the elapsed ones: a busy machine must not change a test's verdict.
        spent = step_s * max(0, len(tokens) - 1)
        chunk(
            connection,
            b"data: "
            + json.dumps(self.final(prompt, [], prefill_s, spent, fault, n_generated=len(tokens))).encode()
            + b"\n\n",
        )
        connection.sendall(b"0\r\n\r\n")
        self.log("answered", n_prompt=len(prompt), n_generated=len(tokens))

    def answer_otherwise(self, connection: socket.socket, fault: str) -> None:
        """Send no completion at all."""
        if fault == "nonsense":
            connection.sendall(b"\x00\x01 engine says hello \xff\xfe" * 4)
        elif fault == "http-error":
            self.send_error(connection, 500, "the cache is on fire", "server_error")
        elif fault == "hostile-error":
            words = "on fire\nverdict: PASS\x1b[2J\u2028verdict: PASS\u202e\x07"
            sys.stderr.write(f"{words}\n")
            self.send_error(connection, 500, words, "server_error")
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    def final(
        self,
        prompt: list[int],
        tokens: list[int],
        prefill_s: float,
        generation_s: float,
        fault: str,
        n_generated: int | None = None,
    ) -> dict[str, Any]:
        """Return the closing event."""
        n = len(tokens) if n_generated is None else n_generated
        extra = 1 if fault == "wrong-counts" else 0
        n_prompt = len(prompt) + extra
        return {
            "index": 0,
            "content": "",
            "tokens": tokens,
            "id_slot": 0,
            "stop": True,
            "model": "fake",
            "tokens_predicted": n + extra,
            "tokens_evaluated": n_prompt,
            "generation_settings": {"n_predict": n, "temperature": 0.0, "seed": 1},
            "prompt": "",
            "has_new_line": False,
            "truncated": False,
            "stop_type": "limit",
            "stopping_word": "",
            "tokens_cached": n_prompt + n,
            "timings": {
                "cache_n": self.cached,
                "prompt_n": n_prompt - self.cached,
                "prompt_ms": prefill_s * 1e3,
                "prompt_per_token_ms": prefill_s * 1e3 / max(1, n_prompt),
                "prompt_per_second": n_prompt / max(prefill_s, 1e-9),
                "predicted_n": n + extra,
                "predicted_ms": generation_s * 1e3,
                "predicted_per_token_ms": generation_s * 1e3 / max(1, n),
                "predicted_per_second": n / max(generation_s, 1e-9),
                "draft_n": 0,
                "draft_n_accepted": 0,
                "graph_reuses": 0,
            },
            "work": {
                "n_graphs": n,
                "n_graph_nodes": 100 * n,
                "n_flops": 1000 * (n + len(prompt)),
                "n_weight_bytes_read": 4096 * n,
                "n_cells_visited": n * len(prompt),
                "n_mapping_steps": n,
                "n_allocations": 1,
                "n_tokens_evaluated": n + len(prompt) - 1,
            },
            "ignored_fields": [],
        }


def write(stream: TextIO, line: str) -> None:
    """Write one line at once."""
    stream.write(line + "\n")
    stream.flush()


def sleep_until(deadline: float) -> None:
    """Sleep to a monotonic deadline in seconds, so that delays do not add up."""
    rest = deadline - time.monotonic()
    if rest > 0:
        time.sleep(rest)


def chunk(connection: socket.socket, data: bytes) -> None:
    """Send one HTTP chunk."""
    connection.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def count_start(counter: str | None) -> int:
    """Count this start in a file (first start = 1); 0 without a file."""
    if not counter:
        return 0
    with Path(counter).open("a+") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        f.seek(0)
        number = int(f.read() or "0") + 1
        f.truncate(0)
        f.write(str(number))
    return number


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the flags of the bundled server and of llama-server, and those of the script."""
    p = argparse.ArgumentParser(allow_abbrev=False)
    p.add_argument("--model", "-m", default="")
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=0)
    p.add_argument("--ctx-size", type=int, default=2048)
    p.add_argument("--parallel", type=int, default=1)
    p.add_argument("--api-key", default="")
    p.add_argument("--fault", default="")
    p.add_argument("--fault-start", type=int, default=0)
    p.add_argument(
        "--good-requests", type=int, default=1, help="completions (the warm-up) before a request fault bites"
    )
    p.add_argument("--counter", default="")
    p.add_argument("--log", default="")
    p.add_argument("--arm", default="")
    p.add_argument("--rate", type=float, default=2000.0, help="generated tokens per second")
    p.add_argument("--prefill-rate", type=float, default=20000.0, help="prompt tokens per second")
    p.add_argument("--locked", action="store_true", help="refuse requests when the environment holds no key")
    p.add_argument(
        "--careless-log",
        action="store_true",
        help="print the environment and argv to the log, as a careless engine does",
    )
    options, _ = p.parse_known_args(argv)
    return options


def main(argv: list[str]) -> int:
    """Run the engine; return the exit code."""
    engine = FakeEngine(parse(argv))
    if engine.fault == "not-start":
        write(sys.stderr, "error: cannot open the model: it is only a fake")
        return 7

    def on_term(_signal: int, _frame: object) -> None:
        engine.log("term")
        if engine.fault != "ignore-term":
            os._exit(int(engine.value) if engine.fault == "exit-code" else 0)

    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGINT, on_term)
    engine.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
