"""The C interface (`include/engine.h`) through ctypes: a method for each operation of the worker.

This runs only inside a worker process, which loads exactly one library.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from engine.interface import (
    ABI,
    FUNCTIONS,
    LATER_FUNCTIONS,
    WORK_FIELDS,
    Batch,
    Captured,
    DraftRound,
    Rows,
    Work,
)

_OK: Final = 0
_FULL: Final = 4
_ERROR_BYTES: Final = 1024


OPERATIONS: Final = (
    "build_info",
    "load",
    "tokenize",
    "token_bytes",
    "open_session",
    "decode",
    "decode_rows",
    "remove",
    "copy",
    "keep",
    "shift",
    "sequence",
    "fill_zero",
    "save",
    "restore",
    "draft_propose",
    "draft_verify",
    "draft_accept",
    "draft_round",
    "capture",
    "captured",
    "session_info",
    "norm_check",
    "work",
)


class CallError(Exception):
    """A function of the library said no; the text is the library's own, `status` that of the C interface, else 0."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Reply(NamedTuple):
    """Header fields, and the buffers that follow it."""

    header: dict[str, Any]
    payload: list[memoryview]


class Library:
    """One loaded library, at most one model and one session; a method for each operation of the worker."""

    def __init__(self, path: Path) -> None:
        self._calls = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        for name, (result, arguments) in {**FUNCTIONS, **LATER_FUNCTIONS}.items():
            function = getattr(self._calls, name) if name in FUNCTIONS else getattr(self._calls, name, None)
            if function is not None:
                function.restype = result
                function.argtypes = arguments
        self._error = ctypes.create_string_buffer(_ERROR_BYTES)
        self._model = ctypes.c_void_p()
        self._session = ctypes.c_void_p()
        self._info: dict[str, Any] = json.loads(self._calls.assay_build_info())
        found = self._info.get("abi")
        if found != ABI:
            raise CallError(f"the library speaks interface version {found}, this worker {ABI}: build it again")

    def build_info(self, _request: dict[str, Any], _payload: bytes) -> Reply:
        """Return what the library says of itself."""
        return Reply({"info": self._info}, [])

    def load(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Load a model file; one worker loads one model."""
        if self._model:
            raise CallError("this worker has loaded a model already")
        settings = self._calls.assay_model_defaults()
        settings.use_mmap = request["use_mmap"]
        settings.n_gpu_layers = request["n_gpu_layers"]
        self._check(
            self._calls.assay_model_load(
                os.fsencode(request["path"]), ctypes.byref(settings), ctypes.byref(self._model), *self._err()
            )
        )
        info = json.loads(self._calls.assay_model_info(self._model))
        return Reply({"info": info, "n_vocab": self._calls.assay_model_n_vocab(self._model)}, [])

    def tokenize(self, request: dict[str, Any], payload: bytes) -> Reply:
        """Bytes to ids."""
        self._need_model()
        capacity = len(payload) + 16
        while True:
            ids = (ctypes.c_int32 * capacity)()
            count = ctypes.c_size_t(capacity)
            status = self._calls.assay_tokenize(
                self._model,
                payload,
                len(payload),
                request["add_special"],
                request["parse_special"],
                ctypes.cast(ids, ctypes.c_void_p),
                ctypes.byref(count),
                *self._err(),
            )
            if status != _FULL or count.value <= capacity:
                break
            capacity = count.value
        self._check(status)
        return Reply({}, [memoryview(ids).cast("B")[: count.value * 4]])

    def token_bytes(self, request: dict[str, Any], payload: bytes) -> Reply:
        """Ids to their exact bytes, joined; `sizes` has the number of bytes of each."""
        self._need_model()
        parts: list[bytes] = []
        for (token,) in struct.iter_unpack("<i", payload):
            data, size = ctypes.c_void_p(), ctypes.c_size_t()
            status = self._calls.assay_token_bytes(
                self._model, token, request["render_special"], ctypes.byref(data), ctypes.byref(size)
            )
            if status != _OK:
                raise CallError(f"{token} is no token of this model")
            parts.append(ctypes.string_at(data, size.value) if size.value else b"")
        return Reply({"sizes": [len(part) for part in parts]}, [memoryview(b"".join(parts))])

    def open_session(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Begin a session with the given settings; an open one ends."""
        self._need_model()
        self._free_session()
        settings = self._calls.assay_session_defaults()
        for name, value in request["settings"].items():
            setattr(settings, name, value)
        self._check(
            self._calls.assay_session_new(
                self._model, ctypes.byref(settings), ctypes.byref(self._session), *self._err()
            )
        )
        cache = self._calls.assay_session_cache_bytes(self._session)
        compute = self._calls.assay_session_compute_bytes(self._session)
        return Reply({"cache_bytes": cache, "compute_bytes": compute}, [])

    def decode(self, request: dict[str, Any], payload: bytes) -> Reply:
        """Evaluate ids of one sequence from a position on; rows of logits for all, the last or none of them."""
        self._need_session()
        n = len(payload) // 4
        first, rows = request["start"], {"all": range(n), "last": range(n - 1, n), "none": range(0)}[request["rows"]]
        wanted = (ctypes.c_uint8 * n)()
        for row in rows:
            wanted[row] = 1
        batch = Batch(
            n,
            (ctypes.c_int32 * n).from_buffer_copy(payload),
            (ctypes.c_int32 * n)(*range(first, first + n)),
            (ctypes.c_int32 * n)(*(request["seq"],) * n),
            wanted,
        )
        self._check(self._calls.assay_decode(self._session, ctypes.byref(batch), None, *self._err()))
        return self._logits(rows)

    def _logits(self, rows: Iterable[int]) -> Reply:
        width = self._calls.assay_model_n_vocab(self._model)
        payload_rows = []
        for row in rows:
            address = self._calls.assay_logits(self._session, row)
            if not address:
                raise CallError(f"the library has no logits for row {row}, though they were asked for")
            payload_rows.append(memoryview((ctypes.c_float * width).from_address(address)).cast("B"))
        return Reply({"rows": len(payload_rows), "n_vocab": width}, payload_rows)

    def decode_rows(self, request: dict[str, Any], payload: bytes) -> Reply:
        """Evaluate tokens and embeddings of any sequences: tokens, positions, sequences, wanted rows, embeddings."""
        self._need_session()
        n, axes = request["n"], request["n_axes"]
        data = ctypes.create_string_buffer(payload, len(payload) or 1)
        base = ctypes.addressof(data)
        starts = {"tokens": 0, "positions": 4 * n, "seq_ids": 4 * n * (1 + axes), "logits": 4 * n * (2 + axes)}
        wanted = payload[starts["logits"] : starts["logits"] + n]
        embeddings = starts["logits"] + (n + 3) // 4 * 4
        rows = Rows(
            struct_size=ctypes.sizeof(Rows),
            n=n,
            n_axes=axes,
            embeddings=base + embeddings if len(payload) > embeddings else None,
            **{name: base + start for name, start in starts.items()},
        )
        self._check(self._later("assay_decode_rows")(self._session, ctypes.byref(rows), None, *self._err()))
        return self._logits([row for row in range(n) if wanted[row]])

    def remove(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Remove the cells of a sequence from position `p0` to before `p1` (negative: to the end)."""
        self._need_session()
        self._check(
            self._calls.assay_seq_remove(self._session, request["seq"], request["p0"], request["p1"], *self._err())
        )
        return Reply({}, [])

    def copy(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Give one sequence the cells of another."""
        self._need_session()
        arguments = (request["src"], request["dst"], request["p0"], request["p1"])
        self._check(self._later("assay_seq_copy")(self._session, *arguments, *self._err()))
        return Reply({}, [])

    def keep(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Remove every other sequence."""
        self._need_session()
        self._check(self._later("assay_seq_keep")(self._session, request["seq"], *self._err()))
        return Reply({}, [])

    def shift(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Add to the positions of a sequence."""
        self._need_session()
        arguments = (request["seq"], request["p0"], request["p1"], request["delta"])
        self._check(self._later("assay_seq_shift")(self._session, *arguments, *self._err()))
        return Reply({}, [])

    def sequence(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Say where a sequence ends and how many cells it has."""
        self._need_session()
        last = self._later("assay_seq_last")(self._session, request["seq"])
        return Reply({"last": last, "cells": self._later("assay_seq_cells")(self._session, request["seq"])}, [])

    def save(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Save a sequence; the payload is the state."""
        self._need_session()
        size = self._later("assay_state_size")(self._session, request["seq"])
        data, written = (ctypes.c_uint8 * size)(), ctypes.c_size_t()
        self._check(
            self._later("assay_state_save")(
                self._session, request["seq"], data, size, ctypes.byref(written), *self._err()
            )
        )
        return Reply({}, [memoryview(data).cast("B")[: written.value]])

    def restore(self, request: dict[str, Any], payload: bytes) -> Reply:
        """Replace a sequence by a saved one."""
        self._need_session()
        self._check(
            self._later("assay_state_restore")(self._session, request["seq"], payload, len(payload), *self._err())
        )
        return Reply({}, [])

    def draft_propose(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Draft tokens after one that is not decoded yet."""
        self._need_session()
        drafts, count = (ctypes.c_int32 * (request["n"] + 1))(), ctypes.c_uint32()
        arguments = (request["seq"], request["last"], request["n"], request["p_min"])
        self._check(
            self._later("assay_draft_propose")(self._session, *arguments, drafts, ctypes.byref(count), *self._err())
        )
        return Reply({"drafts": list(drafts[: count.value])}, [])

    def draft_verify(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Decode a token and its drafts; the logits of all."""
        self._need_session()
        n = len(request["tokens"])
        tokens = (ctypes.c_int32 * n)(*request["tokens"])
        self._check(self._later("assay_draft_verify")(self._session, request["seq"], tokens, n, None, *self._err()))
        return self._logits(range(n))

    def draft_accept(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Keep the first of the verified tokens."""
        self._need_session()
        self._check(self._later("assay_draft_accept")(self._session, request["seq"], request["n_keep"], *self._err()))
        return Reply({}, [])

    def draft_round(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Draft, verify and keep what agrees."""
        self._need_session()
        room = request["depth"] + 1
        tokens, drafts = (ctypes.c_int32 * room)(), (ctypes.c_int32 * room)()
        result = DraftRound(struct_size=ctypes.sizeof(DraftRound))
        arguments = (request["seq"], request["last"], request["n_left"], request["depth"], request["p_min"], None)
        self._check(
            self._later("assay_draft_round")(
                self._session, *arguments, tokens, drafts, ctypes.byref(result), *self._err()
            )
        )
        return Reply(
            {
                "tokens": list(tokens[: result.n_tokens]),
                "drafts": list(drafts[: result.n_drafted]),
                "n_accepted": result.n_accepted,
            },
            [],
        )

    def capture(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Begin to capture tensors, or end it where no name is given."""
        self._need_session()
        if request["names"]:
            names = request["names"].encode()
            self._check(self._later("assay_capture_start")(self._session, names, request["max_bytes"], *self._err()))
        else:
            self._later("assay_capture_stop")(self._session)
        return Reply({}, [])

    def captured(self, _request: dict[str, Any], _payload: bytes) -> Reply:
        """Return the tensors captured in the last decode."""
        self._need_session()
        entries, parts = [], []
        for index in range(self._later("assay_capture_count")(self._session)):
            found = Captured(struct_size=ctypes.sizeof(Captured))
            self._check(self._later("assay_capture_get")(self._session, index, ctypes.byref(found), *self._err()))
            size = found.size_bytes if found.data else 0
            entries.append(
                {
                    "name": found.name.decode(),
                    "type": found.type,
                    "ubatch": found.ubatch,
                    "shape": list(found.shape),
                    "bytes": size,
                    "was_left_out": not found.data,
                }
            )
            if size:
                parts.append(memoryview((ctypes.c_uint8 * size).from_address(found.data)).cast("B"))
        return Reply({"entries": entries}, parts)

    def session_info(self, _request: dict[str, Any], _payload: bytes) -> Reply:
        """Return what the session says of itself."""
        self._need_session()
        return Reply({"info": json.loads(self._later("assay_session_info")(self._session))}, [])

    def norm_check(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Compare the norm over many rows with double precision."""
        error, elapsed = ctypes.c_double(), ctypes.c_uint64()
        arguments = (request["rows"], request["width"], request["on_accelerator"])
        self._check(
            self._later("assay_norm_check")(*arguments, ctypes.byref(error), ctypes.byref(elapsed), *self._err())
        )
        return Reply({"worst_error": error.value, "elapsed_ns": elapsed.value}, [])

    def fill_zero(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Fill a sequence with zero cells."""
        self._need_session()
        self._check(self._calls.assay_fill_zero(self._session, request["seq"], request["n"], *self._err()))
        return Reply({}, [])

    def work(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Read the work counters, and set them to zero where asked."""
        self._need_session()
        work = Work(struct_size=ctypes.sizeof(Work))
        self._calls.assay_work_read(self._session, ctypes.byref(work))
        if request["reset"]:
            self._calls.assay_work_reset(self._session)
        return Reply({"work": {name: getattr(work, name) for name in WORK_FIELDS}}, [])

    def _later(self, name: str) -> Any:  # noqa: ANN401  # a foreign function
        function = getattr(self._calls, name, None)
        if function is None:
            raise CallError(f"this library has no {name}: build it again")
        return function

    def _err(self) -> tuple[Any, int]:
        return self._error, _ERROR_BYTES

    def _check(self, status: int) -> None:
        if status != _OK:
            text = self._error.value.decode("utf-8", "replace").strip()
            raise CallError(text or f"the library failed with status {status} and no words", status)

    def _need_model(self) -> None:
        if not self._model:
            raise CallError("no model is loaded")

    def _need_session(self) -> None:
        if not self._session:
            raise CallError("no session is open")

    def _free_session(self) -> None:
        if self._session:
            self._calls.assay_session_free(self._session)
            self._session = ctypes.c_void_p()
