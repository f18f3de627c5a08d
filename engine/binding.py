"""The C interface (`include/engine.h`) through ctypes, and the loop that serves it over two pipes.

This runs only inside a worker process, which loads exactly one library. Every
message, both ways, is `header length u32, payload length u64, header (JSON),
payload (raw array bytes)`, little-endian.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

ABI: Final = 1
FRAME: Final = struct.Struct("<IQ")
KV_TYPES: Final = {"f32": 0, "f16": 1, "q8_0": 8}
_OK: Final = 0
_FULL: Final = 4
_ERROR_BYTES: Final = 1024


class ModelSettings(ctypes.Structure):
    """`assay_model_settings`."""

    _fields_ = (("struct_size", ctypes.c_size_t), ("use_mmap", ctypes.c_bool), ("n_gpu_layers", ctypes.c_int32))


class SessionSettings(ctypes.Structure):
    """`assay_session_settings`."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("n_ctx", ctypes.c_uint32),
        ("n_seq", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("n_threads", ctypes.c_uint32),
        ("n_threads_batch", ctypes.c_uint32),
        ("kv_type", ctypes.c_int32),
        ("kv_unified", ctypes.c_bool),
        ("flash_attention", ctypes.c_bool),
    )


class Batch(ctypes.Structure):
    """`assay_batch`."""

    _fields_ = (
        ("n", ctypes.c_uint32),
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("positions", ctypes.POINTER(ctypes.c_int32)),
        ("seq_ids", ctypes.POINTER(ctypes.c_int32)),
        ("logits", ctypes.POINTER(ctypes.c_uint8)),
    )


OPERATIONS: Final = (
    "build_info",
    "load",
    "tokenize",
    "token_bytes",
    "open_session",
    "decode",
    "remove",
    "copy",
    "keep",
    "save_state",
    "restore_state",
    "fill_zero",
    "work",
)
WORK_FIELDS: Final = (
    "n_decode_calls",
    "n_graphs",
    "n_graph_reuses",
    "n_graph_nodes",
    "n_flops",
    "n_weight_bytes_read",
    "n_cells_visited",
    "n_mapping_steps",
    "n_allocations",
    "n_tokens_evaluated",
)


class Work(ctypes.Structure):
    """`assay_work`."""

    _fields_ = (("struct_size", ctypes.c_size_t), *((name, ctypes.c_uint64) for name in WORK_FIELDS))


class CallError(Exception):
    """A function of the library said no; the text is the library's own."""


class Reply(NamedTuple):
    """Header fields, and the buffers that follow it."""

    header: dict[str, Any]
    payload: list[memoryview]


_P = ctypes.c_void_p
_SIZE = ctypes.POINTER(ctypes.c_size_t)
_ERR: Final = (ctypes.c_char_p, ctypes.c_size_t)
# name -> (result, arguments); the last two arguments of a function that can fail are the error buffer.
_FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "assay_build_info": (ctypes.c_char_p, ()),
    "assay_model_defaults": (ModelSettings, ()),
    "assay_session_defaults": (SessionSettings, ()),
    "assay_model_load": (
        ctypes.c_int,
        (ctypes.c_char_p, ctypes.POINTER(ModelSettings), ctypes.POINTER(_P), *_ERR),
    ),
    "assay_model_info": (ctypes.c_char_p, (_P,)),
    "assay_model_n_vocab": (ctypes.c_int32, (_P,)),
    "assay_tokenize": (
        ctypes.c_int,
        (
            _P,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_bool,
            ctypes.c_bool,
            _P,
            ctypes.POINTER(ctypes.c_size_t),
            *_ERR,
        ),
    ),
    "assay_token_bytes": (
        ctypes.c_int,
        (_P, ctypes.c_int32, ctypes.c_bool, ctypes.POINTER(_P), _SIZE),
    ),
    "assay_session_new": (ctypes.c_int, (_P, ctypes.POINTER(SessionSettings), ctypes.POINTER(_P), *_ERR)),
    "assay_session_free": (None, (_P,)),
    "assay_session_cache_bytes": (ctypes.c_uint64, (_P,)),
    "assay_session_compute_bytes": (ctypes.c_uint64, (_P,)),
    "assay_decode": (ctypes.c_int, (_P, ctypes.POINTER(Batch), _P, *_ERR)),
    "assay_logits": (_P, (_P, ctypes.c_uint32)),
    "assay_seq_remove": (ctypes.c_int, (_P, *(ctypes.c_int32,) * 3, *_ERR)),
    "assay_seq_copy": (ctypes.c_int, (_P, *(ctypes.c_int32,) * 4, *_ERR)),
    "assay_seq_keep": (ctypes.c_int, (_P, ctypes.c_int32, *_ERR)),
    "assay_state_size": (ctypes.c_size_t, (_P, ctypes.c_int32)),
    "assay_state_save": (ctypes.c_int, (_P, ctypes.c_int32, _P, ctypes.c_size_t, _SIZE, *_ERR)),
    "assay_state_restore": (ctypes.c_int, (_P, ctypes.c_int32, ctypes.c_char_p, ctypes.c_size_t, *_ERR)),
    "assay_fill_zero": (ctypes.c_int, (_P, ctypes.c_int32, ctypes.c_uint32, *_ERR)),
    "assay_work_read": (None, (_P, ctypes.POINTER(Work))),
    "assay_work_reset": (None, (_P,)),
}


