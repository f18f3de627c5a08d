// Metadata of qwen4exp: every rule that a file can break is a Failure, never an abort later.
#include <algorithm>
#include <cmath>

#include "failure.h"
#include "qwen_model.h"

namespace assay {
namespace {

// Interleaved M-RoPE: pair i turns with y if i % 3 == 1, with x if i % 3 == 2, else with t. Where the sections do not
// cover every pair, programs disagree about the rest, so such files are refused.
bool covers_every_pair(const std::array<int, 4>& sections, uint32_t n_pairs) {
    for (uint32_t i = 0; i < n_pairs; ++i) {
        if (i >= 3 * static_cast<uint32_t>(sections[i % 3])) return false;
    }
    return sections[3] == 0 && static_cast<uint32_t>(sections[0] + sections[1] + sections[2]) == n_pairs;
}

}  // namespace

QwenModel::QwenModel(const Keys& keys) {
    QwenShape& s = shape_;
    const uint32_t n_block = keys.count("block_count", 1, 1024);
    s.n_mtp = keys.count_or("nextn_predict_layers", 0, 1, 0);
    if (s.n_mtp >= n_block) keys.refuse("nextn_predict_layers", "leaves no layer for the trunk");
    s.n_layer = n_block - s.n_mtp;
    s.n_embd = keys.count("embedding_length", 1, 1U << 20);
    s.epsilon = keys.real("attention.layer_norm_rms_epsilon", 0.0, 1.0);
    s.n_expert = keys.count("expert_count", 1, 65536);
    s.n_expert_used = keys.count("expert_used_count", 1, s.n_expert);
    s.n_ff = keys.count("expert_feed_forward_length", 1, 1U << 24);
    s.n_ff_shared = keys.count("expert_shared_feed_forward_length", 1, 1U << 24);
    s.expert_scale = keys.real_or("expert_weights_scale", -1e6, 1e6, 1.0F);
    if (s.expert_scale == 0.0F) s.expert_scale = 1.0F;
    s.hc = keys.count("hyper_connection.count", 2, 64);
    s.hc_rank = keys.count("hyper_connection.low_rank", 1, 1U << 20);
    s.conv_kernel = keys.count("ssm.conv_kernel", 2, 64);
    s.state_size = keys.count("ssm.state_size", 1, 4096);
    s.n_key_heads = keys.count("ssm.group_count", 1, 4096);
    s.n_value_heads = keys.count("ssm.time_step_rank", 1, 4096);
    if (s.n_value_heads % s.n_key_heads != 0) {
        keys.refuse("ssm.time_step_rank", "is " + std::to_string(s.n_value_heads) + ", a multiple of the " +
                                              std::to_string(s.n_key_heads) + " key heads is needed");
    }
    if (keys.count("ssm.inner_size", 1, 1U << 30) != s.inner_size()) {
        keys.refuse("ssm.inner_size", "is not the " + std::to_string(s.inner_size()) + " elements of the value heads");
    }
    read_attention(keys);
    read_layers(keys);
    check_ratios(keys);
    if (keys.has("ple.layers")) read_ple(keys);
}

void QwenModel::read_attention(const Keys& keys) {
    QwenShape& s = shape_;
    s.n_head = keys.count("attention.head_count", 1, 4096);
    s.n_head_kv = keys.count("attention.head_count_kv", 1, 4096);
    if (s.n_head % s.n_head_kv != 0) {
        keys.refuse("attention.head_count_kv", "is " + std::to_string(s.n_head_kv) + " and does not divide the " +
                                                   std::to_string(s.n_head) + " heads");
    }
    s.head_size = keys.count("attention.key_length", 2, 4096);
    if (keys.count("attention.value_length", 1, 4096) != s.head_size)
        keys.refuse("attention.value_length", "differs from the length of the keys");
    s.attention_scale = keys.real_or("attention.scale", 0.0, 1e6, 0.0F);
    if (s.attention_scale == 0.0F) s.attention_scale = 1.0F / std::sqrt(static_cast<float>(s.head_size));
    s.n_rot = keys.count("rope.dimension_count", 2, s.head_size);
    if (s.n_rot % 2 != 0) keys.refuse("rope.dimension_count", "is odd");
    s.rope_base = keys.real("rope.freq_base", 1e-6, 1e15);
    if (keys.file().is_array(keys.full("rope.dimension_sections"))) {
        const std::vector<int64_t> sections = keys.integers("rope.dimension_sections", 3, 0, s.n_rot);
        std::copy(sections.begin(), sections.end(), s.sections.begin());
    }
    if (!covers_every_pair(s.sections, s.n_rot / 2)) {
        keys.refuse("rope.dimension_sections",
                    "does not give each of the " + std::to_string(s.n_rot / 2) + " rotated pairs an axis");
    }
    s.n_index_heads = keys.count("attention.indexer.head_count", 1, 4096);
    s.index_size = keys.count("attention.indexer.key_length", s.n_rot, 4096);
    s.budget = keys.count("attention.indexer.top_k", 1, 1U << 28);
}

void QwenModel::read_layers(const Keys& keys) {
    QwenShape& s = shape_;
    if (keys.has("attention.recurrent_layers")) {
        const auto listed = keys.file().bool_array(keys.full("attention.recurrent_layers"));
        if (listed->size() < s.n_layer) {
            keys.refuse("attention.recurrent_layers", "has " + std::to_string(listed->size()) + " entries for " +
                                                          std::to_string(s.n_layer) + " layers");
        }
        s.is_linear.assign(listed->begin(), listed->begin() + s.n_layer);
        for (size_t i = s.n_layer; i < std::min<size_t>(listed->size(), s.n_block()); ++i) {
            if ((*listed)[i]) keys.refuse("attention.recurrent_layers", "makes the draft block a linear layer");
        }
        return;
    }
    const uint32_t interval = keys.count_or("full_attention_interval", 1, 1024, 4);
    for (uint32_t i = 0; i < s.n_layer; ++i) s.is_linear.push_back((i + 1) % interval != 0);
}

void QwenModel::check_ratios(const Keys& keys) {
    QwenShape& s = shape_;
    std::vector<int64_t> ratios;
    if (keys.file().is_array(keys.full("attention.compress_ratios"))) {
        ratios = keys.integers("attention.compress_ratios", s.n_block(), 0, 4096);
    } else {
        ratios.assign(s.n_block(), keys.count("attention.compress_ratios", 0, 4096));
    }
    for (uint32_t i = 0; i < s.n_block(); ++i) {
        const bool is_sparse = i >= s.n_layer || !s.is_linear[i];
        if (!is_sparse) continue;
        const auto ratio = static_cast<uint32_t>(ratios[i]);
        const std::string of = " for layer " + std::to_string(i);
        // Some converters write 0 here, and others run such a file dense without a word.
        if (ratio == 0) keys.refuse("attention.compress_ratios", "is 0" + of + ", which has an indexer; convert it again");
        if (ratio == 1) keys.refuse("attention.compress_ratios", "is 1" + of + ", 2 or more is needed");
        if (s.ratio != 0 && s.ratio != ratio) keys.refuse("attention.compress_ratios", "differs between layers");
        s.ratio = ratio;
    }
    if (s.ratio == 0) keys.refuse("attention.recurrent_layers", "leaves no layer with attention");
    if (s.budget % s.ratio != 0) {
        keys.refuse("attention.indexer.top_k", "is " + std::to_string(s.budget) + ", a multiple of the ratio " +
                                                   std::to_string(s.ratio) + " is needed");
    }
}

void QwenModel::read_ple(const Keys& keys) {
    QwenShape& s = shape_;
    PleShape& p = s.ple;
    const auto layers = keys.file().integer_array(keys.full("ple.layers"));
    if (layers->empty()) return;
    if (layers->size() > 1) keys.refuse("ple.layers", "names several layers, one is supported");
    const int64_t layer = layers->front();
    if (layer < 0 || layer >= s.n_layer) keys.refuse("ple.layers", "names layer " + std::to_string(layer));
    if (!s.is_linear[static_cast<size_t>(layer)]) {
        keys.refuse("ple.layers", "names layer " + std::to_string(layer) + ", which is not linear");
    }
    p.layer = static_cast<int32_t>(layer);
    p.n_gram = keys.count("ple.ngram_size", 2, 8);
    p.heads_per_gram = keys.count("ple.heads_per_ngram", 1, 64);
    p.kernel = keys.count("ple.conv_kernel", 2, 64);
    p.row_width = keys.count("embedding_length_per_layer_input", 1, s.n_embd);
    if (p.n_heads() > 64) keys.refuse("ple.heads_per_ngram", "makes more than 64 heads");
    if (uint64_t{p.n_heads()} * p.row_width != s.n_embd) {
        keys.refuse("embedding_length_per_layer_input",
                    "times " + std::to_string(p.n_heads()) + " heads is not the embedding length");
    }
    p.eos = static_cast<int32_t>(keys.count("ple.eos_token_id", 0, INT32_MAX));
    p.image = static_cast<int32_t>(keys.count_or("ple.image_token_id", 0, INT32_MAX, 0));
    if (p.image == 0) p.image = p.eos;
    const auto take = [&](const char* key, size_t n, int64_t smallest, int64_t largest) {
        const std::vector<int64_t> found = keys.integers(key, n, smallest, largest);
        return std::vector<uint64_t>(found.begin(), found.end());
    };
    p.multipliers = take("ple.layer_multipliers", p.n_gram, 0, INT64_MAX);
    p.offsets = take("ple.head_offsets", p.n_heads(), 0, INT32_MAX);
    p.sizes = take("ple.head_vocab_sizes", p.n_heads(), 1, INT32_MAX);
    for (uint32_t i = 0; i < p.n_heads(); ++i) {
        if (p.offsets[i] + p.sizes[i] > INT32_MAX) keys.refuse("ple.head_offsets", "reaches beyond 2^31 - 1 rows");
    }
}

}  // namespace assay
