"""Malformed qwen4exp files: an error that names what is wrong, never the end of the process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from qwen_data import session, tiny_model
from qwen_files import TinyFile

from engine.build import installed_build
from engine.worker import EngineWorker
from protocols.errors import EngineError


@pytest.fixture(scope="module")
def source() -> TinyFile:
    return TinyFile(tiny_model("tiny-a"))


@pytest.fixture(scope="module")
def loader() -> Iterator[EngineWorker]:
    """Yield a worker without a model: what is refused leaves it so."""
    with EngineWorker(installed_build().library) as worker:
        yield worker


def test_an_unchanged_copy_loads(source: TinyFile, tmp_path: Path) -> None:
    with EngineWorker(installed_build().library) as worker:
        assert worker.load(source.write(tmp_path / "same.gguf"))["architecture"] == "qwen4exp"


BAD = [
    ("ssm.conv_kernel", 0, "ssm.conv_kernel"),
    ("ssm.state_size", 0, "ssm.state_size"),
    ("ssm.group_count", 0, "ssm.group_count"),
    ("ssm.group_count", 3, "ssm.time_step_rank"),
    ("ssm.time_step_rank", 0, "ssm.time_step_rank"),
    ("ssm.inner_size", 0, "ssm.inner_size"),
    ("ssm.inner_size", 32, "ssm.inner_size"),
    ("attention.indexer.head_count", 0, "indexer.head_count"),
    ("attention.indexer.key_length", 0, "indexer.key_length"),
    ("attention.indexer.key_length", 8, "indexer.key_length"),
    ("attention.indexer.top_k", 0, "indexer.top_k"),
    ("attention.indexer.top_k", 30, "multiple of the ratio 4"),
    ("attention.compress_ratios", [0, 0, 4, 0, 0, 8, 4], "differs between layers"),
    ("attention.compress_ratios", [0, 0, 1, 0, 0, 1, 1], "2 or more is needed"),
    ("attention.compress_ratios", [0, 0, 0, 0, 0, 0, 4], "is 0 for layer 2, which has an indexer"),
    ("attention.compress_ratios", [0, 0, 4, 0, 0, 4, 0], "is 0 for layer 6"),
    ("attention.compress_ratios", [0, 0, 4, 0, 0, 4], "has 6 entries, 7 are needed"),
    ("attention.recurrent_layers", [True, True, False], "3 entries for 6 layers"),
    ("attention.recurrent_layers", [True, True, False, True, True, False, True], "draft block"),
    ("attention.head_count_kv", 3, "head_count_kv"),
    ("attention.head_count", 0, "head_count"),
    ("attention.value_length", 16, "value_length"),
    ("hyper_connection.count", 1, "hyper_connection.count"),
    ("hyper_connection.count", 0, "hyper_connection.count"),
    ("hyper_connection.low_rank", 0, "hyper_connection.low_rank"),
    ("rope.dimension_count", 15, "odd"),
    ("rope.dimension_count", 64, "rope.dimension_count"),
    ("rope.dimension_sections", [8, 0, 0, 0], "an axis"),
    ("rope.dimension_sections", [3, 3], "3 are needed"),
    ("rope.freq_base", -1.0, "rope.freq_base"),
    ("rope.scaling.type", "yarn", "rope scaling of type 'yarn'"),
    ("expert_count", 0, "expert_count"),
    ("expert_used_count", 9, "expert_used_count"),
    ("nextn_predict_layers", 2, "nextn_predict_layers"),
    ("nextn_predict_layers", 7, "nextn_predict_layers"),
    ("block_count", 0, "block_count"),
    ("block_count", 1, "nextn_predict_layers"),
    ("vocab_size", 511, "vocab_size"),
    ("ple.layers", [0, 1], "several layers"),
    ("ple.layers", [2], "not linear"),
    ("ple.layers", [9], "names layer 9"),
    ("ple.layers", [-1], "names layer -1"),
    ("ple.ngram_size", 1, "ple.ngram_size"),
    ("ple.ngram_size", 9, "ple.ngram_size"),
    ("ple.heads_per_ngram", 64, "more than 64 heads"),
    ("ple.heads_per_ngram", 3, "embedding_length_per_layer_input"),
    ("ple.conv_kernel", 0, "ple.conv_kernel"),
    ("ple.layer_multipliers", [1, 2], "2 entries, 3 are needed"),
    ("ple.layer_multipliers", [1, 2, 2**63], "layer_multipliers"),
    ("ple.head_offsets", [0, 1, 2], "3 entries, 4 are needed"),
    ("ple.head_offsets", [0, 1009, 2022, 2**31], "head_offsets"),
    ("ple.head_offsets", [0, 1009, 2022, 2**31 - 5], "beyond 2\\^31 - 1"),
    ("ple.head_offsets", [0, 1009, 2022, 3080], "4101 of 16 are needed"),
    ("ple.head_vocab_sizes", [0, 1013, 1019, 1021], "head_vocab_sizes"),
    ("embedding_length_per_layer_input", 0, "embedding_length_per_layer_input"),
    ("attention.layer_norm_rms_epsilon", float("nan"), "layer_norm_rms_epsilon"),
]


@pytest.mark.parametrize(("key", "value", "words"), BAD)
def test_a_value_that_cannot_be_is_refused_by_name(
    loader: EngineWorker, source: TinyFile, tmp_path: Path, key: str, value: object, words: str
) -> None:
    path = source.write(tmp_path / "bad.gguf", changes={key: value})
    with pytest.raises(EngineError, match=words):
        loader.load(path)
    assert loader.build_info()["abi"] == 1


OPTIONAL = {"vocab_size", "full_attention_interval", "nextn_predict_layers", "ple.image_token_id"}


def test_each_missing_key_is_named(loader: EngineWorker, source: TinyFile, tmp_path: Path) -> None:
    for key in source.own_keys():
        if key in OPTIONAL:
            continue
        path = source.write(tmp_path / "bad.gguf", without=(key,))
        with pytest.raises(EngineError, match=r"key|tensor"):
            loader.load(path)
    assert loader.build_info()["abi"] == 1


def test_each_missing_or_unknown_tensor_is_named(loader: EngineWorker, source: TinyFile, tmp_path: Path) -> None:
    for name in source.tensors:
        if name == "output.weight":
            continue
        path = source.write(tmp_path / "bad.gguf", without=(name,))
        with pytest.raises(EngineError, match=r"lacks the tensor|draft block only"):
            loader.load(path)
    path = source.write(tmp_path / "bad.gguf", renamed={"output.weight": "output_norm.weight"})
    with pytest.raises(EngineError, match=r"'output_norm\.weight' is not part"):
        loader.load(path)


def test_a_file_without_a_head_uses_the_embedding(source: TinyFile, tmp_path: Path) -> None:
    path = source.write(tmp_path / "tied.gguf", without=("output.weight",))
    with EngineWorker(installed_build().library) as worker:
        worker.load(path)
        worker.open_session(session(draft_tokens=2, draft_vocabulary=100))
        assert np.isfinite(worker.decode([1, 2, 3], start=0)).all()
        assert max(worker.draft_propose(1, 2)) < 100


@pytest.mark.timeout(600)
def test_flipped_header_bytes_never_end_the_process(source: TinyFile, tmp_path: Path) -> None:
    original = source.write(tmp_path / "flip.gguf").read_bytes()
    rng = np.random.default_rng(99)
    path = tmp_path / "flip.gguf"
    n_refused = 0
    worker = EngineWorker(installed_build().library)
    try:
        for _ in range(150):
            data = bytearray(original)
            for at in rng.integers(0, source.header_bytes, rng.integers(1, 4)):
                data[at] ^= 1 << rng.integers(0, 8)
            path.write_bytes(bytes(data))
            try:
                worker.load(path)
            except EngineError:
                # Another load is only possible where the process lives on.
                assert worker.build_info()["abi"] == 1
                n_refused += 1
                continue
            worker.open_session(session(context_tokens=64))
            worker.decode([1, 2, 3], start=0)
            worker.close()
            worker = EngineWorker(installed_build().library)
    finally:
        worker.close()
    assert n_refused > 20
