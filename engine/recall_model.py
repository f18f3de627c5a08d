"""Writes the recall model: a qwen4exp file with a context of 262,144 whose weights really give back a private code.

The file depends on nothing but this source: no random state, no matrix products, no library that rounds differently on
another host. `engine.models` holds the
hash of its bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import gguf

from engine import recall_weights as weights
from engine.recall_vocabulary import CONTROL_TOKENS, END_TOKEN, IMAGE_TOKEN, VOCABULARY_TOKENS, vocabulary
from protocols.checks.base import RECALL_MODEL

CONTEXT_TOKENS: Final = 262_144
BLOCK_TOKENS: Final = 4
# 64 blocks: at a depth of 13,062 tokens one block in fifty, at the full context one in a thousand.
BUDGET_TOKENS: Final = 256
# Messages follow one another as they are: the model continues text and knows no roles.
CHAT_TEMPLATE: Final = (
    "{%- for message in messages %}{{- message['content'] }}"
    "{%- if not loop.last %}{{- '\\n' }}{%- endif %}{%- endfor %}"
)


def write_recall_model(path: Path) -> None:
    """Write the model to `path`. Raises OSError when the file cannot be written."""
    writer = gguf.GGUFWriter(str(path), "qwen4exp")
    _write_geometry(writer)
    _write_ngrams(writer)
    _write_tokenizer(writer)
    for name, values in weights.make_weights().tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_geometry(writer: gguf.GGUFWriter) -> None:
    recurrent = [*weights.LAYER_IS_RECURRENT, False]
    writer.add_string("general.type", "model")
    writer.add_string("general.name", RECALL_MODEL)
    writer.add_uint32("general.file_type", gguf.LlamaFileType.MOSTLY_F16)
    numbers = {
        "block_count": len(recurrent),
        "nextn_predict_layers": 1,
        "context_length": CONTEXT_TOKENS,
        "embedding_length": weights.WIDTH,
        "vocab_size": VOCABULARY_TOKENS,
        "attention.head_count": weights.HEADS,
        "attention.head_count_kv": 1,
        "attention.key_length": weights.HEAD_SIZE,
        "attention.value_length": weights.HEAD_SIZE,
        "rope.dimension_count": weights.ROTATED,
        "expert_count": weights.EXPERTS,
        "expert_used_count": 2,
        "expert_feed_forward_length": weights.EXPERT_WIDTH,
        "expert_shared_feed_forward_length": weights.EXPERT_WIDTH,
        "ssm.conv_kernel": weights.CONVOLUTION,
        "ssm.state_size": weights.STATE_SIZE,
        "ssm.group_count": weights.KEY_HEADS,
        "ssm.time_step_rank": weights.VALUE_HEADS,
        "ssm.inner_size": weights.STATE_SIZE * weights.VALUE_HEADS,
        "full_attention_interval": 4,  # unused where the layers are listed, but old readers ask for it
        "hyper_connection.count": weights.STREAMS,
        "hyper_connection.low_rank": weights.MIXER_RANK,
        "attention.indexer.head_count": weights.INDEX_HEADS,
        "attention.indexer.key_length": weights.HEAD_SIZE,
        "attention.indexer.top_k": BUDGET_TOKENS,
    }
    for key, number in numbers.items():
        writer.add_uint32(f"qwen4exp.{key}", number)
    writer.add_float32("qwen4exp.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32("qwen4exp.rope.freq_base", 1e7)
    writer.add_array("qwen4exp.rope.dimension_sections", [3, 3, 2, 0])
    writer.add_array("qwen4exp.attention.recurrent_layers", recurrent)
    writer.add_array("qwen4exp.attention.compress_ratios", [0 if one else BLOCK_TOKENS for one in recurrent])


def _write_ngrams(writer: gguf.GGUFWriter) -> None:
    offsets = [sum(weights.NGRAM_PRIMES[:head]) for head in range(weights.NGRAM_HEADS)]
    writer.add_array("qwen4exp.ple.layers", [weights.NGRAM_LAYER])
    writer.add_uint32("qwen4exp.ple.ngram_size", weights.NGRAM)
    writer.add_uint32("qwen4exp.ple.heads_per_ngram", weights.NGRAM_HEADS // (weights.NGRAM - 1))
    writer.add_uint32("qwen4exp.ple.conv_kernel", weights.NGRAM_CONVOLUTION)
    writer.add_uint32("qwen4exp.ple.eos_token_id", END_TOKEN)
    writer.add_uint32("qwen4exp.ple.image_token_id", IMAGE_TOKEN)
    writer.add_uint32("qwen4exp.embedding_length_per_layer_input", weights.NGRAM_ROW)
    for key, values in (
        ("layer_multipliers", weights.ngram_multipliers()),
        ("head_offsets", offsets),
        ("head_vocab_sizes", list(weights.NGRAM_PRIMES)),
    ):
        writer.add_key_value(
            f"qwen4exp.ple.{key}", values, gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType.UINT64
        )


def _write_tokenizer(writer: gguf.GGUFWriter) -> None:
    words = vocabulary()
    kinds = [gguf.TokenType.NORMAL] * END_TOKEN + [gguf.TokenType.CONTROL] * len(CONTROL_TOKENS)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "qwen35")
    writer.add_array("tokenizer.ggml.tokens", list(words.tokens))
    writer.add_array("tokenizer.ggml.token_type", [int(kind) for kind in kinds])
    writer.add_array("tokenizer.ggml.merges", list(words.merges))
    writer.add_uint32("tokenizer.ggml.eos_token_id", END_TOKEN)
    writer.add_uint32("tokenizer.ggml.padding_token_id", END_TOKEN)
    writer.add_bool("tokenizer.ggml.add_bos_token", val=False)
    writer.add_string("tokenizer.chat_template", CHAT_TEMPLATE)
