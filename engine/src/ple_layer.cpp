// Hashed n-gram embeddings in the graph: a gated value on every stream, and a dilated convolution over it.
#include <cmath>

#include "qwen_builder.h"

namespace assay {

ggml_tensor* QwenBuilder::add_ple(ggml_tensor* residual) {
    const PleWeights& w = model_.ple();
    const int64_t n_tokens = residual->ne[2];
    note("ple.embedding", graph_.ple);
    ggml_tensor* key = ggml_reshape_3d(ctx_, ggml_mul_mat(ctx_, w.key, graph_.ple), s_.n_embd, s_.hc, n_tokens);
    ggml_tensor* value = ggml_reshape_3d(ctx_, ggml_mul_mat(ctx_, w.value, graph_.ple), s_.n_embd, 1, n_tokens);
    ggml_tensor* match = ggml_mul(ctx_, grouped_norm(key, w.norm_key), grouped_norm(residual, w.norm_query));
    ggml_tensor* s = ggml_scale(ctx_, ggml_sum_rows(ctx_, match), 1.0F / std::sqrt(static_cast<float>(s_.n_embd)));
    ggml_tensor* root = ggml_sqrt(ctx_, ggml_clamp(ctx_, ggml_abs(ctx_, s), 1e-6F, INFINITY));
    s = ggml_mul(ctx_, ggml_sgn(ctx_, s), root);
    ggml_tensor* gated = ggml_mul(ctx_, ggml_repeat_4d(ctx_, value, s_.n_embd, s_.hc, n_tokens, 1), ggml_sigmoid(ctx_, s));
    ggml_tensor* u = ggml_reshape_2d(ctx_, grouped_norm(gated, w.norm_conv), s_.hcn(), n_tokens);
    ggml_tensor* taps = w.conv->type == GGML_TYPE_F32 ? w.conv : ggml_cast(ctx_, w.conv, GGML_TYPE_F32);
    taps = ggml_cont(ctx_, ggml_transpose(ctx_, taps));
    expand(u);

    std::vector<ggml_tensor*> parts;
    int64_t first = 0;
    for (size_t i = 0; i < graph_.shape.runs.size(); ++i) {
        const QwenRun& run = graph_.shape.runs[i];
        ggml_tensor* own = ggml_view_2d(ctx_, u, u->ne[0], run.n_tokens, u->nb[1], static_cast<size_t>(first) * u->nb[1]);
        parts.push_back(ple_run(run, graph_.runs[i], own, taps));
        first += run.n_tokens;
    }
    ggml_tensor* conv = ggml_silu(ctx_, join(std::move(parts), 1));
    conv = ggml_reshape_3d(ctx_, conv, s_.n_embd, s_.hc, n_tokens);
    return ggml_add(ctx_, ggml_add(ctx_, residual, gated), conv);
}

// [hcn, tokens of the run]: the sum over the taps of earlier rows, n_gram tokens apart.
ggml_tensor* QwenBuilder::ple_run(const QwenRun& run, const QwenRunInputs& inputs, ggml_tensor* u, ggml_tensor* taps) {
    const int64_t n = run.n_tokens;
    const int64_t hcn = s_.hcn();
    ggml_tensor* all = with_past(c_.recurrent->ple(), inputs.ple, u, run.n_written);
    ggml_tensor* sum = nullptr;
    for (uint32_t j = 0; j < s_.ple.kernel; ++j) {
        ggml_tensor* rows =
            ggml_view_2d(ctx_, all, hcn, n, all->nb[1], static_cast<size_t>(j * s_.ple.n_gram) * all->nb[1]);
        ggml_tensor* tap = ggml_view_1d(ctx_, taps, hcn, static_cast<size_t>(j) * taps->nb[1]);
        ggml_tensor* term = ggml_mul(ctx_, rows, tap);
        sum = sum == nullptr ? term : ggml_add(ctx_, sum, term);
    }
    return sum;
}

}  // namespace assay
