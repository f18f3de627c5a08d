"""Access to one build's C interface from Python, in a fresh process per arm.

A library that crashes takes only its worker with it, and two builds never share
a process: what one maps cannot answer for the other.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from engine.captured import Captured
from engine.failures import LibraryDiedError, LibraryRefusedError
from engine.interface import KV_TYPES
from engine.patience import Patience
from engine.serving import FRAME, serve
from engine.spawner import spawn_bound
from protocols.errors import EngineError
from protocols.results import LAST_WORDS

Rows = Literal["all", "last", "none"]
DEFAULT_TIMEOUT_S: Final = 600.0
_START_TIMEOUT_S: Final = 60.0
_CLOSE_WAIT_S: Final = 5.0
_LOG_TAIL_BYTES: Final = 2000


@dataclass(frozen=True, kw_only=True)
class Session:
    """Settings of a session. `context_tokens` is per sequence when split, for all together when unified."""

    context_tokens: int
    sequences: int = 1
    ubatch_tokens: int = 512
    threads: int = 2
    kv_type: str = "f16"
    is_unified: bool = False
    # qwen4exp only
    is_reserved: bool = False
    is_bucket: bool = False
    has_plain_operators: bool = False
    rollback_tokens: int = 0
    draft_tokens: int = 0
    draft_kv_type: str = "f16"
    draft_vocabulary: int = 0
    ple_cache_bytes: int | None = None
    strip_bytes: int | None = None
    has_flash_attention: bool = True

    def fields(self) -> dict[str, int | bool]:
        """Return the same in the C interface's words. Raises EngineError for an unknown cache type."""
        for kind in (self.kv_type, self.draft_kv_type):
            if kind not in KV_TYPES:
                raise EngineError(f"{kind!r} is no cache type", hint=f"use one of {', '.join(KV_TYPES)}")
        later = {
            "reserved_layout": self.is_reserved,
            "bucket_policy": self.is_bucket,
            "plain_operators": self.has_plain_operators,
            "n_rollback": self.rollback_tokens,
            "n_draft": self.draft_tokens,
            "n_draft_vocab": self.draft_vocabulary,
        }
        sizes = {"ple_cache_bytes": self.ple_cache_bytes, "strip_bytes": self.strip_bytes}
        return {
            **{name: value for name, value in later.items() if value},
            **({} if self.has_flash_attention else {"flash_attention": False}),
            **({"draft_kv_type": KV_TYPES[self.draft_kv_type]} if self.draft_tokens else {}),
            **{name: value for name, value in sizes.items() if value is not None},
            "n_ctx": self.context_tokens,
            "n_seq": self.sequences,
            "n_ubatch": self.ubatch_tokens,
            "n_threads": self.threads,
            "n_threads_batch": self.threads,
            "kv_type": KV_TYPES[self.kv_type],
            "kv_unified": self.is_unified,
        }


class Round(NamedTuple):
    """One round of speculative decoding: what was drafted, how many agreed, and the tokens that it emits."""

    drafts: list[int]
    accepted: int
    tokens: list[int]


class _Answer(NamedTuple):
    header: dict[str, Any]
    payload: bytearray


