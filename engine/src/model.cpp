#include "model.h"

#include <cmath>

#include "failure.h"

namespace assay {
namespace {

struct Architecture {
    const char* name;
    int rope_type;
};

// The dense llama family, whose graphs differ only in the pairing of rotated elements, in biases and in per-head
// norms (the last two show in the tensors), and qwen4exp, which has everything of its own.
constexpr Architecture kArchitectures[] = {
    {"llama", GGML_ROPE_TYPE_NORMAL},
    {"qwen2", GGML_ROPE_TYPE_NEOX},
    {"qwen3", GGML_ROPE_TYPE_NEOX},
    {"qwen4exp", GGML_ROPE_TYPE_IMROPE},
};

[[noreturn]] void refuse_feature(const std::string& key, const std::string& what) {
    throw Failure(ASSAY_UNSUPPORTED,
                  "the model asks for " + what + " ('" + key + "'), which this engine does not compute");
}

}  // namespace

Model::Model(const std::string& path, const assay_model_settings& settings, MemoryPlan* plan)
    : plan_(plan), file_(std::make_unique<GgufFile>(path)) {
    read_hyperparameters();
    if (plan == nullptr) read_tokenizer();
    place_layers(settings.n_gpu_layers);
    weights_ = std::make_unique<Weights>(*file_, settings.use_mmap);
    describe_weights();
    weights_->load(hyper_.architecture, plan);
    shape_hash_ = hash_shapes(*file_, hyper_);
    info_ = describe_model(*this);
}

void Model::read_hyperparameters() {
    const auto architecture = file_->text_value("general.architecture");
    if (!architecture) throw Failure(ASSAY_FILE, "the model lacks the key 'general.architecture'");
    const Architecture* known = nullptr;
    std::string names;
    for (const Architecture& candidate : kArchitectures) {
        if (*architecture == candidate.name) known = &candidate;
        names += (names.empty() ? "" : ", ") + std::string(candidate.name);
    }
    if (known == nullptr) {
        throw Failure(ASSAY_UNSUPPORTED,
                      "the architecture '" + *architecture + "' is not supported, known are " + names);
    }
    Hyperparameters& h = hyper_;
    h.architecture = *architecture;
    h.rope_type = known->rope_type;
    h.name = file_->text_value("general.name").value_or("");
    const Keys keys(*file_, h.architecture + ".");
    h.n_ctx_train = keys.count("context_length", 1, 1U << 30);
    refuse_rope_scaling(keys);
    if (h.rope_type == GGML_ROPE_TYPE_IMROPE)
        read_qwen(keys);
    else
        read_llama(keys);
    read_vocabulary_size(keys);
}

void Model::read_qwen(const Keys& keys) {
    qwen_ = std::make_unique<QwenModel>(keys);
    const QwenShape& shape = qwen_->shape();
    Hyperparameters& h = hyper_;
    h.n_layer = shape.n_block();
    h.n_embd = shape.n_embd;
    h.n_ff = shape.n_ff;
    h.n_head = shape.n_head;
    h.n_head_kv = shape.n_head_kv;
    h.n_head_size_k = shape.head_size;
    h.n_head_size_v = shape.head_size;
    h.n_rot = shape.n_rot;
    h.rope_base = shape.rope_base;
    h.norm_epsilon = shape.epsilon;
}

void Model::read_llama(const Keys& keys) {
    Hyperparameters& h = hyper_;
    const std::string prefix = h.architecture + ".";
    h.n_layer = keys.count("block_count", 1, 1024);
    h.n_embd = keys.count("embedding_length", 1, 1U << 20);
    if (file_->is_array(prefix + "feed_forward_length"))
        refuse_feature(prefix + "feed_forward_length", "layers of different widths");
    h.n_ff = keys.count("feed_forward_length", 1, 1U << 24);
    for (const char* key : {"attention.head_count", "attention.head_count_kv"}) {
        if (file_->is_array(prefix + key)) refuse_feature(prefix + key, "layers with different numbers of heads");
    }
    h.n_head = keys.count("attention.head_count", 1, 4096);
    h.n_head_kv = keys.count_or("attention.head_count_kv", 1, 4096, h.n_head);
    if (h.n_head % h.n_head_kv != 0) {
        throw Failure(ASSAY_FILE, std::to_string(h.n_head) + " heads are no multiple of " +
                                      std::to_string(h.n_head_kv) + " key-value heads ('" + prefix +
                                      "attention.head_count_kv')");
    }
    const bool states_head_size =
        file_->has(prefix + "attention.key_length") && file_->has(prefix + "attention.value_length");
    if (!states_head_size && h.n_embd % h.n_head != 0) {
        throw Failure(ASSAY_FILE, "an embedding of " + std::to_string(h.n_embd) + " is no multiple of " +
                                      std::to_string(h.n_head) + " heads, and '" + prefix +
                                      "attention.key_length' or 'value_length' is absent");
    }
    h.n_head_size_k = keys.count_or("attention.key_length", 1, 4096, h.n_embd / h.n_head);
    h.n_head_size_v = keys.count_or("attention.value_length", 1, 4096, h.n_embd / h.n_head);
    h.n_rot = keys.count_or("rope.dimension_count", 2, h.n_head_size_k, h.n_head_size_k);
    if (h.n_rot % 2 != 0) {
        throw Failure(ASSAY_FILE, "rotation of " + std::to_string(h.n_rot) + " elements, an even number is needed ('" +
                                      prefix + "rope.dimension_count')");
    }
    h.rope_base = static_cast<float>(file_->real_value(prefix + "rope.freq_base").value_or(10000.0));
    if (!(h.rope_base > 0.0F) || !std::isfinite(h.rope_base)) {
        throw Failure(ASSAY_FILE, "key '" + prefix + "rope.freq_base' is not a positive number");
    }
    const auto epsilon = file_->real_value(prefix + "attention.layer_norm_rms_epsilon");
    if (!epsilon) throw Failure(ASSAY_FILE, "the model lacks the key '" + prefix + "attention.layer_norm_rms_epsilon'");
    h.norm_epsilon = static_cast<float>(*epsilon);
    if (!(h.norm_epsilon >= 0.0F) || !std::isfinite(h.norm_epsilon)) {
        throw Failure(ASSAY_FILE, "key '" + prefix + "attention.layer_norm_rms_epsilon' is not a number from 0");
    }

    // Features of the family that change the result and that the graph does not have are refused by name.
    if (file_->unsigned_value(prefix + "expert_count").value_or(0) != 0)
        refuse_feature(prefix + "expert_count", "experts");
    for (const char* key : {"attention.clamp_kqv", "attention.max_alibi_bias", "logit_scale", "residual_scale",
                            "embedding_scale", "attention.scale"}) {
        const auto value = file_->real_value(prefix + key);
        if (value && *value != 0.0) refuse_feature(prefix + key, "a setting of another architecture");
    }
    if (file_->bool_value(prefix + "attention.causal").value_or(true) == false) {
        refuse_feature(prefix + "attention.causal", "attention to later tokens");
    }
}

void Model::refuse_rope_scaling(const Keys& keys) const {
    const auto scaling = file_->text_value(keys.full("rope.scaling.type"));
    if (scaling && *scaling != "none")
        refuse_feature(keys.full("rope.scaling.type"), "rope scaling of type '" + *scaling + "'");
    for (const char* key : {"rope.scale_linear", "rope.scaling.factor"}) {
        const auto factor = file_->real_value(keys.full(key));
        if (!scaling && factor && *factor != 0.0 && *factor != 1.0) refuse_feature(keys.full(key), "rope scaling");
    }
}

void Model::read_vocabulary_size(const Keys& keys) {
    const GgufTensor* embedding = file_->find_tensor("token_embd.weight");
    if (embedding == nullptr) throw Failure(ASSAY_FILE, "the model lacks the tensor 'token_embd.weight'");
    if (embedding->ne[1] > INT32_MAX) throw Failure(ASSAY_FILE, "tensor 'token_embd.weight' has too many rows");
    hyper_.n_vocab = static_cast<uint32_t>(embedding->ne[1]);
    if (keys.has("vocab_size") && keys.count("vocab_size", 1, INT32_MAX) != hyper_.n_vocab) {
        throw Failure(ASSAY_FILE, "key '" + keys.full("vocab_size") + "' differs from the " + std::to_string(hyper_.n_vocab) +
                                      " rows of 'token_embd.weight'");
    }
}

void Model::read_tokenizer() {
    chat_template_ = file_->text_value("tokenizer.chat_template");
    const auto kind = file_->text_value("tokenizer.ggml.model");
    if (!kind || *kind == "none" || *kind == "no_vocab") return;
    VocabularySource source;
    source.model = *kind;
    source.pre = file_->text_value("tokenizer.ggml.pre").value_or("");
    auto tokens = file_->text_array("tokenizer.ggml.tokens");
    if (!tokens) throw Failure(ASSAY_FILE, "the model lacks the key 'tokenizer.ggml.tokens'");
    if (tokens->size() != hyper_.n_vocab) {
        throw Failure(ASSAY_FILE, "the vocabulary has " + std::to_string(tokens->size()) +
                                      " tokens and 'token_embd.weight' " + std::to_string(hyper_.n_vocab) + " rows");
    }
    source.tokens = std::move(*tokens);
    if (const auto types = file_->integer_array("tokenizer.ggml.token_type")) {
        if (types->size() != source.tokens.size()) {
            throw Failure(ASSAY_FILE, "'tokenizer.ggml.token_type' has " + std::to_string(types->size()) +
                                          " entries for " + std::to_string(source.tokens.size()) + " tokens");
        }
        for (const int64_t type : *types) source.types.push_back(static_cast<int32_t>(type));
    } else {
        source.types.assign(source.tokens.size(), 1);
    }
    source.merges = file_->text_array("tokenizer.ggml.merges").value_or(std::vector<std::string>{});
    const auto id = [&](const char* key) -> int32_t {
        const auto value = file_->unsigned_value(key);
        if (!value || *value == UINT32_MAX) return -1;  // some writers store "none" as the largest number
        if (*value >= hyper_.n_vocab) {
            throw Failure(ASSAY_FILE, std::string("key '") + key + "' names token " + std::to_string(*value) + " of " +
                                          std::to_string(hyper_.n_vocab));
        }
        return static_cast<int32_t>(*value);
    };
    source.bos = id("tokenizer.ggml.bos_token_id");
    source.eos = id("tokenizer.ggml.eos_token_id");
    source.eot = id("tokenizer.ggml.eot_token_id");
    source.unk = id("tokenizer.ggml.unknown_token_id");
    source.pad = id("tokenizer.ggml.padding_token_id");
    // Files of the llama 3 vocabulary rely on their pre-tokenizer for the default.
    const bool adds_by_default = source.pre == "llama-bpe" || source.pre == "llama3" || source.pre == "llama-v3";
    source.add_bos = file_->bool_value("tokenizer.ggml.add_bos_token").value_or(adds_by_default);
    try {
        tokenizer_ = Tokenizer::create(std::move(source));
    } catch (const std::runtime_error& error) {
        throw Failure(ASSAY_UNSUPPORTED, std::string("cannot use the tokenizer of the model: ") + error.what());
    }
}

void Model::place_layers(int32_t n_gpu_layers) {
    const Devices& all = devices();
    if (n_gpu_layers > 0 && all.accelerator == nullptr) {
        throw Failure(ASSAY_UNSUPPORTED,
                      "n_gpu_layers is " + std::to_string(n_gpu_layers) +
                          " but the ggml in use has no accelerator; use 0, or a build of ggml for the GPU");
    }
    if (n_gpu_layers < 0)
        throw Failure(ASSAY_INVALID, "n_gpu_layers is " + std::to_string(n_gpu_layers) + ", 0 or more is needed");
    const auto on_accelerator = static_cast<uint32_t>(n_gpu_layers);
    uses_accelerator_ = on_accelerator > 0;
    // The last layers go first, so that data crosses between devices once; the output follows after all layers.
    for (uint32_t layer = 0; layer < hyper_.n_layer; ++layer) {
        layer_devices_.push_back(hyper_.n_layer - layer <= on_accelerator ? all.accelerator : all.cpu);
    }
    output_device_ = on_accelerator > hyper_.n_layer ? all.accelerator : all.cpu;
}

void Model::describe_weights() {
    const Hyperparameters& h = hyper_;
    const int64_t n_embd = h.n_embd;
    const int64_t n_ff = h.n_ff;
    const int64_t n_q = static_cast<int64_t>(h.n_head) * h.n_head_size_k;
    const int64_t n_attended = static_cast<int64_t>(h.n_head) * h.n_head_size_v;
    const int64_t n_k = h.n_embd_k();
    const int64_t n_v = h.n_embd_v();
    const int64_t n_vocab = h.n_vocab;
    Weights& w = *weights_;
    ggml_backend_dev_t cpu = devices().cpu;

    // Rows are looked up on the host: the tokens are there, and the table is large.
    token_embedding_ = w.add("token_embd.weight", {n_embd, n_vocab}, WeightUse::rows, cpu);
    output_ = w.add("output.weight", {n_embd, n_vocab}, WeightUse::product, output_device_, true);
    if (output_ == nullptr) output_ = w.add("token_embd.weight", {n_embd, n_vocab}, WeightUse::product, output_device_);
    if (qwen_) {
        qwen_->describe(w, *file_, [&](uint32_t layer) { return layer_devices_[layer]; }, output_device_);
        return;
    }
    rope_factors_ = w.add("rope_freqs.weight", {h.n_rot / 2}, WeightUse::vector, cpu, true);
    output_norm_ = w.add("output_norm.weight", {n_embd}, WeightUse::vector, output_device_);

    const bool has_head_norms = h.architecture == "qwen3";
    const bool has_biases = h.architecture == "qwen2";
    for (uint32_t i = 0; i < h.n_layer; ++i) {
        const std::string block = "blk." + std::to_string(i) + ".";
        ggml_backend_dev_t device = layer_devices_[i];
        LlamaLayer layer;
        layer.attention_norm = w.add(block + "attn_norm.weight", {n_embd}, WeightUse::vector, device);
        layer.k = w.add(block + "attn_k.weight", {n_embd, n_k}, WeightUse::product, device);
        layer.o = w.add(block + "attn_output.weight", {n_attended, n_embd}, WeightUse::product, device);
        layer.q_bias = w.add(block + "attn_q.bias", {n_q}, WeightUse::vector, device, !has_biases);
        layer.k_bias = w.add(block + "attn_k.bias", {n_k}, WeightUse::vector, device, !has_biases);
        layer.v_bias = w.add(block + "attn_v.bias", {n_v}, WeightUse::vector, device, !has_biases);
        layer.o_bias = w.add(block + "attn_output.bias", {n_embd}, WeightUse::vector, device, true);
        if (layer.q_bias == nullptr && layer.v_bias == nullptr) {
            layer.qv = w.add_joined(block + "attn_q.weight", block + "attn_v.weight", n_embd, n_q, n_v, device);
        }
        if (layer.qv == nullptr) {
            layer.q = w.add(block + "attn_q.weight", {n_embd, n_q}, WeightUse::product, device);
            layer.v = w.add(block + "attn_v.weight", {n_embd, n_v}, WeightUse::product, device);
        }
        if (has_head_norms) {
            layer.q_norm = w.add(block + "attn_q_norm.weight", {h.n_head_size_k}, WeightUse::vector, device);
            layer.k_norm = w.add(block + "attn_k_norm.weight", {h.n_head_size_k}, WeightUse::vector, device);
        }
        layer.ffn_norm = w.add(block + "ffn_norm.weight", {n_embd}, WeightUse::vector, device);
        layer.gate_up = w.add_joined(block + "ffn_gate.weight", block + "ffn_up.weight", n_embd, n_ff, n_ff, device);
        if (layer.gate_up == nullptr) {
            layer.gate = w.add(block + "ffn_gate.weight", {n_embd, n_ff}, WeightUse::product, device);
            layer.up = w.add(block + "ffn_up.weight", {n_embd, n_ff}, WeightUse::product, device);
        }
        layer.down = w.add(block + "ffn_down.weight", {n_ff, n_embd}, WeightUse::product, device);
        layers_.push_back(layer);
    }
}

}  // namespace assay
