// Writes a tiny random model with gguf.h (an implementation that the engine does not use for reading), and
// computes it in double precision.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "ggml.h"
#include "gguf.h"

namespace core {

struct TinyShape {
    std::string architecture = "llama";
    int64_t n_layer = 2;
    int64_t n_embd = 256;  // whole blocks of every quantised type
    int64_t n_head = 8;
    int64_t n_head_kv = 2;
    int64_t n_ff = 512;
    int64_t n_vocab = 288;  // 256 byte tokens, then control tokens
    int64_t n_rot = 0;      // 0: the whole head, and the key is left out
    float rope_base = 10000.0F;
    float epsilon = 1e-5F;
    ggml_type type = GGML_TYPE_F32;
    bool is_tied = true;
    bool has_biases = false;
    bool has_head_norms = false;
    bool has_rope_factors = false;
    bool is_scattered = false;
    ggml_type embedding_type = GGML_TYPE_COUNT;  // COUNT: as the other matrices
    uint32_t seed = 1;

    int64_t n_head_size() const { return n_embd / n_head; }
    int64_t n_rotated() const { return n_rot == 0 ? n_head_size() : n_rot; }
    bool is_neox() const { return architecture != "llama"; }
};

// A file in the temporary folder that disappears with the object.
class TemporaryFile {
public:
    TemporaryFile() {
        path_ = (std::filesystem::temp_directory_path() / "assay-core-XXXXXX").string();
        const int fd = mkstemp(path_.data());
        if (fd < 0) std::abort();
        close(fd);
    }
    ~TemporaryFile() { std::remove(path_.c_str()); }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    const std::string& path() const { return path_; }