class Library:
    """One loaded library, at most one model and one session; a method for each operation of the worker."""

    def __init__(self, path: Path) -> None:
        self._calls = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._calls, name)
            function.restype = result
            function.argtypes = arguments
        self._error = ctypes.create_string_buffer(_ERROR_BYTES)
        self._model = _P()
        self._session = _P()
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
                ctypes.cast(ids, _P),
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
            data, size = _P(), ctypes.c_size_t()
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
        width = self._calls.assay_model_n_vocab(self._model)
        payload_rows = []
        for row in rows:
            address = self._calls.assay_logits(self._session, row)
            if not address:
                raise CallError(f"the library has no logits for row {row}, though they were asked for")
            payload_rows.append(memoryview((ctypes.c_float * width).from_address(address)).cast("B"))
        return Reply({"rows": len(payload_rows), "n_vocab": width}, payload_rows)

    def remove(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Remove the cells of a sequence from position `p0` to before `p1` (negative: to the end)."""
        self._need_session()
        self._check(
            self._calls.assay_seq_remove(self._session, request["seq"], request["p0"], request["p1"], *self._err())
        )
        return Reply({}, [])

    def copy(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Copy the cells of sequence `seq` from `p0` to before `p1` to sequence `target`."""
        self._need_session()
        places = (request["seq"], request["target"], request["p0"], request["p1"])
        self._check(self._calls.assay_seq_copy(self._session, *places, *self._err()))
        return Reply({}, [])

    def keep(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Remove every sequence but one."""
        self._need_session()
        self._check(self._calls.assay_seq_keep(self._session, request["seq"], *self._err()))
        return Reply({}, [])

    def save_state(self, request: dict[str, Any], _payload: bytes) -> Reply:
        """Return the state of one sequence."""
        self._need_session()
        size = self._calls.assay_state_size(self._session, request["seq"])
        data, written = ctypes.create_string_buffer(size), ctypes.c_size_t()
        self._check(
            self._calls.assay_state_save(self._session, request["seq"], data, size, ctypes.byref(written), *self._err())
        )
        return Reply({}, [memoryview(data).cast("B")[: written.value]])

    def restore_state(self, request: dict[str, Any], payload: bytes) -> Reply:
        """Give a sequence a saved state."""
        self._need_session()
        self._check(self._calls.assay_state_restore(self._session, request["seq"], payload, len(payload), *self._err()))
        return Reply({}, [])

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

    def _err(self) -> tuple[Any, int]:
        return self._error, _ERROR_BYTES

    def _check(self, status: int) -> None:
        if status != _OK:
            text = self._error.value.decode("utf-8", "replace").strip()
            raise CallError(text or f"the library failed with status {status} and no words")

    def _need_model(self) -> None:
        if not self._model:
            raise CallError("no model is loaded")

    def _need_session(self) -> None:
        if not self._session:
            raise CallError("no session is open")

    def _free_session(self) -> None:
        if self._session:
            self._calls.assay_session_free(self._session)
            self._session = _P()


def serve(library: Path, requests: int, replies: int) -> int:
    """Answer operations read from file descriptor `requests` until it ends; returns the exit code."""
    try:
        loaded = Library(library)
    except (OSError, AttributeError, ValueError, CallError) as error:
        _write(replies, Reply({"error": f"cannot use {library.name}: {error}"}, []))
        return 1
    operations: dict[str, Callable[[dict[str, Any], bytes], Reply]] = {
        name: getattr(loaded, name) for name in OPERATIONS
    }
    _write(replies, Reply({"ready": True}, []))
    with os.fdopen(requests, "rb") as stream:
        while True:
            frame = stream.read(FRAME.size)
            if len(frame) < FRAME.size:
                return 0
            header_size, payload_size = FRAME.unpack(frame)
            request = json.loads(stream.read(header_size))
            payload = stream.read(payload_size)
            try:
                reply = operations[request["operation"]](request, payload)
            except CallError as error:
                reply = Reply({"error": str(error)}, [])
            _write(replies, reply)


def _write(descriptor: int, reply: Reply) -> None:
    header = json.dumps(reply.header).encode()
    size = sum(part.nbytes for part in reply.payload)
    for part in (memoryview(FRAME.pack(len(header), size) + header), *reply.payload):
        left = part
        while left.nbytes:
            left = left[os.write(descriptor, left) :]
