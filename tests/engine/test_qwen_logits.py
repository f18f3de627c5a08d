"""qwen4exp against transformers and upstream: logits, selected cells, table rows, residual streams."""

from __future__ import annotations

import json

import numpy as np
import pytest
from qwen_data import BUDGET, HERE, MODELS, PROMPTS, RATIO, SAME, SAME_HALF, distance, opened, oracle, stepwise

from engine.worker import EngineWorker


@pytest.mark.parametrize("flash", [False, True], ids=["products", "fused"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_equal_the_reference_in_one_ubatch_in_chunks_and_token_by_token(
    qwen: EngineWorker, qwen_name: str, prompt: str, flash: bool
) -> None:
    arrays = oracle(qwen_name)
    tokens, needed = arrays[f"{prompt}.ids"].tolist(), arrays[f"{prompt}.logits_hf"]
    for ubatch in (512, 32, 7, 1):
        opened(qwen, ubatch_tokens=ubatch, has_flash_attention=flash)
        assert distance(qwen.decode(tokens, start=0), needed) < SAME
    opened(qwen, has_flash_attention=flash)
    assert distance(stepwise(qwen, tokens, 0), needed) < SAME


@pytest.mark.parametrize("prompt", PROMPTS)
def test_operators_that_every_back_end_has_give_the_same(qwen: EngineWorker, qwen_name: str, prompt: str) -> None:
    arrays = oracle(qwen_name)
    tokens, needed = arrays[f"{prompt}.ids"].tolist(), arrays[f"{prompt}.logits_hf"]
    for ubatch in (512, 7):
        opened(qwen, ubatch_tokens=ubatch, has_plain_operators=True)
        assert distance(qwen.decode(tokens, start=0), needed) < SAME


@pytest.mark.parametrize("plain", [False, True], ids=["own", "plain"])
@pytest.mark.parametrize("strip_bytes", [1, 30_000])
def test_queries_in_strips_give_the_same_and_less_memory(
    qwen: EngineWorker, qwen_name: str, strip_bytes: int, plain: bool
) -> None:
    arrays = oracle(qwen_name)
    for prompt in ("short", "long"):
        tokens, needed = arrays[f"{prompt}.ids"].tolist(), arrays[f"{prompt}.logits_hf"]
        for flash in (False, True):
            opened(qwen, strip_bytes=strip_bytes, has_plain_operators=plain, has_flash_attention=flash)
            assert distance(qwen.decode(tokens, start=0), needed) < SAME
            assert qwen.work()["n_allocations"] <= 4


@pytest.mark.parametrize("flash", [False, True], ids=["products", "fused"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_half_precision_caches_stay_close_and_change_a_token_only_at_a_near_tie(
    qwen: EngineWorker, qwen_name: str, prompt: str, flash: bool
) -> None:
    arrays = oracle(qwen_name)
    tokens, needed = arrays[f"{prompt}.ids"].tolist(), arrays[f"{prompt}.logits_hf"]
    opened(qwen, kv_type="f16", has_flash_attention=flash)
    found = qwen.decode(tokens, start=0)
    assert distance(found, needed) < SAME_HALF
    for row, (own, reference) in enumerate(zip(found, needed, strict=True)):
        best, second = np.sort(reference)[::-1][:2]
        assert own.argmax() == reference.argmax() or best - second < SAME_HALF, row


@pytest.mark.parametrize("prompt", PROMPTS)
def test_quantised_caches_keep_the_selection_and_most_tokens(qwen: EngineWorker, qwen_name: str, prompt: str) -> None:
    arrays = oracle(qwen_name)
    tokens, needed = arrays[f"{prompt}.ids"].tolist(), arrays[f"{prompt}.logits_hf"]
    opened(qwen, kv_type="q8_0")
    found = qwen.decode(tokens, start=0)
    assert np.isfinite(found).all()
    assert np.mean(found.argmax(axis=1) == needed.argmax(axis=1)) > 0.9


@pytest.mark.parametrize("prompt", ["long", "ngram", "text"])
def test_each_query_selects_the_cells_of_the_reference(qwen: EngineWorker, qwen_name: str, prompt: str) -> None:
    arrays = oracle(qwen_name)
    tokens, ratio = arrays[f"{prompt}.ids"].tolist(), RATIO[qwen_name]
    kept_blocks = BUDGET[qwen_name] // ratio
    for plain in (False, True):
        opened(qwen, has_plain_operators=plain)
        qwen.capture(["selected.*"])
        qwen.decode(tokens, start=0)
        found = qwen.captured()
        layers = [name.rsplit(".", 1)[1] for name in arrays if name.startswith(f"{prompt}.qsa_selected.")]
        assert [entry.name for entry in found] == [f"selected.{layer}" for layer in sorted(layers, key=int)]
        for entry in found:
            packed = arrays[f"{prompt}.qsa_selected.{entry.name.rsplit('.', 1)[1]}"]
            needed = np.unpackbits(packed, axis=1)[:, : len(tokens)].astype(bool)
            for query, blocks in enumerate(entry.values):
                n_complete = (query + 1) // ratio
                cells = np.zeros(len(tokens), bool)
                for block in blocks[: min(n_complete, kept_blocks)]:
                    cells[block * ratio : (block + 1) * ratio] = True
                cells[n_complete * ratio : query + 1] = True
                assert (cells == needed[query]).all(), (entry.name, query)


def test_a_dense_engine_would_be_far_off(qwen_name: str) -> None:
    summary = json.loads((HERE / "oracle" / "summary.json").read_text())
    found = [value for key, value in _walk(summary) if qwen_name in key and "long" in key and "dense" in key]
    assert found
    assert min(found) > 0.5


def _walk(node: object, path: str = "") -> list[tuple[str, float]]:
    if isinstance(node, dict):
        return [pair for key, value in node.items() for pair in _walk(value, f"{path}/{key}")]
    return [(path, float(node))] if isinstance(node, int | float) and not isinstance(node, bool) else []


@pytest.mark.parametrize("ubatch", [512, 7, 1])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_table_rows_equal_the_reference_across_ubatches(
    qwen: EngineWorker, qwen_name: str, prompt: str, ubatch: int
) -> None:
    arrays = oracle(qwen_name)
    opened(qwen, ubatch_tokens=ubatch)
    qwen.capture(["ple.rows"])
    qwen.decode(arrays[f"{prompt}.ids"].tolist(), start=0)
    found = np.concatenate([entry.values.reshape(-1, entry.values.shape[-1]) for entry in qwen.captured()])
    assert (found == arrays[f"{prompt}.ple_rows"]).all()


def test_the_residual_streams_equal_the_reference_after_every_layer(qwen: EngineWorker, qwen_name: str) -> None:
    arrays = oracle(qwen_name)
    opened(qwen)
    qwen.capture(["residual.*"])
    qwen.decode(arrays["short.ids"].tolist(), start=0)
    found = qwen.captured()
    needed = arrays["short.residual"]
    assert [entry.name for entry in found] == [f"residual.{i}" for i in range(len(needed))]
    for entry, layer in zip(found, needed, strict=True):
        assert distance(entry.values.reshape(layer.shape), layer) < SAME


def test_greedy_tokens_equal_the_reference(qwen: EngineWorker, qwen_name: str) -> None:
    arrays = oracle(qwen_name)
    tokens, needed = arrays["long.ids"].tolist(), arrays["long.greedy"].tolist()
    opened(qwen)
    row = qwen.decode(tokens, start=0, rows="last")
    for i, token in enumerate(needed):
        assert int(row[-1].argmax()) == token
        row = qwen.decode([token], start=len(tokens) + i)


def test_the_tokenizer_gives_upstreams_ids(qwen: EngineWorker) -> None:
    for case in json.loads((HERE / "oracle" / "tokenizer.json").read_text()):
        assert qwen.tokenize(case["text"], parse_special=False) == case["ids"]
        assert qwen.tokenize(case["text"], parse_special=True) == case["ids_special"]


@pytest.mark.parametrize("cache_bytes", [1 << 10, 1 << 12, 1 << 26])
def test_a_small_page_cache_changes_no_result_and_stays_in_its_bounds(
    qwen: EngineWorker, qwen_name: str, cache_bytes: int
) -> None:
    arrays = oracle(qwen_name)
    tokens = arrays["ngram.ids"].tolist()
    opened(qwen)
    needed = qwen.decode(tokens, start=0)
    opened(qwen, ple_cache_bytes=cache_bytes)
    assert (qwen.decode(tokens, start=0) == needed).all()
    use = qwen.session_info()["ple"]
    assert use["cached_bytes"] <= use["cache_bytes_max"] <= cache_bytes
    assert use["n_rows"] == arrays["ngram.ple_rows"].size
    assert np.unique(arrays["ngram.ple_rows"]).size <= use["n_misses"] <= use["n_rows"]
    assert qwen.work()["n_ple_misses"] == use["n_misses"]


def test_every_tiny_model_is_here() -> None:
    assert {path.stem for path in (HERE / "models").glob("*.gguf")} == set(MODELS)