class EngineWorker:
    """One library in one process. Use as a context manager, or call `close`."""

    def __init__(
        self, library: Path, *, timeout_s: float = DEFAULT_TIMEOUT_S, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the worker and load `library` in it; `timeout_s` bounds each later operation.

        `environment` comes on top of this process's own.

        Raises EngineError when the library cannot be loaded or speaks another interface version.
        """
        if not library.is_file():
            raise EngineError(
                "there is no such engine library", where=str(library), hint="`assay engine build` makes one"
            )
        self._library = library
        self._timeout_s = timeout_s
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the worker
        # -P: a folder named `engine` where the user happens to stand must not take our place.
        self._process = spawn_bound(
            [sys.executable, "-P", "-m", "engine.worker", "--library", str(library.absolute())],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.fileno(),
        )
        try:
            self._receive(_START_TIMEOUT_S, "start")
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the worker, for `identity.mapped_files`."""
        return self._process.pid

    def build_info(self) -> dict[str, Any]:
        """Return what the library says of itself: versions, back ends, CPU features, faults, layout salt."""
        return cast("dict[str, Any]", self._call("build_info").header["info"])

    def load(self, model: Path, *, use_mmap: bool = True, gpu_layers: int = 0) -> dict[str, Any]:
        """Load a model, once in a worker's life; returns what the library says of it."""
        answer = self._call("load", path=str(model), use_mmap=use_mmap, n_gpu_layers=gpu_layers)
        return cast("dict[str, Any]", answer.header["info"])

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Return the ids of `text` (UTF-8 where it is str)."""
        data = text.encode() if isinstance(text, str) else text
        answer = self._call("tokenize", data, add_special=add_special, parse_special=parse_special)
        return cast("list[int]", np.frombuffer(answer.payload, "<i4").tolist())

    def detokenize(self, tokens: Sequence[int], *, render_special: bool = False) -> bytes:
        """Return the exact bytes of `tokens`; a character may be cut at either end."""
        return bytes(self._call("token_bytes", _ids(tokens), render_special=render_special).payload)

    def open_session(self, session: Session) -> dict[str, int]:
        """Begin a session, ending the open one; returns `cache_bytes` and `compute_bytes`."""
        return cast("dict[str, int]", self._call("open_session", settings=session.fields()).header)

    def decode(
        self, tokens: Sequence[int], *, start: int, sequence: int = 0, rows: Rows = "all"
    ) -> NDArray[np.float32]:
        """Evaluate `tokens` at positions from `start` on; the logits of `rows`, shape [rows, vocabulary]."""
        answer = self._call("decode", _ids(tokens), start=start, seq=sequence, rows=rows)
        return np.frombuffer(answer.payload, "<f4").reshape(answer.header["rows"], answer.header["n_vocab"])

    def decode_rows(
        self,
        tokens: Sequence[int],
        positions: NDArray[np.int32] | Sequence[Sequence[int]] | Sequence[int],
        *,
        sequences: int | Sequence[int] = 0,
        embeddings: NDArray[np.float32] | None = None,
        wanted: Sequence[bool] | None = None,
    ) -> NDArray[np.float32]:
        """Evaluate rows of any sequences; a token of -1 stands for the next row of `embeddings`.

        `positions`: [rows] for text, or [axes, rows] with the axes t, y, x (and a fourth that is ignored).
        Returns the logits of the wanted rows (all by default), shape [wanted, vocabulary].
        """
        n = len(tokens)
        places = np.asarray(positions, "<i4").reshape(-1, n)
        owners = np.full(n, sequences, "<i4") if isinstance(sequences, int) else np.asarray(sequences, "<i4")
        flags = np.ones(n, np.uint8) if wanted is None else np.asarray(wanted, np.uint8)
        padding = bytes(-n % 4)
        values = b"" if embeddings is None else np.ascontiguousarray(embeddings, "<f4").tobytes()
        payload = b"".join((_ids(tokens), places.tobytes(), owners.tobytes(), flags.tobytes(), padding, values))
        answer = self._call("decode_rows", payload, n=n, n_axes=places.shape[0])
        return np.frombuffer(answer.payload, "<f4").reshape(answer.header["rows"], answer.header["n_vocab"])

    def copy(self, source: int, target: int, *, start: int = 0, end: int = -1) -> None:
        """Give `target` the cells of `source` in [start, end)."""
        self._call("copy", src=source, dst=target, p0=start, p1=end)

    def keep(self, sequence: int) -> None:
        """Remove every other sequence."""
        self._call("keep", seq=sequence)

    def shift(self, sequence: int, delta: int, *, start: int = 0, end: int = -1) -> None:
        """Add `delta` to the positions in [start, end)."""
        self._call("shift", seq=sequence, p0=start, p1=end, delta=delta)

    def sequence(self, sequence: int) -> dict[str, int]:
        """Return `last` (largest position, -1 when empty) and `cells` of a sequence."""
        return cast("dict[str, int]", self._call("sequence", seq=sequence).header)

    def save(self, sequence: int) -> bytes:
        """Return the state of a sequence."""
        return bytes(self._call("save", seq=sequence).payload)

    def restore(self, sequence: int, state: bytes) -> None:
        """Replace a sequence by a saved state."""
        self._call("restore", state, seq=sequence)

    def draft_round(self, last: int, *, left: int, depth: int, sequence: int = 0, p_min: float = 0.0) -> Round:
        """Draft after `last`, which is not decoded yet, verify, and keep what agrees; `left` tokens are to come."""
        found = self._call("draft_round", seq=sequence, last=last, n_left=left, depth=depth, p_min=p_min).header
        return Round(found["drafts"], found["n_accepted"], found["tokens"])

    def draft_propose(self, last: int, count: int, *, sequence: int = 0, p_min: float = 0.0) -> list[int]:
        """Return up to `count` drafts after `last`."""
        return cast(
            "list[int]", self._call("draft_propose", seq=sequence, last=last, n=count, p_min=p_min).header["drafts"]
        )

    def draft_verify(self, tokens: Sequence[int], *, sequence: int = 0) -> NDArray[np.float32]:
        """Decode a token and its drafts; the logits of all. `draft_accept` must follow."""
        answer = self._call("draft_verify", seq=sequence, tokens=list(tokens))
        return np.frombuffer(answer.payload, "<f4").reshape(answer.header["rows"], answer.header["n_vocab"])

    def draft_accept(self, kept: int, *, sequence: int = 0) -> None:
        """Keep the first `kept` verified tokens and take the others back."""
        self._call("draft_accept", seq=sequence, n_keep=kept)

    def capture(self, names: Sequence[str], *, max_bytes: int = 1 << 30) -> None:
        """Capture tensors in the following decodes (`engine.h` lists the names); no name ends it."""
        self._call("capture", names=",".join(names), max_bytes=max_bytes)

    def captured(self) -> list[Captured]:
        """Return the tensors captured in the last decode."""
        answer = self._call("captured")
        found, at = [], 0
        for entry in answer.header["entries"]:
            values = None
            if not entry["was_left_out"]:
                kind = ("<f4", "<i4", "<i8")[entry["type"]]
                values = np.frombuffer(answer.payload[at : at + entry["bytes"]], kind).reshape(entry["shape"][::-1])
                at += entry["bytes"]
            found.append(Captured(entry["name"], entry["ubatch"], values))
        return found

    def norm_check(self, rows: int, *, width: int = 128, on_accelerator: bool = False) -> dict[str, float]:
        """Return `worst_error` and `elapsed_ns` of the graphs' norm over `rows` rows, against double precision."""
        return cast(
            "dict[str, float]", self._call("norm_check", rows=rows, width=width, on_accelerator=on_accelerator).header
        )

    def session_info(self) -> dict[str, Any]:
        """Return what the session says of itself: sizes, reasons of routes, use of the n-gram table."""
        return cast("dict[str, Any]", self._call("session_info").header["info"])

    def remove(self, *, sequence: int, start: int = 0, end: int = -1) -> None:
        """Remove cells of a sequence; a negative `end` means to its end."""
        self._call("remove", seq=sequence, p0=start, p1=end)

    def fill_zero(self, cells: int, *, sequence: int = 0) -> None:
        """Fill a sequence with zero cells at positions 0 to `cells` - 1."""
        self._call("fill_zero", seq=sequence, n=cells)

    def work(self, *, reset: bool = False) -> dict[str, int]:
        """Return the work counters of the session since it began or since the last reset."""
        return cast("dict[str, int]", self._call("work", reset=reset).header["work"])

    def logits(
        self, tokens: Sequence[int], *, kv_type: str = "f16", threads: int = 2, ubatch_tokens: int = 512
    ) -> NDArray[np.float32]:
        """Return the logits at every position of `tokens`, in a new session: [tokens, vocabulary], float32."""
        return np.concatenate(
            list(self.logit_blocks(tokens, kv_type=kv_type, threads=threads, ubatch_tokens=ubatch_tokens))
        )

    def logit_blocks(
        self, tokens: Sequence[int], *, kv_type: str = "f16", threads: int = 2, ubatch_tokens: int = 512
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the rows of `logits` in blocks of `ubatch_tokens`, for logits that do not fit into memory."""
        if not tokens:
            raise EngineError("there are no tokens to evaluate", hint="give at least one id")
        self.open_session(
            Session(context_tokens=len(tokens), ubatch_tokens=ubatch_tokens, threads=threads, kv_type=kv_type)
        )
        for start in range(0, len(tokens), ubatch_tokens):
            yield self.decode(tokens[start : start + ubatch_tokens], start=start)

    def close(self) -> None:
        """End the worker; harmless when it has ended already."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(_CLOSE_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, operation: str, payload: bytes = b"", **fields: Any) -> _Answer:  # noqa: ANN401  # JSON values
        if self._process.stdin is None or self._process.stdin.closed:
            raise EngineError("the worker has been closed", where=str(self._library))
        header = json.dumps({"operation": operation, **fields}).encode()
        try:
            self._process.stdin.write(FRAME.pack(len(header), len(payload)) + header + payload)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death(operation) from None
        return self._receive(self._timeout_s, operation)

    def _receive(self, timeout_s: float, operation: str) -> _Answer:
        patience = Patience(timeout_s)
        header_size, payload_size = FRAME.unpack(self._read(FRAME.size, patience, operation))
        header: dict[str, Any] = json.loads(self._read(header_size, patience, operation))
        payload = self._read(payload_size, patience, operation)
        if "error" in header:
            raise LibraryRefusedError(f"{operation}: {header['error']}", str(self._library), header.get("status", 0))
        return _Answer(header, payload)

    def _read(self, size: int, patience: Patience, operation: str) -> bytearray:
        assert self._process.stdout is not None  # noqa: S101  # made with a pipe
        descriptor = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        buffer = bytearray(size)
        view, filled = memoryview(buffer), 0
        while filled < size:
            if not patience.wait(poll):
                self._process.kill()
                self._process.wait()
                raise LibraryDiedError(f"the library did not finish {operation} in time", where=str(self._library))
            count = os.readv(descriptor, [view[filled:]])
            if count == 0:
                raise self._death(operation)
            filled += count
        return buffer

    def _death(self, operation: str) -> LibraryDiedError:
        try:
            status = self._process.wait(_CLOSE_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
        lines = [line for line in self._log.read().decode("utf-8", "replace").splitlines() if line.strip()][-5:]
        words = LAST_WORDS + "\n  " + "\n  ".join(lines) if lines else ""
        return LibraryDiedError(f"the engine library died during {operation} ({how}){words}", where=str(self._library))


def _ids(tokens: Sequence[int]) -> bytes:
    try:
        return array("i", tokens).tobytes()
    except (OverflowError, TypeError) as error:
        raise EngineError(f"token ids are 32-bit integers: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one library over standard input and output."""
    parser = argparse.ArgumentParser(prog="engine.worker", description=main.__doc__)
    parser.add_argument("--library", type=Path, required=True)
    options = parser.parse_args(arguments)
    # The pipes move away from 0 and 1, so that what a library prints cannot break the framing.
    requests, replies = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return serve(options.library, requests, replies)


if __name__ == "__main__":
    sys.exit(main())
