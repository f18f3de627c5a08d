// Gated delta net: a convolution, a recurrence over a matrix a value head, and a gated norm.
#include <cmath>

#include "qwen_builder.h"

namespace assay {

ggml_tensor* QwenBuilder::delta_net(uint32_t block, uint32_t linear, ggml_tensor* input) {
    const QwenLayer& layer = model_.layers()[block];
    const int64_t n_tokens = input->ne[1];
    ggml_tensor* qkv = ggml_mul_mat(ctx_, layer.qkv, input);
    ggml_tensor* z = ggml_mul_mat(ctx_, layer.z, input);
    ggml_tensor* beta = ggml_sigmoid(ctx_, ggml_mul_mat(ctx_, layer.beta, input));
    ggml_tensor* gate = ggml_add(ctx_, ggml_mul_mat(ctx_, layer.alpha, input), layer.dt);
    gate = ggml_mul(ctx_, ggml_softplus(ctx_, gate), layer.a);
    expand(qkv);
    expand(beta);
    expand(gate);

    std::vector<ggml_tensor*> parts;
    int64_t first = 0;
    for (size_t i = 0; i < graph_.shape.runs.size(); ++i) {
        const QwenRun& run = graph_.shape.runs[i];
        const auto columns = [&](ggml_tensor* x) {
            return ggml_view_2d(ctx_, x, x->ne[0], run.n_tokens, x->nb[1], static_cast<size_t>(first) * x->nb[1]);
        };
        parts.push_back(delta_run(linear, run, graph_.runs[i], layer, columns(qkv), columns(gate), columns(beta)));
        first += run.n_tokens;
    }
    ggml_tensor* out = ggml_reshape_3d(ctx_, join(std::move(parts), 1), s_.state_size, s_.n_value_heads, n_tokens);
    z = ggml_reshape_3d(ctx_, z, s_.state_size, s_.n_value_heads, n_tokens);
    out = ggml_mul(ctx_, norm(out, layer.ssm_norm), ggml_sigmoid(ctx_, z));
    return ggml_mul_mat(ctx_, layer.ssm_out, ggml_reshape_2d(ctx_, out, s_.inner_size(), n_tokens));
}

// [inner size, tokens of the run]
ggml_tensor* QwenBuilder::delta_run(uint32_t linear, const QwenRun& run, const QwenRunInputs& inputs,
                                    const QwenLayer& layer, ggml_tensor* qkv, ggml_tensor* gate, ggml_tensor* beta) {
    const int64_t n = run.n_tokens;
    const int64_t d = s_.state_size;
    const int64_t n_past = s_.conv_kernel - 1;
    const int64_t width = s_.conv_width();
    const int64_t n_written = run.n_written;

    // The convolution wants time as the fastest dimension.
    ggml_tensor* u = with_past(c_.recurrent->convs(linear), inputs.conv, qkv, run.n_written);
    u = ggml_cont(ctx_, ggml_transpose(ctx_, u));
    ggml_tensor* y = ggml_silu(ctx_, ggml_ssm_conv(ctx_, ggml_reshape_3d(ctx_, u, n_past + n, width, 1), layer.conv));

    const auto heads = [&](int64_t n_heads, int64_t offset) {
        return ggml_view_4d(ctx_, y, d, n_heads, n, 1, static_cast<size_t>(d) * sizeof(float), y->nb[1],
                            y->nb[1] * static_cast<size_t>(n), static_cast<size_t>(offset) * sizeof(float));
    };
    // x / sqrt(sum(x^2) + eps) is an RMS norm with eps / d, divided by sqrt(d).
    const auto unit = [&](ggml_tensor* x) {
        return ggml_scale(ctx_, ggml_rms_norm(ctx_, x, s_.epsilon / static_cast<float>(d)),
                          1.0F / std::sqrt(static_cast<float>(d)));
    };
    const int64_t n_keys = s_.n_key_heads;
    const int64_t n_values = s_.n_value_heads;
    ggml_tensor* q = unit(heads(n_keys, 0));
    ggml_tensor* k = unit(heads(n_keys, d * n_keys));
    ggml_tensor* v = heads(n_values, 2 * d * n_keys);
    ggml_tensor* state = ggml_get_rows(ctx_, c_.recurrent->states(linear), inputs.state_from);
    state = ggml_reshape_4d(ctx_, state, d, d, n_values, 1);
    gate = ggml_reshape_4d(ctx_, gate, 1, n_values, n, 1);
    beta = ggml_reshape_4d(ctx_, beta, 1, n_values, n, 1);
    // The operator takes key head (h mod key heads) for value head h and divides the queries by sqrt(d).
    ggml_tensor* out = ggml_gated_delta_net(ctx_, q, k, v, gate, beta, state, n_written);
    const size_t attended_bytes = static_cast<size_t>(d * n_values * n) * sizeof(float);
    ggml_tensor* states = ggml_view_2d(ctx_, out, d * d, n_values * n_written, static_cast<size_t>(d * d) * sizeof(float),
                                       attended_bytes);
    expand(ggml_set_rows(ctx_, c_.recurrent->states(linear), states, inputs.state_to));
    return ggml_view_2d(ctx_, out, d * n_values, n, static_cast<size_t>(d * n_values) * sizeof(float), 0);
}

}  // namespace assay
