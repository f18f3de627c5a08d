#include "qwen_graph.h"

#include <cmath>

#include "failure.h"
#include "qwen_builder.h"

namespace assay {

void QwenBuilder::note(const std::string& name, ggml_tensor* tensor) {
    if (c_.capture == nullptr || !c_.capture->wants(name)) return;
    // A copy: a view shows its whole origin, and an input is overwritten.
    tensor = ggml_cont(ctx_, tensor);
    ggml_set_output(tensor);
    expand(tensor);
    graph_.captures.push_back({name, tensor});
}

QwenRunInputs QwenBuilder::make_pool_inputs(uint32_t n_pooled) {
    QwenRunInputs inputs;
    inputs.pool_cells = new_input(ctx_, GGML_TYPE_I32, "pool_cells", int64_t{s_.ratio} * n_pooled);
    inputs.pool_at = new_input(ctx_, GGML_TYPE_I32, "pool_at", 4 * int64_t{n_pooled});
    inputs.pool_rows = new_input(ctx_, GGML_TYPE_I64, "pool_rows", n_pooled);
    return inputs;
}

HistoryInputs QwenBuilder::make_history_inputs(uint32_t n_past, uint32_t n_written) {
    const int64_t n = int64_t{n_past} * n_written;
    HistoryInputs inputs;
    inputs.from = new_input(ctx_, GGML_TYPE_I32, "history_from", n_past);
    if (n_written > 1) inputs.windows = new_input(ctx_, GGML_TYPE_I32, "history_windows", n);
    inputs.to = new_input(ctx_, GGML_TYPE_I64, "history_to", n);
    return inputs;
}

// [width, past + tokens]: what a convolution looks at; and keeps what the next runs will need.
ggml_tensor* QwenBuilder::with_past(ggml_tensor* rows, const HistoryInputs& inputs, ggml_tensor* own,
                                    uint32_t n_written) {
    ggml_tensor* all = ggml_concat(ctx_, ggml_get_rows(ctx_, rows, inputs.from), own, 1);
    ggml_tensor* kept = nullptr;
    if (n_written > 1) {
        kept = ggml_get_rows(ctx_, all, inputs.windows);
    } else {
        kept = ggml_view_2d(ctx_, all, all->ne[0], inputs.from->ne[0], all->nb[1],
                            static_cast<size_t>(own->ne[1]) * all->nb[1]);
    }
    expand(ggml_set_rows(ctx_, rows, kept, inputs.to));
    return all;
}

QwenRunInputs QwenBuilder::make_run_inputs(const QwenRun& run) {
    QwenRunInputs inputs = make_pool_inputs(run.n_pooled);
    const int64_t n = run.n_tokens;
    if (run.is_masked) {
        inputs.block_bias = new_input(ctx_, GGML_TYPE_F32, "block_bias", run.n_columns, n);
        inputs.block_of_cell = new_input(ctx_, GGML_TYPE_I32, "block_of_cell", run.n_viewed);
        inputs.tail = new_input(ctx_, GGML_TYPE_I32, "window", run.n_viewed);
        inputs.cell_mask = new_input(ctx_, GGML_TYPE_F32, "cell_mask", run.n_viewed, n);
    } else {
        inputs.visible = new_input(ctx_, GGML_TYPE_F32, "visible", 1, n);
        if (run.is_sparse) {
            inputs.tail = new_input(ctx_, GGML_TYPE_I32, "tail", run.n_tail, n);
            inputs.tail_mask = new_input(ctx_, GGML_TYPE_F32, "tail_mask", run.n_tail, n);
        }
    }
    if (c_.recurrent != nullptr) {
        inputs.state_from = new_input(ctx_, GGML_TYPE_I32, "state_from", s_.n_value_heads);
        inputs.state_to = new_input(ctx_, GGML_TYPE_I64, "state_to", int64_t{s_.n_value_heads} * run.n_written);
        inputs.conv = make_history_inputs(s_.conv_kernel - 1, run.n_written);
        if (s_.ple.exists()) inputs.ple = make_history_inputs(s_.ple.history(), run.n_written);
    }
    return inputs;
}

void QwenBuilder::make_inputs() {
    const QwenGraphShape& shape = graph_.shape;
    const int64_t n_text = shape.n_tokens - shape.n_embeddings;
    if (n_text > 0) graph_.tokens = new_input(ctx_, GGML_TYPE_I32, "tokens", n_text);
    if (shape.n_embeddings > 0)
        graph_.embeddings = new_input(ctx_, GGML_TYPE_F32, "embeddings", s_.n_embd, shape.n_embeddings);
    if (n_text > 0 && shape.n_embeddings > 0)
        graph_.sources = new_input(ctx_, GGML_TYPE_I32, "sources", shape.n_tokens);
    if (shape.is_draft) graph_.hidden_in = new_input(ctx_, GGML_TYPE_F32, "hidden", s_.hcn(), shape.n_tokens);
    graph_.positions = new_input(ctx_, GGML_TYPE_I32, "positions", 4 * int64_t{shape.n_tokens});
    graph_.rows = new_input(ctx_, GGML_TYPE_I64, "rows", shape.n_tokens);
    if (!shape.is_draft && s_.ple.exists()) graph_.ple = new_input(ctx_, GGML_TYPE_F32, "ple", s_.n_embd, shape.n_tokens);
    if (shape.n_outputs > 0 && shape.n_outputs < shape.n_tokens)
        graph_.outputs = new_input(ctx_, GGML_TYPE_I32, "outputs", shape.n_outputs);
    for (const QwenRun& run : shape.runs) graph_.runs.push_back(make_run_inputs(run));
    for (size_t i = 0; i < shape.runs.size(); ++i) {
        const QwenRun& run = shape.runs[i];
        causal_masks_.push_back(run.is_sparse || run.is_masked ? nullptr : causal_mask(run, graph_.runs[i]));
    }
}

// [n, hc, tokens]: every stream begins as the embedding.
ggml_tensor* QwenBuilder::embed() {
    ggml_tensor* x = graph_.embeddings;
    if (graph_.tokens != nullptr) {
        x = ggml_get_rows(ctx_, c_.model.token_embedding(), graph_.tokens);
        if (graph_.embeddings != nullptr)
            x = ggml_get_rows(ctx_, ggml_concat(ctx_, x, graph_.embeddings, 1), graph_.sources);
    }
    x = ggml_reshape_3d(ctx_, x, s_.n_embd, 1, graph_.shape.n_tokens);
    return ggml_repeat_4d(ctx_, x, s_.n_embd, s_.hc, graph_.shape.n_tokens, 1);
}

// [n, hc, tokens]: embedding and hidden row, each with a norm of its own, through one projection.
ggml_tensor* QwenBuilder::embed_draft() {
    const MtpWeights& mtp = model_.mtp();
    const int64_t n_tokens = graph_.shape.n_tokens;
    ggml_tensor* e = norm(ggml_get_rows(ctx_, c_.model.token_embedding(), graph_.tokens), mtp.embedding_norm);
    e = ggml_repeat_4d(ctx_, ggml_reshape_3d(ctx_, e, s_.n_embd, 1, n_tokens), s_.n_embd, s_.hc, n_tokens, 1);
    ggml_tensor* h = ggml_reshape_3d(ctx_, graph_.hidden_in, s_.n_embd, s_.hc, n_tokens);
    return ggml_mul_mat(ctx_, mtp.projection, ggml_concat(ctx_, e, grouped_norm(h, mtp.hidden_norm), 0));
}

// The RMS of each stream is its own; the weight is hcn wide.
ggml_tensor* QwenBuilder::grouped_norm(ggml_tensor* streams, ggml_tensor* weight) {
    return norm(streams, ggml_reshape_2d(ctx_, weight, s_.n_embd, s_.hc));
}

// Sum over dimension 1 of [n, parts, m] as [n, m].
ggml_tensor* QwenBuilder::sum_of_parts(ggml_tensor* x, int64_t n_parts) {
    ggml_tensor* sum = nullptr;
    for (int64_t i = 0; i < n_parts; ++i) {
        ggml_tensor* part = ggml_view_2d(ctx_, x, x->ne[0], x->ne[2], x->nb[2], static_cast<size_t>(i) * x->nb[1]);
        sum = sum == nullptr ? part : ggml_add(ctx_, sum, part);
    }
    return sum;
}

// Pairwise, so that each part is copied log2(n) times.
ggml_tensor* QwenBuilder::join(std::vector<ggml_tensor*> parts, int dimension) {
    while (parts.size() > 1) {
        std::vector<ggml_tensor*> joined;
        for (size_t i = 0; i + 1 < parts.size(); i += 2)
            joined.push_back(ggml_concat(ctx_, parts[i], parts[i + 1], dimension));
        if (parts.size() % 2 == 1) joined.push_back(parts.back());
        parts = std::move(joined);
    }
    return parts.front();
}

QwenBuilder::Mixed QwenBuilder::mix(ggml_tensor* residual, const HyperMixer& mixer) {
    const int64_t n_tokens = residual->ne[2];
    const float share = 1.0F / static_cast<float>(s_.hc);
    ggml_tensor* x = grouped_norm(residual, mixer.norm);
    ggml_tensor* flat = ggml_reshape_2d(ctx_, x, s_.hcn(), n_tokens);
    ggml_tensor* low = ggml_silu(ctx_, ggml_scale(ctx_, ggml_mul_mat(ctx_, mixer.down, flat), share));
    ggml_tensor* gate = ggml_sigmoid(ctx_, ggml_mul_mat(ctx_, mixer.up, low));
    ggml_tensor* gated = ggml_mul(ctx_, x, ggml_reshape_3d(ctx_, gate, s_.n_embd, s_.hc, n_tokens));
    Mixed mixed{ggml_scale(ctx_, sum_of_parts(gated, s_.hc), share), nullptr};
    if (mixer.inject != nullptr) {
        ggml_tensor* inject = ggml_scale(ctx_, ggml_mul_mat(ctx_, mixer.inject, flat), share);
        mixed.weights = ggml_scale(ctx_, ggml_sigmoid(ctx_, inject), 2.0F);
    }
    return mixed;
}

ggml_tensor* QwenBuilder::combine(ggml_tensor* residual, ggml_tensor* out, ggml_tensor* weights) {
    const int64_t n_tokens = residual->ne[2];
    ggml_tensor* spread = ggml_repeat_4d(ctx_, ggml_reshape_3d(ctx_, out, s_.n_embd, 1, n_tokens), s_.n_embd, s_.hc,
                                         n_tokens, 1);
    return ggml_add(ctx_, residual, ggml_mul(ctx_, spread, ggml_reshape_3d(ctx_, weights, 1, s_.hc, n_tokens)));
}

ggml_tensor* QwenBuilder::experts(uint32_t block, ggml_tensor* input) {
    const QwenLayer& layer = model_.layers()[block];
    const int64_t n_tokens = input->ne[1];
    const int64_t n_used = s_.n_expert_used;
    ggml_tensor* router = ggml_mul_mat(ctx_, layer.router, input);
    ggml_mul_mat_set_prec(router, GGML_PREC_F32);
    ggml_tensor* p = ggml_soft_max(ctx_, router);
    ggml_tensor* top = ggml_argsort_top_k(ctx_, p, static_cast<int>(n_used));
    note("experts." + std::to_string(block), top);
    ggml_tensor* weights = ggml_get_rows(ctx_, ggml_reshape_3d(ctx_, p, 1, s_.n_expert, n_tokens), top);
    weights = ggml_reshape_2d(ctx_, weights, n_used, n_tokens);
    // The smallest normal number of half precision keeps the quotient finite.
    ggml_tensor* sum = ggml_clamp(ctx_, ggml_sum_rows(ctx_, weights), 6.103515625e-5F, INFINITY);
    weights = ggml_div(ctx_, weights, sum);
    if (s_.expert_scale != 1.0F) weights = ggml_scale(ctx_, weights, s_.expert_scale);

    ggml_tensor* x = ggml_reshape_3d(ctx_, input, s_.n_embd, 1, n_tokens);
    ggml_tensor* inner = nullptr;
    if (layer.gate_up_exps != nullptr) {
        inner = ggml_swiglu(ctx_, ggml_mul_mat_id(ctx_, layer.gate_up_exps, x, top));
    } else {
        ggml_tensor* up = ggml_mul_mat_id(ctx_, layer.up_exps, x, top);
        inner = ggml_swiglu_split(ctx_, ggml_mul_mat_id(ctx_, layer.gate_exps, x, top), up);
    }
    ggml_tensor* out = ggml_mul_mat_id(ctx_, layer.down_exps, inner, top);
    out = sum_of_parts(ggml_mul(ctx_, out, ggml_reshape_3d(ctx_, weights, 1, n_used, n_tokens)), n_used);

    ggml_tensor* shared = ggml_swiglu_split(ctx_, ggml_mul_mat(ctx_, layer.shared_gate, input),
                                            ggml_mul_mat(ctx_, layer.shared_up, input));
    shared = ggml_mul_mat(ctx_, layer.shared_down, shared);
    ggml_tensor* share = ggml_sigmoid(ctx_, ggml_mul_mat(ctx_, layer.shared_router, input));
    return ggml_add(ctx_, out, ggml_mul(ctx_, shared, share));
}

void QwenBuilder::build() {
    const QwenGraphShape& shape = graph_.shape;
    make_inputs();
    ggml_tensor* residual = shape.is_draft ? embed_draft() : embed();
    note("embedding", residual);
    const uint32_t first = shape.is_draft ? s_.n_layer : 0;
    const uint32_t last = shape.is_draft ? s_.n_layer : s_.n_layer - 1;
    const bool needs_all = shape.wants_hidden || shape.n_outputs == shape.n_tokens;
    uint32_t linear = 0;
    for (uint32_t block = first; block <= last; ++block) {
        const QwenLayer& layer = model_.layers()[block];
        if (!shape.is_draft && s_.ple.layer == static_cast<int32_t>(block)) residual = add_ple(residual);
        Mixed mixed = mix(residual, layer.before_attention);
        note("mixed." + std::to_string(block), mixed.input);
        const bool is_linear = !shape.is_draft && s_.is_linear[block];
        ggml_tensor* out = is_linear ? delta_net(block, linear++, mixed.input) : attention(block, mixed.input);
        note("attended." + std::to_string(block), out);
        // The last layer computes only what somebody reads: states and rows for every token, the rest for outputs.
        if (block == last && shape.n_outputs == 0 && !shape.wants_hidden) return;
        residual = combine(residual, out, mixed.weights);
        if (block == last && !needs_all) {
            residual = ggml_get_rows(ctx_, ggml_reshape_2d(ctx_, residual, s_.hcn(), shape.n_tokens), graph_.outputs);
            residual = ggml_reshape_3d(ctx_, residual, s_.n_embd, s_.hc, shape.n_outputs);
        }
        mixed = mix(residual, layer.before_experts);
        residual = combine(residual, experts(block, mixed.input), mixed.weights);
        note("residual." + std::to_string(block), residual);
    }
    if (shape.wants_hidden) {
        graph_.hidden = ggml_reshape_2d(ctx_, residual, s_.hcn(), shape.n_tokens);
        ggml_set_output(graph_.hidden);
        expand(graph_.hidden);
        if (shape.n_outputs == 0) return;
        if (graph_.outputs != nullptr) {
            residual = ggml_get_rows(ctx_, graph_.hidden, graph_.outputs);
            residual = ggml_reshape_3d(ctx_, residual, s_.n_embd, s_.hc, shape.n_outputs);
        }
    }
    ggml_tensor* state = mix(residual, shape.is_draft ? model_.mtp().head : model_.head()).input;
    graph_.logits = ggml_mul_mat(ctx_, c_.output, state);
    ggml_set_name(graph_.logits, "logits");
    ggml_set_output(graph_.logits);
    expand(graph_.logits);
}

void QwenBuilder::build_pooling() {
    graph_.runs.push_back(make_pool_inputs(graph_.shape.runs.front().n_pooled));
    for (uint32_t i = 0; i < c_.cache.n_layers(); ++i) {
        pool(i, model_.layers()[c_.cache.block_of(i)], graph_.runs.front(), graph_.shape.runs.front().n_pooled);
    }
}

size_t qwen_graph_nodes(const QwenShape& s, const QwenGraphShape& graph, bool plain_operators, uint64_t strip_bytes) {
    const auto strips = [](const QwenRun& run, int64_t strip) {
        return static_cast<size_t>((run.n_tokens + strip - 1) / strip);
    };
    // Counted from the builders, rounded up: a layer without its runs, then what each run adds to a layer.
    size_t of_layer = 130 + 4 * s.hc + 2 * s.n_expert_used;
    for (const QwenRun& run : graph.runs) {
        of_layer += 60 + 2 * s.ratio + 2 * s.ple.kernel;
        if (run.is_masked)
            of_layer += 60 + 4 * s.n_index_heads + strips(run, dense_strip(s, run, strip_bytes)) * 14;
        else if (run.is_sparse)
            of_layer += strips(run, score_strip(run, strip_bytes)) * (4 * s.n_index_heads + (plain_operators ? 40 : 10)) +
                        strips(run, selected_strip(s, run, strip_bytes)) * 36;
        else
            of_layer += strips(run, dense_strip(s, run, strip_bytes)) * 14;
    }
    return (graph.is_draft ? 1 : s.n_layer) * of_layer + 200;
}

QwenGraph build_qwen_graph(const QwenGraphContext& context, const QwenGraphShape& shape) {
    QwenGraph graph;
    graph.shape = shape;
    graph.nodes = open_graph(graph.context, qwen_graph_nodes(context.model.qwen()->shape(), shape,
                                                             context.plain_operators, context.strip_bytes));
    QwenBuilder(context, graph).build();
    graph.cost = count_cost(graph.nodes);
    return graph;
}

QwenGraph build_pooling_graph(const QwenGraphContext& context, uint32_t n_pooled) {
    QwenGraph graph;
    QwenRun run;
    run.n_pooled = n_pooled;
    graph.shape.runs.push_back(run);
    graph.nodes = open_graph(graph.context, context.cache.n_layers() * (20 + context.model.qwen()->shape().ratio) + 16);
    QwenBuilder(context, graph).build_pooling();
    graph.cost = count_cost(graph.nodes);
    return graph;
}

}  // namespace assay
