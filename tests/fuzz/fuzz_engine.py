"""Fuzzes the bundled engine from outside: model files, texts and HTTP requests that were changed at random.

``python tests/fuzz/fuzz_engine.py gguf 60`` (or tokenizer, http) runs one target for so many seconds with a fresh seed, which it
prints. The engine is native code without coverage feedback, so inputs are made from good ones; a fixed seed of each goes through
in every test run. What must hold: the process lives, an error has a text, and a good request is still answered.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path

from engine.build import installed_build
from engine.worker import EngineWorker, Session
from protocols.errors import EngineError

MODEL = Path(__file__).resolve().parents[1] / "engine" / "models" / "tiny-a.gguf"
HEADER_BYTES = 16 * 1024
"""Where the changes of a model file fall, for the most part."""
EXTREMES = (0, 1, 2, 7, 8, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
PIECES = (
    "the",
    " a",
    "\n",
    "\t ",
    "é",
    "今",
    "🚀",
    "<|im_start|>",
    "<|endoftext|>",
    "'s",
    "12345",
    "\u200d",
    "\x00",
    "\ufffd",
)
REQUESTS = (
    b'POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 41\r\n\r\n{"prompt":[5,6,7],"n_predict":2,"top_k":4}',
    b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n{"prompt":[5,6],"\r\nf\r\nmax_tokens": 1 }\r\n0\r\n\r\n',
    b"GET /props HTTP/1.1\r\nHost: x\r\n\r\nGET /slots HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
)


def mutated(rng: random.Random, data: bytes, *, within: int | None = None) -> bytes:
    """Return a copy with one to four changes, in the first `within` bytes where that is given."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(max(1, min(len(out), within or len(out))))
        kind = rng.randrange(5)
        if kind == 0:
            out[place : place + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            size = rng.choice((4, 8))
            out[place : place + size] = (rng.choice(EXTREMES) % 256**size).to_bytes(size, "little")
        elif kind == 2:
            del out[place : place + rng.randint(1, 64)]
        elif kind == 3:
            out[place:place] = out[place : place + rng.randint(1, 64)]
        elif rng.random() < 0.2:
            del out[place:]
    return bytes(out)


def texts(rng: random.Random) -> Iterator[bytes]:
    """Make texts: pieces of several scripts and special tokens, in every third case cut or changed into bytes of any kind."""
    while True:
        text = "".join(rng.choice(PIECES) for _ in range(rng.randrange(40))).encode()
        yield mutated(rng, text) if text and rng.randrange(3) == 0 else text


class Engine:
    """A worker that is started again when an input brings it down; `crashes` keeps those inputs."""

    def __init__(self) -> None:
        self.crashes: list[bytes] = []
        self._worker = EngineWorker(installed_build().library)

    def close(self) -> None:
        self._worker.close()

    def load(self, data: bytes, folder: Path) -> bool:
        """Load a model file and evaluate three tokens; whether both went well. Errors are as good, a dead process is not."""
        path = folder / "changed.gguf"
        path.write_bytes(data)
        try:
            self._worker.load(path)
            self._worker.open_session(Session(context_tokens=64, threads=1, ubatch_tokens=8))
            self._worker.decode([1, 2, 3], start=0)
        except EngineError as error:
            if not str(error).strip():
                raise AssertionError("an error without a text") from error
            if not Path(f"/proc/{self._worker.pid}/exe").exists():
                self.crashes.append(data)
                self._worker = EngineWorker(installed_build().library)
            return False
        return True

    def round_trip(self, text: bytes) -> bytes:
        """Return the bytes of the ids of a text."""
        ids = self._worker.tokenize(text, add_special=False, parse_special=False)
        return self._worker.detokenize(ids, render_special=True)


def send(port: int, data: bytes) -> bytes:
    """Send bytes to a server and return what came within a second."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
        except OSError:
            pass
    return answer


def check_answer(answer: bytes) -> None:
    """Assert that whatever came is HTTP, and that an error is JSON with a message."""
    assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:200]
    head, _, body = answer.partition(b"\r\n\r\n")
    if answer and int(head[9:12]) >= 400 and b"HTTP/1.1" not in body:
        assert json.loads(body)["error"]["message"]


def run(target: str, seconds: float, seed: int, most: float = inf) -> int:
    """Fuzz one target for so long, with at most so many inputs; their number."""
    rng, end, count = random.Random(seed), time.monotonic() + seconds, 0
    if target == "http":
        argv = [
            str(installed_build().server),
            "--model",
            str(MODEL),
            "--port",
            "0",
            "--threads",
            "1",
            "--ctx-size",
            "64",
        ]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())["port"]
            while time.monotonic() < end and count < most:
                check_answer(send(port, mutated(rng, rng.choice(REQUESTS))))
                assert server.poll() is None, f"seed {seed}, input {count}"
                count += 1
            assert send(port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 200 ")
            server.terminate()
        return count
    engine, good = Engine(), MODEL.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        assert engine.load(good, Path(folder))
        made = texts(rng)
        while time.monotonic() < end and count < most:
            if target == "gguf":
                engine.load(mutated(rng, good, within=HEADER_BYTES), Path(folder))
                assert not engine.crashes, f"seed {seed}, input {count}"
            else:
                text = next(made)
                assert engine.round_trip(text) == text, f"seed {seed}, input {count}: {text!r}"
            count += 1
    engine.close()
    return count


if __name__ == "__main__":
    start_seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(2**32)
    sys.stderr.write(f"{sys.argv[1]}: seed {start_seed}\n")
    sys.stderr.write(f"{run(sys.argv[1], float(sys.argv[2]), start_seed)} inputs, none failed\n")
