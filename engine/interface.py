"""The structures and functions of `include/engine.h` for ctypes."""

from __future__ import annotations

import ctypes
from typing import Any, Final

ABI: Final = 1
KV_TYPES: Final = {"f32": 0, "f16": 1, "q8_0": 8}


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
        ("reserved_layout", ctypes.c_bool),
        ("bucket_policy", ctypes.c_bool),
        ("plain_operators", ctypes.c_bool),
        ("n_rollback", ctypes.c_uint32),
        ("n_draft", ctypes.c_uint32),
        ("draft_kv_type", ctypes.c_int32),
        ("n_draft_vocab", ctypes.c_uint32),
        ("ple_cache_bytes", ctypes.c_uint64),
        ("strip_bytes", ctypes.c_uint64),
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


class Rows(ctypes.Structure):
    """`assay_rows`."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("n", ctypes.c_uint32),
        ("n_axes", ctypes.c_uint32),
        ("tokens", ctypes.c_void_p),
        ("embeddings", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("seq_ids", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
    )


class DraftRound(ctypes.Structure):
    """`assay_draft_round_result`."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("n_tokens", ctypes.c_uint32),
        ("n_drafted", ctypes.c_uint32),
        ("n_accepted", ctypes.c_uint32),
    )


class Captured(ctypes.Structure):
    """`assay_captured`."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("ubatch", ctypes.c_uint32),
        ("shape", ctypes.c_int64 * 4),
        ("data", ctypes.c_void_p),
        ("size_bytes", ctypes.c_uint64),
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
    "n_runs_guarded",
    "n_runs_general",
    "n_runs_masked",
    "n_scans",
    "n_ple_rows",
    "n_ple_misses",
    "n_drafted",
    "n_accepted",
)


class Work(ctypes.Structure):
    """`assay_work`."""

    _fields_ = (("struct_size", ctypes.c_size_t), *((name, ctypes.c_uint64) for name in WORK_FIELDS))


_P = ctypes.c_void_p
_SIZE = ctypes.POINTER(ctypes.c_size_t)
_ERR: Final = (ctypes.c_char_p, ctypes.c_size_t)
# name -> (result, arguments); the last two arguments of a function that can fail are the error buffer.
FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
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
    "assay_fill_zero": (ctypes.c_int, (_P, ctypes.c_int32, ctypes.c_uint32, *_ERR)),
    "assay_work_read": (None, (_P, ctypes.POINTER(Work))),
    "assay_work_reset": (None, (_P,)),
}
_I = ctypes.c_int32
_U = ctypes.c_uint32
# What an older library of the same interface version may lack.
LATER_FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "assay_decode_rows": (ctypes.c_int, (_P, ctypes.POINTER(Rows), _P, *_ERR)),
    "assay_seq_copy": (ctypes.c_int, (_P, *(_I,) * 4, *_ERR)),
    "assay_seq_keep": (ctypes.c_int, (_P, _I, *_ERR)),
    "assay_seq_shift": (ctypes.c_int, (_P, *(_I,) * 4, *_ERR)),
    "assay_seq_last": (_I, (_P, _I)),
    "assay_seq_cells": (_U, (_P, _I)),
    "assay_state_size": (ctypes.c_size_t, (_P, _I)),
    "assay_state_save": (ctypes.c_int, (_P, _I, _P, ctypes.c_size_t, _SIZE, *_ERR)),
    "assay_state_restore": (ctypes.c_int, (_P, _I, _P, ctypes.c_size_t, *_ERR)),
    "assay_draft_propose": (
        ctypes.c_int,
        (_P, _I, _I, _U, ctypes.c_float, _P, ctypes.POINTER(_U), *_ERR),
    ),
    "assay_draft_verify": (ctypes.c_int, (_P, _I, _P, _U, _P, *_ERR)),
    "assay_draft_accept": (ctypes.c_int, (_P, _I, _U, *_ERR)),
    "assay_draft_round": (
        ctypes.c_int,
        (_P, _I, _I, _U, _U, ctypes.c_float, _P, _P, _P, ctypes.POINTER(DraftRound), *_ERR),
    ),
    "assay_capture_start": (ctypes.c_int, (_P, ctypes.c_char_p, ctypes.c_uint64, *_ERR)),
    "assay_capture_stop": (None, (_P,)),
    "assay_capture_count": (_U, (_P,)),
    "assay_capture_get": (ctypes.c_int, (_P, _U, ctypes.POINTER(Captured), *_ERR)),
    "assay_norm_check": (
        ctypes.c_int,
        (_U, _U, ctypes.c_bool, ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_uint64), *_ERR),
    ),
    "assay_session_info": (ctypes.c_char_p, (_P,)),
}
