// The architecture qwen4exp: its hyperparameters and the tensors of its layers. Read-only after loading.
//
// Names: n = embedding width, hc = residual streams, r = cells in a block (compress ratio), B = indexer budget in tokens.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "keys.h"
#include "weights.h"

namespace assay {

// Hashed n-gram embeddings. Without them (`layer` < 0) the rest is unset.
struct PleShape {
    int32_t layer = -1;
    uint32_t n_gram = 0;        // longest n-gram; also the dilation of the convolution
    uint32_t heads_per_gram = 0;
    uint32_t kernel = 0;
    uint32_t row_width = 0;
    int32_t eos = -1;           // resets the n-grams
    int32_t image = -1;         // stands for the cells of an image
    std::vector<uint64_t> multipliers;  // [n_gram]
    std::vector<uint64_t> offsets;      // [n_heads], rows
    std::vector<uint64_t> sizes;        // [n_heads], rows

    bool exists() const { return layer >= 0; }
    uint32_t n_heads() const { return (n_gram - 1) * heads_per_gram; }
    uint32_t history() const { return (kernel - 1) * n_gram; }  // earlier tokens that the convolution looks at
};

struct QwenShape {
    uint32_t n_layer = 0;  // trunk
    uint32_t n_mtp = 0;    // 0 or 1 block after them
    uint32_t n_embd = 0;
    uint32_t n_head = 0;
    uint32_t n_head_kv = 0;
    uint32_t head_size = 0;
    float attention_scale = 0.0F;
    float epsilon = 0.0F;
    uint32_t n_rot = 0;
    std::array<int, 4> sections{};
    float rope_base = 0.0F;
    uint32_t n_expert = 0;
    uint32_t n_expert_used = 0;
    uint32_t n_ff = 0;
    uint32_t n_ff_shared = 0;
    float expert_scale = 1.0F;
    uint32_t conv_kernel = 0;
    uint32_t state_size = 0;     // of a key head and of a value head
    uint32_t n_key_heads = 0;
    uint32_t n_value_heads = 0;
    uint32_t hc = 0;
    uint32_t hc_rank = 0;
    uint32_t n_index_heads = 0;
    uint32_t index_size = 0;
    uint32_t budget = 0;  // tokens
    uint32_t ratio = 0;
    std::vector<bool> is_linear;  // of the trunk layers
    PleShape ple;

    uint32_t hcn() const { return hc * n_embd; }
    uint32_t n_block() const { return n_layer + n_mtp; }
    uint32_t n_embd_kv() const { return n_head_kv * head_size; }
    uint32_t conv_width() const { return state_size * (2 * n_key_heads + n_value_heads); }
    uint32_t inner_size() const { return n_value_heads * state_size; }
    uint32_t kept_blocks() const { return budget / ratio; }
    // Up to so many own cells every cell is selected.
    uint32_t dense_cells() const { return budget + ratio - 1; }
};

struct HyperMixer {
    ggml_tensor* norm = nullptr;
    ggml_tensor* down = nullptr;
    ggml_tensor* up = nullptr;
    ggml_tensor* inject = nullptr;  // nullptr in final mixers
};

struct QwenLayer {
    HyperMixer before_attention;
    HyperMixer before_experts;
    // QSA
    ggml_tensor* q = nullptr;
    ggml_tensor* k = nullptr;
    ggml_tensor* v = nullptr;
    ggml_tensor* o = nullptr;
    ggml_tensor* q_norm = nullptr;
    ggml_tensor* k_norm = nullptr;
    ggml_tensor* index_q = nullptr;
    ggml_tensor* index_k = nullptr;
    ggml_tensor* index_q_norm = nullptr;
    ggml_tensor* index_k_norm = nullptr;
    // Gated delta net
    ggml_tensor* qkv = nullptr;
    ggml_tensor* z = nullptr;
    ggml_tensor* conv = nullptr;
    ggml_tensor* beta = nullptr;
    ggml_tensor* alpha = nullptr;
    ggml_tensor* dt = nullptr;
    ggml_tensor* a = nullptr;
    ggml_tensor* ssm_norm = nullptr;
    ggml_tensor* ssm_out = nullptr;
    // Experts
    ggml_tensor* router = nullptr;
    ggml_tensor* gate_exps = nullptr;
    ggml_tensor* up_exps = nullptr;
    ggml_tensor* gate_up_exps = nullptr;  // in place of the two before
    ggml_tensor* down_exps = nullptr;
    ggml_tensor* shared_router = nullptr;
    ggml_tensor* shared_gate = nullptr;
    ggml_tensor* shared_up = nullptr;
    ggml_tensor* shared_down = nullptr;
};

struct PleWeights {
    ggml_tensor* key = nullptr;
    ggml_tensor* value = nullptr;
    ggml_tensor* norm_key = nullptr;
    ggml_tensor* norm_query = nullptr;
    ggml_tensor* norm_conv = nullptr;
    ggml_tensor* conv = nullptr;
    const GgufTensor* table = nullptr;  // stays in the file: rows are read from its mapping
};

struct MtpWeights {
    ggml_tensor* projection = nullptr;
    ggml_tensor* embedding_norm = nullptr;
    ggml_tensor* hidden_norm = nullptr;
    HyperMixer head;
};

class QwenModel {
public:
    // Reads and checks the metadata. Throws Failure.
    explicit QwenModel(const Keys& keys);

    // Describes the tensors; `device` gives the place of a block.
    void describe(Weights& weights, const GgufFile& file, const std::function<ggml_backend_dev_t(uint32_t)>& device,
                  ggml_backend_dev_t output_device);

    const QwenShape& shape() const { return shape_; }
    const std::vector<QwenLayer>& layers() const { return layers_; }  // the MTP block last
    const HyperMixer& head() const { return head_; }
    const PleWeights& ple() const { return ple_; }
    const MtpWeights& mtp() const { return mtp_; }

private:
    void read_attention(const Keys& keys);
    void read_layers(const Keys& keys);
    void read_ple(const Keys& keys);
    void check_ratios(const Keys& keys);
    HyperMixer mixer(Weights& weights, const std::string& prefix, ggml_backend_dev_t device, bool has_inject) const;
    void describe_attention(Weights& weights, const std::string& block, ggml_backend_dev_t device, QwenLayer& layer);
    void describe_delta_net(Weights& weights, const std::string& block, ggml_backend_dev_t device, QwenLayer& layer);
    void describe_experts(Weights& weights, const GgufFile& file, const std::string& block, ggml_backend_dev_t device,
                          QwenLayer& layer);
    void describe_ple(Weights& weights, const GgufFile& file, const std::string& block, ggml_backend_dev_t device);

    QwenShape shape_;
    std::vector<QwenLayer> layers_;
    HyperMixer head_;
    PleWeights ple_;
    MtpWeights mtp_;
};

}  // namespace assay
