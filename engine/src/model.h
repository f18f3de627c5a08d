// A loaded model: hyperparameters, weights on their devices, tokenizer. Read-only after loading.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine.h"
#include "gguf_file.h"
#include "keys.h"
#include "qwen_model.h"
#include "tokenizer.h"
#include "weights.h"

namespace assay {

struct Hyperparameters {
    std::string architecture;
    std::string name;
    uint32_t n_vocab = 0;
    uint32_t n_ctx_train = 0;
    uint32_t n_embd = 0;
    uint32_t n_layer = 0;
    uint32_t n_ff = 0;
    uint32_t n_head = 0;
    uint32_t n_head_kv = 0;
    uint32_t n_head_size_k = 0;  // elements of one key head
    uint32_t n_head_size_v = 0;
    uint32_t n_rot = 0;  // leading elements of a head that are rotated
    int rope_type = 0;   // GGML_ROPE_TYPE_*
    float rope_base = 10000.0F;
    float norm_epsilon = 1e-5F;

    uint32_t n_embd_k() const { return n_head_size_k * n_head_kv; }
    uint32_t n_embd_v() const { return n_head_size_v * n_head_kv; }
};

// Absent biases and norms are nullptr. Where the file lets two products be one, qv stands for q and v, and gate_up
// for gate and up.
struct LlamaLayer {
    ggml_tensor* attention_norm = nullptr;
    ggml_tensor* q = nullptr;
    ggml_tensor* q_bias = nullptr;
    ggml_tensor* q_norm = nullptr;
    ggml_tensor* k = nullptr;
    ggml_tensor* k_bias = nullptr;
    ggml_tensor* k_norm = nullptr;
    ggml_tensor* v = nullptr;
    ggml_tensor* v_bias = nullptr;
    ggml_tensor* qv = nullptr;
    ggml_tensor* o = nullptr;
    ggml_tensor* o_bias = nullptr;
    ggml_tensor* ffn_norm = nullptr;
    ggml_tensor* gate = nullptr;
    ggml_tensor* up = nullptr;
    ggml_tensor* gate_up = nullptr;
    ggml_tensor* down = nullptr;
};

class Model {
public:
    // With a plan, sessions of the model count into it what they would take; none of them computes. Throws Failure.
    Model(const std::string& path, const assay_model_settings& settings, MemoryPlan* plan = nullptr);

    const Hyperparameters& hyper() const { return hyper_; }
    const Weights& weights() const { return *weights_; }
    const GgufFile& file() const { return *file_; }
    // nullptr where the file has no tokenizer.
    const Tokenizer* tokenizer() const { return tokenizer_.get(); }
    const std::string* chat_template() const { return chat_template_ ? &*chat_template_ : nullptr; }
    const std::string& info() const { return info_; }
    ggml_backend_dev_t layer_device(uint32_t layer) const { return layer_devices_[layer]; }
    MemoryPlan* memory_plan() const { return plan_; }
    bool uses_accelerator() const { return uses_accelerator_; }
    // Names the shapes, types and name of the model; saved states carry it.
    uint64_t shape_hash() const { return shape_hash_; }

    ggml_tensor* token_embedding() const { return token_embedding_; }
    ggml_tensor* rope_factors() const { return rope_factors_; }
    ggml_tensor* output_norm() const { return output_norm_; }
    ggml_tensor* output() const { return output_; }
    const std::vector<LlamaLayer>& layers() const { return layers_; }  // of the llama family
    // nullptr for the llama family.
    const QwenModel* qwen() const { return qwen_.get(); }

private:
    void read_hyperparameters();
    void read_llama(const Keys& keys);
    void read_qwen(const Keys& keys);
    void refuse_rope_scaling(const Keys& keys) const;
    void read_vocabulary_size(const Keys& keys);
    void read_tokenizer();
    void place_layers(int32_t n_gpu_layers);
    void describe_weights();

    MemoryPlan* plan_;
    std::unique_ptr<GgufFile> file_;
    Hyperparameters hyper_;
    std::unique_ptr<Weights> weights_;
    std::unique_ptr<QwenModel> qwen_;
    std::unique_ptr<Tokenizer> tokenizer_;
    std::optional<std::string> chat_template_;
    std::string info_;
    std::vector<ggml_backend_dev_t> layer_devices_;
    ggml_backend_dev_t output_device_ = nullptr;
    bool uses_accelerator_ = false;
    uint64_t shape_hash_ = 0;

    ggml_tensor* token_embedding_ = nullptr;
    ggml_tensor* rope_factors_ = nullptr;
    ggml_tensor* output_norm_ = nullptr;
    ggml_tensor* output_ = nullptr;
    std::vector<LlamaLayer> layers_;
};

// One line of JSON for assay_model_info.
std::string describe_model(const Model& model);
// 64-bit checksum over architecture, name and every tensor's name, type and shape.
uint64_t hash_shapes(const GgufFile& file, const Hyperparameters& hyper);

}  // namespace assay