    std::vector<char> read() const {
        std::ifstream in(path_, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    }
    void write(const std::vector<char>& bytes) const {
        std::ofstream out(path_, std::ios::binary | std::ios::trunc);
        out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }

private:
    std::string path_;
};

// The byte alphabet of GPT-2 vocabularies: printable bytes stand for themselves, the others are shifted to 256.
inline std::string byte_token(int byte) {
    const auto is_printable = [](int b) {
        return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
    };
    int code = byte;
    if (!is_printable(byte)) {
        code = 256;
        for (int b = 0; b < byte; ++b) code += is_printable(b) ? 0 : 1;
    }
    if (code < 0x80) return std::string(1, static_cast<char>(code));
    return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

class TinyModel {
public:
    explicit TinyModel(const TinyShape& shape) : shape_(shape), random_(shape.seed * 2654435761U + 1) {
        const TinyShape& s = shape_;
        const int64_t n_q = s.n_head * s.n_head_size();
        const int64_t n_kv = s.n_head_kv * s.n_head_size();
        matrix("token_embd.weight", s.n_embd, s.n_vocab, 1.0F,
               s.embedding_type == GGML_TYPE_COUNT ? s.type : s.embedding_type);
        vector("output_norm.weight", s.n_embd, 1.0F, 0.2F);
        if (!s.is_tied) matrix("output.weight", s.n_embd, s.n_vocab, 0.3F);
        if (s.has_rope_factors) vector("rope_freqs.weight", s.n_rotated() / 2, 2.0F, 1.0F);
        for (int64_t i = 0; i < s.n_layer; ++i) {
            const std::string block = "blk." + std::to_string(i) + ".";
            vector(block + "attn_norm.weight", s.n_embd, 1.0F, 0.2F);
            // The order of converted files, which lets the engine join products; or one that does not.
            matrix(block + "attn_k.weight", s.n_embd, n_kv, 0.12F);
            if (!s.is_scattered) matrix(block + "attn_output.weight", n_q, s.n_embd, 0.12F);
            matrix(block + "attn_q.weight", s.n_embd, n_q, 0.12F);
            if (s.is_scattered) matrix(block + "attn_output.weight", n_q, s.n_embd, 0.12F);
            matrix(block + "attn_v.weight", s.n_embd, n_kv, 0.12F);
            if (s.has_biases) {
                vector(block + "attn_q.bias", n_q, 0.0F, 0.5F);
                vector(block + "attn_k.bias", n_kv, 0.0F, 0.5F);
                vector(block + "attn_v.bias", n_kv, 0.0F, 0.5F);
            }
            if (s.has_head_norms) {
                vector(block + "attn_q_norm.weight", s.n_head_size(), 1.0F, 0.3F);
                vector(block + "attn_k_norm.weight", s.n_head_size(), 1.0F, 0.3F);
            }
            vector(block + "ffn_norm.weight", s.n_embd, 1.0F, 0.2F);
            if (s.is_scattered) matrix(block + "ffn_up.weight", s.n_embd, s.n_ff, 0.12F);
            matrix(block + "ffn_gate.weight", s.n_embd, s.n_ff, 0.12F);
            if (!s.is_scattered) matrix(block + "ffn_up.weight", s.n_embd, s.n_ff, 0.12F);
            matrix(block + "ffn_down.weight", s.n_ff, s.n_embd, 0.08F);
        }
    }

    const TinyShape& shape() const { return shape_; }

    // Writes the file. `edit` may change keys and tensors of the open context before that.
    void write(const std::string& path, const std::function<void(gguf_context*)>& edit = nullptr,
               const std::vector<std::string>& left_out = {}) const {
        gguf_context* file = gguf_init_empty();
        const TinyShape& s = shape_;
        const auto key = [&](const char* name) { return s.architecture + "." + name; };
        const auto set_count = [&](const char* name, int64_t value) {
            gguf_set_val_u32(file, key(name).c_str(), static_cast<uint32_t>(value));
        };
        gguf_set_val_str(file, "general.architecture", s.architecture.c_str());
        gguf_set_val_str(file, "general.name", "tiny");
        set_count("block_count", s.n_layer);
        set_count("context_length", 4096);
        set_count("embedding_length", s.n_embd);
        set_count("feed_forward_length", s.n_ff);
        set_count("attention.head_count", s.n_head);
        set_count("attention.head_count_kv", s.n_head_kv);
        if (s.n_rot != 0) set_count("rope.dimension_count", s.n_rot);
        gguf_set_val_f32(file, key("attention.layer_norm_rms_epsilon").c_str(), s.epsilon);
        gguf_set_val_f32(file, key("rope.freq_base").c_str(), s.rope_base);
        std::vector<std::string> tokens;
        std::vector<int32_t> types;
        for (int64_t i = 0; i < s.n_vocab; ++i) {
            tokens.push_back(i < 256 ? byte_token(static_cast<int>(i)) : "<|c" + std::to_string(i) + "|>");
            types.push_back(i < 256 ? 1 : 3);
        }
        std::vector<const char*> pointers;
        for (const std::string& token : tokens) pointers.push_back(token.c_str());
        gguf_set_val_str(file, "tokenizer.ggml.model", "gpt2");
        gguf_set_val_str(file, "tokenizer.ggml.pre", "gpt2");
        gguf_set_arr_str(file, "tokenizer.ggml.tokens", pointers.data(), pointers.size());
        gguf_set_arr_data(file, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
        const char* merge = "a b";
        std::vector<const char*> merges;
        if (s.n_vocab > 256)
            tokens.back() = "ab", pointers.back() = tokens.back().c_str(), types.back() = 1, merges.push_back(merge);
        gguf_set_arr_str(file, "tokenizer.ggml.tokens", pointers.data(), pointers.size());
        gguf_set_arr_data(file, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
        gguf_set_arr_str(file, "tokenizer.ggml.merges", merges.data(), merges.size());
        gguf_set_val_u32(file, "tokenizer.ggml.bos_token_id", 256);
        gguf_set_val_u32(file, "tokenizer.ggml.eos_token_id", 257);

        ggml_context* context = ggml_init({(tensors_.size() + 1) * ggml_tensor_overhead(), nullptr, true});
        std::vector<std::vector<char>> stored;
        stored.reserve(tensors_.size());
        for (const Tensor& tensor : tensors_) {
            if (std::find(left_out.begin(), left_out.end(), tensor.name) != left_out.end()) continue;
            ggml_tensor* description = tensor.n_rows == 0
                                           ? ggml_new_tensor_1d(context, GGML_TYPE_F32, tensor.n_columns)
                                           : ggml_new_tensor_2d(context, tensor.type, tensor.n_columns, tensor.n_rows);
            ggml_set_name(description, tensor.name.c_str());
            gguf_add_tensor(file, description);
            stored.push_back(tensor.stored);
            gguf_set_tensor_data(file, tensor.name.c_str(), stored.back().data());
        }
        if (edit) edit(file);
        if (!gguf_write_to_file(file, path.c_str(), false)) std::abort();
        ggml_free(context);
        gguf_free(file);
    }

    std::vector<std::string> tensor_names() const {
        std::vector<std::string> names;
        for (const Tensor& tensor : tensors_) names.push_back(tensor.name);
        return names;
    }

    // Logits of every position in double precision, from the values that the file stores (dequantised).
    std::vector<std::vector<double>> logits(const std::vector<int32_t>& tokens) const;

private:
    struct Tensor {
        std::string name;
        ggml_type type = GGML_TYPE_F32;
        int64_t n_columns = 0;
        int64_t n_rows = 0;  // 0: a vector
        std::vector<float> values;
        std::vector<char> stored;
    };

    float uniform() {
        random_ = random_ * 1664525U + 1013904223U;
        return static_cast<float>(random_ >> 8) / 8388608.0F - 1.0F;
    }
    void vector(const std::string& name, int64_t n, float middle, float spread) {
        Tensor tensor{name, GGML_TYPE_F32, n, 0, std::vector<float>(static_cast<size_t>(n)), {}};
        for (float& value : tensor.values) value = middle + spread * uniform();
        tensor.stored.assign(reinterpret_cast<const char*>(tensor.values.data()),
                             reinterpret_cast<const char*>(tensor.values.data() + n));
        add(std::move(tensor));
    }
    void matrix(const std::string& name, int64_t n_columns, int64_t n_rows, float spread) {
        matrix(name, n_columns, n_rows, spread, shape_.type);
    }
    void matrix(const std::string& name, int64_t n_columns, int64_t n_rows, float spread, ggml_type type) {
        Tensor tensor{name, type, n_columns, n_rows, std::vector<float>(static_cast<size_t>(n_columns * n_rows)), {}};
        for (float& value : tensor.values) value = spread * uniform();
        tensor.stored.resize(ggml_row_size(type, n_columns) * static_cast<size_t>(n_rows));
        ggml_quantize_chunk(type, tensor.values.data(), tensor.stored.data(), 0, n_rows, n_columns, nullptr);
        if (type != GGML_TYPE_F32) {
            ggml_get_type_traits(type)->to_float(tensor.stored.data(), tensor.values.data(), n_columns * n_rows);
        }
        add(std::move(tensor));
    }
    void add(Tensor tensor) {
        index_[tensor.name] = tensors_.size();
        tensors_.push_back(std::move(tensor));
    }
    const std::vector<float>& values(const std::string& name) const { return tensors_[index_.at(name)].values; }

    TinyShape shape_;
    uint32_t random_;
    std::vector<Tensor> tensors_;
    std::map<std::string, size_t> index_;
};

namespace reference {

using Vector = std::vector<double>;

inline Vector multiply(const std::vector<float>& matrix, const Vector& input) {
    Vector out(matrix.size() / input.size());
    for (size_t row = 0; row < out.size(); ++row) {
        for (size_t i = 0; i < input.size(); ++i)
            out[row] += static_cast<double>(matrix[row * input.size() + i]) * input[i];
    }
    return out;
}

// x / sqrt(mean(x^2) + epsilon) * weight, over stretches of the weight's size.
inline Vector normalize(Vector input, const std::vector<float>& weight, double epsilon) {
    for (size_t first = 0; first < input.size(); first += weight.size()) {
        double sum = 0;
        for (size_t i = 0; i < weight.size(); ++i) sum += input[first + i] * input[first + i];
        const double scale = 1.0 / std::sqrt(sum / static_cast<double>(weight.size()) + epsilon);
        for (size_t i = 0; i < weight.size(); ++i) input[first + i] *= scale * static_cast<double>(weight[i]);
    }
    return input;
}

inline void add_to(Vector& a, const Vector& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
}

}  // namespace reference

inline std::vector<std::vector<double>> TinyModel::logits(const std::vector<int32_t>& tokens) const {
    using reference::add_to;
    using reference::multiply;
    using reference::normalize;
    using reference::Vector;
    const TinyShape& s = shape_;
    const auto head = static_cast<size_t>(s.n_head_size());
    const auto n_embd = static_cast<size_t>(s.n_embd);
    const double epsilon = static_cast<double>(s.epsilon);
    const auto project = [&](const std::string& name, const Vector& input) {
        Vector out = multiply(values(name + ".weight"), input);
        if (index_.contains(name + ".bias")) {
            const std::vector<float>& bias = values(name + ".bias");
            for (size_t i = 0; i < out.size(); ++i) out[i] += static_cast<double>(bias[i]);
        }
        return out;
    };
    // Pair j turns by position / base^(2j / n_rot): neighbours in the normal order, halves apart in NEOX order.
    const auto rotate = [&](Vector& heads, size_t position) {
        const auto n_rot = static_cast<size_t>(s.n_rotated());
        for (size_t first = 0; first < heads.size(); first += head) {
            for (size_t j = 0; j < n_rot / 2; ++j) {
                double angle = static_cast<double>(position) *
                               std::pow(static_cast<double>(s.rope_base),
                                        -2.0 * static_cast<double>(j) / static_cast<double>(n_rot));
                if (s.has_rope_factors) angle /= static_cast<double>(values("rope_freqs.weight")[j]);
                double& a = heads[first + (s.is_neox() ? j : 2 * j)];
                double& b = heads[first + (s.is_neox() ? j + n_rot / 2 : 2 * j + 1)];
                const double turned = a * std::cos(angle) - b * std::sin(angle);
                b = a * std::sin(angle) + b * std::cos(angle);
                a = turned;
            }
        }
    };
    std::vector<Vector> states;
    for (const int32_t token : tokens) {
        const float* row = values("token_embd.weight").data() + static_cast<size_t>(token) * n_embd;
        states.emplace_back(row, row + n_embd);
    }
    for (int64_t layer = 0; layer < s.n_layer; ++layer) {
        const std::string block = "blk." + std::to_string(layer) + ".";
        std::vector<Vector> keys;
        std::vector<Vector> cached;
        for (size_t t = 0; t < states.size(); ++t) {
            const Vector input = normalize(states[t], values(block + "attn_norm.weight"), epsilon);
            Vector q = project(block + "attn_q", input);
            Vector k = project(block + "attn_k", input);
            if (s.has_head_norms) {
                q = normalize(q, values(block + "attn_q_norm.weight"), epsilon);
                k = normalize(k, values(block + "attn_k_norm.weight"), epsilon);
            }
            rotate(q, t);
            rotate(k, t);
            keys.push_back(k);
            cached.push_back(project(block + "attn_v", input));
            Vector attended(static_cast<size_t>(s.n_head) * head);
            for (size_t h = 0; h < static_cast<size_t>(s.n_head); ++h) {
                const size_t kv = h / static_cast<size_t>(s.n_head / s.n_head_kv);
                Vector weights(t + 1);
                double largest = -INFINITY;
                for (size_t c = 0; c <= t; ++c) {
                    for (size_t i = 0; i < head; ++i) weights[c] += q[h * head + i] * keys[c][kv * head + i];
                    weights[c] /= std::sqrt(static_cast<double>(head));
                    largest = std::max(largest, weights[c]);
                }
                double sum = 0;
                for (double& weight : weights) sum += weight = std::exp(weight - largest);
                for (size_t c = 0; c <= t; ++c) {
                    for (size_t i = 0; i < head; ++i)
                        attended[h * head + i] += weights[c] / sum * cached[c][kv * head + i];
                }
            }
            add_to(states[t], project(block + "attn_output", attended));
            const Vector ffn = normalize(states[t], values(block + "ffn_norm.weight"), epsilon);
            Vector gate = project(block + "ffn_gate", ffn);
            const Vector up = project(block + "ffn_up", ffn);
            for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
            add_to(states[t], project(block + "ffn_down", gate));
        }
    }
    std::vector<Vector> out;
    for (const Vector& state : states) {
        out.push_back(multiply(values(s.is_tied ? "token_embd.weight" : "output.weight"),
                               normalize(state, values("output_norm.weight"), epsilon)));
    }
    return out;
}

}  // namespace core
