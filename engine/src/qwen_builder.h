// Builds the parts of a qwen4exp graph. One file a part: qwen_graph, qwen_attention, qwen_select, delta_net, ple_layer.
#pragma once

#include "norm.h"
#include "qwen_graph.h"

namespace assay {

class QwenBuilder {
public:
    QwenBuilder(const QwenGraphContext& context, QwenGraph& graph)
        : c_(context),
          model_(*context.model.qwen()),
          s_(model_.shape()),
          graph_(graph),
          ctx_(graph.context.get()) {}

    void build();
    void build_pooling();

private:
    // qwen_graph.cpp
    void make_inputs();
    QwenRunInputs make_run_inputs(const QwenRun& run);
    QwenRunInputs make_pool_inputs(uint32_t n_pooled);
    HistoryInputs make_history_inputs(uint32_t n_past, uint32_t n_written);
    ggml_tensor* with_past(ggml_tensor* rows, const HistoryInputs& inputs, ggml_tensor* own, uint32_t n_written);
    ggml_tensor* embed();
    ggml_tensor* embed_draft();
    struct Mixed {
        ggml_tensor* input;    // [n, tokens]
        ggml_tensor* weights;  // [hc, tokens], nullptr in final mixers
    };
    ggml_tensor* grouped_norm(ggml_tensor* streams, ggml_tensor* weight);
    Mixed mix(ggml_tensor* residual, const HyperMixer& mixer);
    ggml_tensor* combine(ggml_tensor* residual, ggml_tensor* out, ggml_tensor* weights);
    ggml_tensor* experts(uint32_t block, ggml_tensor* input);
    ggml_tensor* norm(ggml_tensor* x, ggml_tensor* weight) {
        return rms_rows(ctx_, x, weight, s_.epsilon);
    }
    ggml_tensor* sum_of_parts(ggml_tensor* x, int64_t dimension);
    ggml_tensor* join(std::vector<ggml_tensor*> parts, int dimension);
    void expand(ggml_tensor* tensor) { ggml_build_forward_expand(graph_.nodes, tensor); }
    void note(const std::string& name, ggml_tensor* tensor);

    // delta_net.cpp
    ggml_tensor* delta_net(uint32_t block, uint32_t linear, ggml_tensor* input);
    ggml_tensor* delta_run(uint32_t linear, const QwenRun& run, const QwenRunInputs& inputs, const QwenLayer& layer,
                           ggml_tensor* qkv, ggml_tensor* gate, ggml_tensor* beta);

    // ple_layer.cpp
    ggml_tensor* add_ple(ggml_tensor* residual);
    ggml_tensor* ple_run(const QwenRun& run, const QwenRunInputs& inputs, ggml_tensor* u, ggml_tensor* taps);

    // qwen_attention.cpp
    ggml_tensor* attention(uint32_t block, ggml_tensor* input);
    ggml_tensor* rotate(ggml_tensor* heads, ggml_tensor* positions);
    void pool(uint32_t index, const QwenLayer& layer, const QwenRunInputs& inputs, uint32_t n_pooled);
    ggml_tensor* cached(ggml_tensor* rows, ggml_tensor* indices, int64_t n, int64_t n_sets);
    ggml_tensor* attend_rows(uint32_t index, const QwenRun& run, ggml_tensor* rows, ggml_tensor* q, ggml_tensor* mask);
    ggml_tensor* attend_all(uint32_t index, const QwenRun& run, ggml_tensor* q);
    ggml_tensor* attend_selected(uint32_t index, const QwenRun& run, const QwenRunInputs& inputs, ggml_tensor* q,
                                 ggml_tensor* index_q);
    ggml_tensor* attend_masked(uint32_t index, const QwenRun& run, const QwenRunInputs& inputs, ggml_tensor* q,
                               ggml_tensor* index_q);
    ggml_tensor* softmax_attention(ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, ggml_tensor* mask);
    ggml_tensor* causal_mask(const QwenRun& run, const QwenRunInputs& inputs);

    // qwen_select.cpp
    ggml_tensor* scores(uint32_t index, const QwenRun& run, uint32_t n_blocks, ggml_tensor* index_q);
    ggml_tensor* kept_blocks(ggml_tensor* scores, ggml_tensor* visible, int64_t n_kept);
    ggml_tensor* kept_mask(ggml_tensor* scores, ggml_tensor* bias);
    SelectScratch& new_scratch(const ggml_tensor* scores);

    const QwenGraphContext& c_;
    const QwenModel& model_;
    const QwenShape& s_;
    QwenGraph& graph_;
    ggml_context* ctx_;
    std::vector<ggml_tensor*> causal_masks_;  // of each run, shared by the layers
};

}  // namespace assay
