#include "qwen_model.h"

#include <algorithm>

#include "failure.h"

namespace assay {

void QwenModel::describe(Weights& w, const GgufFile& file, const std::function<ggml_backend_dev_t(uint32_t)>& device,
                         ggml_backend_dev_t output_device) {
    const QwenShape& s = shape_;
    if (s.n_mtp > 0 && file.find_tensor("blk.0.hc_attn_norm.weight") == nullptr) {
        throw Failure(ASSAY_UNSUPPORTED, "the file holds the draft block only; the whole model in one file is needed");
    }
    head_ = mixer(w, "output_hc", output_device, false);
    for (uint32_t i = 0; i < s.n_block(); ++i) {
        const std::string block = "blk." + std::to_string(i) + ".";
        QwenLayer layer;
        layer.before_attention = mixer(w, block + "hc_attn", device(i), true);
        layer.before_experts = mixer(w, block + "hc_ffn", device(i), true);
        if (i < s.n_layer && s.is_linear[i])
            describe_delta_net(w, block, device(i), layer);
        else
            describe_attention(w, block, device(i), layer);
        describe_experts(w, file, block, device(i), layer);
        if (s.ple.layer == static_cast<int32_t>(i)) describe_ple(w, file, block, device(i));
        layers_.push_back(layer);
    }
    if (s.n_mtp == 0) return;
    const std::string prefix = "blk." + std::to_string(s.n_layer) + ".nextn.";
    ggml_backend_dev_t place = device(s.n_layer);
    mtp_.projection = w.add(prefix + "eh_proj.weight", {2 * int64_t{s.n_embd}, s.n_embd}, WeightUse::product, place);
    mtp_.embedding_norm = w.add(prefix + "enorm.weight", {s.n_embd}, WeightUse::vector, place);
    mtp_.hidden_norm = w.add(prefix + "hnorm.weight", {s.hcn()}, WeightUse::vector, place);
    mtp_.head = mixer(w, prefix + "hc_head", place, false);
}

HyperMixer QwenModel::mixer(Weights& w, const std::string& prefix, ggml_backend_dev_t device, bool has_inject) const {
    const QwenShape& s = shape_;
    HyperMixer mixer;
    mixer.norm = w.add(prefix + "_norm.weight", {s.hcn()}, WeightUse::vector, device);
    mixer.down = w.add(prefix + "_down.weight", {s.hcn(), s.hc_rank}, WeightUse::product, device);
    mixer.up = w.add(prefix + "_up.weight", {s.hc_rank, s.hcn()}, WeightUse::product, device);
    if (has_inject) mixer.inject = w.add(prefix + "_inject.weight", {s.hcn(), s.hc}, WeightUse::product, device);
    return mixer;
}

void QwenModel::describe_attention(Weights& w, const std::string& block, ggml_backend_dev_t device, QwenLayer& layer) {
    const QwenShape& s = shape_;
    const int64_t n = s.n_embd;
    const int64_t n_q = int64_t{s.n_head} * s.head_size;
    layer.q = w.add(block + "attn_q.weight", {n, 2 * n_q}, WeightUse::product, device);
    layer.k = w.add(block + "attn_k.weight", {n, s.n_embd_kv()}, WeightUse::product, device);
    layer.v = w.add(block + "attn_v.weight", {n, s.n_embd_kv()}, WeightUse::product, device);
    layer.o = w.add(block + "attn_output.weight", {n_q, n}, WeightUse::product, device);
    layer.q_norm = w.add(block + "attn_q_norm.weight", {s.head_size}, WeightUse::vector, device);
    layer.k_norm = w.add(block + "attn_k_norm.weight", {s.head_size}, WeightUse::vector, device);
    const int64_t n_index = int64_t{s.n_index_heads} * s.index_size;
    layer.index_q = w.add(block + "indexer.q_proj.weight", {n, n_index}, WeightUse::product, device);
    layer.index_k = w.add(block + "indexer.k_proj.weight", {n, s.index_size}, WeightUse::product, device);
    layer.index_q_norm = w.add(block + "indexer.q_norm.weight", {s.index_size}, WeightUse::vector, device);
    layer.index_k_norm = w.add(block + "indexer.k_norm.weight", {s.index_size}, WeightUse::vector, device);
}

void QwenModel::describe_delta_net(Weights& w, const std::string& block, ggml_backend_dev_t device, QwenLayer& layer) {
    const QwenShape& s = shape_;
    const int64_t n = s.n_embd;
    layer.qkv = w.add(block + "attn_qkv.weight", {n, s.conv_width()}, WeightUse::product, device);
    layer.z = w.add(block + "attn_gate.weight", {n, s.inner_size()}, WeightUse::product, device);
    layer.conv = w.add(block + "ssm_conv1d.weight", {s.conv_kernel, s.conv_width()}, WeightUse::vector, device);
    layer.beta = w.add(block + "ssm_beta.weight", {n, s.n_value_heads}, WeightUse::product, device);
    layer.alpha = w.add(block + "ssm_alpha.weight", {n, s.n_value_heads}, WeightUse::product, device);
    layer.dt = w.add(block + "ssm_dt.bias", {s.n_value_heads}, WeightUse::vector, device);
    layer.a = w.add(block + "ssm_a", {s.n_value_heads}, WeightUse::vector, device);
    layer.ssm_norm = w.add(block + "ssm_norm.weight", {s.state_size}, WeightUse::vector, device);
    layer.ssm_out = w.add(block + "ssm_out.weight", {s.inner_size(), n}, WeightUse::product, device);
}

void QwenModel::describe_experts(Weights& w, const GgufFile& file, const std::string& block, ggml_backend_dev_t device,
                                 QwenLayer& layer) {
    const QwenShape& s = shape_;
    const int64_t n = s.n_embd;
    const int64_t ff = s.n_ff;
    layer.router = w.add(block + "ffn_gate_inp.weight", {n, s.n_expert}, WeightUse::product, device);
    if (file.find_tensor(block + "ffn_gate_up_exps.weight") != nullptr) {
        layer.gate_up_exps =
            w.add(block + "ffn_gate_up_exps.weight", {n, 2 * ff, s.n_expert}, WeightUse::experts, device);
    } else {
        layer.gate_exps = w.add(block + "ffn_gate_exps.weight", {n, ff, s.n_expert}, WeightUse::experts, device);
        layer.up_exps = w.add(block + "ffn_up_exps.weight", {n, ff, s.n_expert}, WeightUse::experts, device);
    }
    layer.down_exps = w.add(block + "ffn_down_exps.weight", {ff, n, s.n_expert}, WeightUse::experts, device);
    layer.shared_router = w.add(block + "ffn_gate_inp_shexp.weight", {n}, WeightUse::product, device);
    layer.shared_gate = w.add(block + "ffn_gate_shexp.weight", {n, s.n_ff_shared}, WeightUse::product, device);
    layer.shared_up = w.add(block + "ffn_up_shexp.weight", {n, s.n_ff_shared}, WeightUse::product, device);
    layer.shared_down = w.add(block + "ffn_down_shexp.weight", {s.n_ff_shared, n}, WeightUse::product, device);
}

void QwenModel::describe_ple(Weights& w, const GgufFile& file, const std::string& block, ggml_backend_dev_t device) {
    const QwenShape& s = shape_;
    const PleShape& p = s.ple;
    const int64_t hcn = s.hcn();
    ple_.key = w.add(block + "ple_key.weight", {s.n_embd, hcn}, WeightUse::product, device);
    ple_.value = w.add(block + "ple_value.weight", {s.n_embd, s.n_embd}, WeightUse::product, device);
    ple_.norm_key = w.add(block + "ple_norm_key.weight", {hcn}, WeightUse::vector, device);
    ple_.norm_query = w.add(block + "ple_norm_query.weight", {hcn}, WeightUse::vector, device);
    ple_.norm_conv = w.add(block + "ple_norm_conv.weight", {hcn}, WeightUse::vector, device);
    ple_.conv = w.add(block + "ple_conv1d.weight", {p.kernel, hcn}, WeightUse::rows, device);

    const std::string name = "per_layer_token_embd.weight";
    ple_.table = file.find_tensor(name);
    if (ple_.table == nullptr) throw Failure(ASSAY_FILE, "the model lacks the tensor '" + name + "'");
    uint64_t n_rows = 0;
    for (uint32_t i = 0; i < p.n_heads(); ++i) n_rows = std::max(n_rows, p.offsets[i] + p.sizes[i]);
    if (ple_.table->n_dims > 2 || ple_.table->ne[0] != p.row_width ||
        static_cast<uint64_t>(ple_.table->ne[1]) < n_rows) {
        throw Failure(ASSAY_FILE, "tensor '" + name + "' has " + std::to_string(ple_.table->ne[1]) + " rows of " +
                                      std::to_string(ple_.table->ne[0]) + ", " + std::to_string(n_rows) + " of " +
                                      std::to_string(p.row_width) + " are needed");
    }
    w.leave_in_file(name);
}

}  // namespace assay
