#include "llama_graph.h"

#include <cmath>

namespace assay {
namespace {

class LlamaGraphBuilder {
public:
    LlamaGraphBuilder(const Model& model, const Cache& cache, Graph& graph, bool flash_attention)
        : model_(model),
          hyper_(model.hyper()),
          cache_(cache),
          graph_(graph),
          ctx_(graph.context.get()),
          flash_attention_(flash_attention) {}

    void build() {
        make_inputs();
        ggml_tensor* state = ggml_get_rows(ctx_, model_.token_embedding(), graph_.tokens);
        const uint32_t last = hyper_.n_layer - 1;
        for (uint32_t layer = 0; layer < last; ++layer) {
            ggml_tensor* attended = attention(layer, state);
            state = feed_forward(layer, ggml_add(ctx_, attended, state));
        }
        finish(last, state);
    }

private:
    void make_inputs() {
        const GraphShape& shape = graph_.shape;
        graph_.tokens = new_input(ctx_, GGML_TYPE_I32, "tokens", shape.n_tokens);
        graph_.positions = new_input(ctx_, GGML_TYPE_I32, "positions", shape.n_tokens);
        graph_.rows = new_input(ctx_, GGML_TYPE_I64, "rows", shape.n_tokens);
        for (const AttentionRun& run : shape.runs) {
            graph_.masks.push_back(new_input(ctx_, GGML_TYPE_F16, "mask", run.n_cells, run.n_tokens, 1, run.n_streams));
        }
        if (shape.n_outputs > 0 && shape.n_outputs < shape.n_tokens) {
            graph_.outputs = new_input(ctx_, GGML_TYPE_I32, "outputs", shape.n_outputs);
        }
    }

    // The last layer computes only what somebody reads: cache rows for every token, the rest for outputs.
    void finish(uint32_t layer, ggml_tensor* state) {
        if (graph_.shape.n_outputs == 0) {
            ggml_tensor* input = norm(state, model_.layers()[layer].attention_norm);
            write_cache(layer, input, joined_queries(layer, input));
            return;
        }
        ggml_tensor* attended = attention(layer, state);
        if (graph_.outputs != nullptr) state = ggml_get_rows(ctx_, state, graph_.outputs);
        state = feed_forward(layer, ggml_add(ctx_, attended, state));
        state = norm(state, model_.output_norm());
        graph_.logits = ggml_mul_mat(ctx_, model_.output(), state);
        ggml_set_name(graph_.logits, "logits");
        ggml_set_output(graph_.logits);
        ggml_build_forward_expand(graph_.nodes, graph_.logits);
    }

    ggml_tensor* norm(ggml_tensor* state, ggml_tensor* weight) {
        return ggml_mul(ctx_, ggml_rms_norm(ctx_, state, hyper_.norm_epsilon), weight);
    }

    ggml_tensor* project(ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* state) {
        ggml_tensor* out = ggml_mul_mat(ctx_, weight, state);
        return bias == nullptr ? out : ggml_add(ctx_, out, bias);
    }

    ggml_tensor* joined_queries(uint32_t index, ggml_tensor* input) {
        ggml_tensor* weight = model_.layers()[index].qv;
        return weight == nullptr ? nullptr : ggml_mul_mat(ctx_, weight, input);
    }

    ggml_tensor* rotate(ggml_tensor* heads) {
        return ggml_rope_ext(ctx_, heads, graph_.positions, model_.rope_factors(), static_cast<int>(hyper_.n_rot),
                             hyper_.rope_type, static_cast<int>(hyper_.n_ctx_train), hyper_.rope_base, 1.0F, 0.0F, 1.0F,
                             32.0F, 1.0F);
    }

    // `qv`: the joined product of queries and values, nullptr where they are separate.
    void write_cache(uint32_t index, ggml_tensor* input, ggml_tensor* qv) {
        const LlamaLayer& layer = model_.layers()[index];
        const int64_t n_tokens = graph_.shape.n_tokens;
        ggml_tensor* k = project(layer.k, layer.k_bias, input);
        k = ggml_reshape_3d(ctx_, k, hyper_.n_head_size_k, hyper_.n_head_kv, n_tokens);
        if (layer.k_norm != nullptr) k = norm(k, layer.k_norm);
        k = ggml_reshape_2d(ctx_, rotate(k), hyper_.n_embd_k(), n_tokens);
        ggml_build_forward_expand(graph_.nodes, ggml_set_rows(ctx_, cache_.keys(index), k, graph_.rows));
        const size_t n_q = static_cast<size_t>(hyper_.n_head) * hyper_.n_head_size_k;
        ggml_tensor* v = qv == nullptr
                             ? project(layer.v, layer.v_bias, input)
                             : ggml_view_2d(ctx_, qv, hyper_.n_embd_v(), n_tokens, qv->nb[1], n_q * sizeof(float));
        ggml_build_forward_expand(graph_.nodes, ggml_set_rows(ctx_, cache_.values(index), v, graph_.rows));
    }

    // In the last layer only the tokens with outputs go through the output projection.
    ggml_tensor* attention(uint32_t index, ggml_tensor* state) {
        const LlamaLayer& layer = model_.layers()[index];
        ggml_tensor* input = norm(state, layer.attention_norm);
        ggml_tensor* qv = joined_queries(index, input);
        ggml_tensor* q = qv == nullptr ? project(layer.q, layer.q_bias, input) : qv;
        q = ggml_view_3d(ctx_, q, hyper_.n_head_size_k, hyper_.n_head, graph_.shape.n_tokens,
                         hyper_.n_head_size_k * sizeof(float), q->nb[1], 0);
        if (layer.q_norm != nullptr) q = norm(q, layer.q_norm);
        q = rotate(q);
        ggml_build_forward_expand(graph_.nodes, q);
        write_cache(index, input, qv);

        std::vector<ggml_tensor*> parts;
        uint32_t first_token = 0;
        for (size_t i = 0; i < graph_.shape.runs.size(); ++i) {
            const AttentionRun& run = graph_.shape.runs[i];
            parts.push_back(attend(index, run, q, first_token, graph_.masks[i]));
            first_token += run.n_tokens * run.n_streams;
        }
        // Pairwise, so that each part is copied log2(n) times.
        while (parts.size() > 1) {
            std::vector<ggml_tensor*> joined;
            for (size_t i = 0; i + 1 < parts.size(); i += 2)
                joined.push_back(ggml_concat(ctx_, parts[i], parts[i + 1], 1));
            if (parts.size() % 2 == 1) joined.push_back(parts.back());
            parts = std::move(joined);
        }
        ggml_tensor* attended = parts.front();
        if (index + 1 == hyper_.n_layer && graph_.outputs != nullptr)
            attended = ggml_get_rows(ctx_, attended, graph_.outputs);
        return project(layer.o, layer.o_bias, attended);
    }

    // Keys or values of a run as [head size, cells, heads, streams].
    ggml_tensor* cached(ggml_tensor* rows, int64_t head_size, const AttentionRun& run) {
        const size_t row_bytes = rows->nb[1];
        const size_t stream_bytes = row_bytes * cache_.n_rows();
        ggml_tensor* view = ggml_view_4d(ctx_, rows, head_size, hyper_.n_head_kv, run.n_cells, run.n_streams,
                                         ggml_row_size(rows->type, head_size), row_bytes, stream_bytes,
                                         run.first_stream * stream_bytes);
        return ggml_permute(ctx_, view, 0, 2, 1, 3);
    }

    // [n_head * n_head_size_v, tokens of the run]
    ggml_tensor* attend(uint32_t index, const AttentionRun& run, ggml_tensor* q, uint32_t first_token,
                        ggml_tensor* mask) {
        const int64_t n_attended = static_cast<int64_t>(hyper_.n_head_size_v) * hyper_.n_head;
        const int64_t n_tokens = static_cast<int64_t>(run.n_tokens) * run.n_streams;
        const float scale = 1.0F / std::sqrt(static_cast<float>(hyper_.n_head_size_k));
        q = ggml_view_4d(ctx_, q, hyper_.n_head_size_k, hyper_.n_head, run.n_tokens, run.n_streams, q->nb[1], q->nb[2],
                         q->nb[2] * run.n_tokens, q->nb[2] * first_token);
        q = ggml_permute(ctx_, q, 0, 2, 1, 3);
        ggml_tensor* k = cached(cache_.keys(index), hyper_.n_head_size_k, run);
        ggml_tensor* v = cached(cache_.values(index), hyper_.n_head_size_v, run);
        if (flash_attention_) {
            ggml_tensor* out = ggml_flash_attn_ext(ctx_, q, k, v, mask, scale, 0.0F, 0.0F);
            ggml_flash_attn_ext_set_prec(out, GGML_PREC_F32);
            return ggml_reshape_2d(ctx_, out, n_attended, n_tokens);
        }
        ggml_tensor* scores = ggml_mul_mat(ctx_, k, q);
        ggml_mul_mat_set_prec(scores, GGML_PREC_F32);
        ggml_tensor* weights = ggml_soft_max_ext(ctx_, scores, mask, scale, 0.0F);
        ggml_tensor* out = ggml_mul_mat(ctx_, ggml_cont(ctx_, ggml_transpose(ctx_, v)), weights);
        return ggml_cont_2d(ctx_, ggml_permute(ctx_, out, 0, 2, 1, 3), n_attended, n_tokens);
    }

    ggml_tensor* feed_forward(uint32_t index, ggml_tensor* state) {
        const LlamaLayer& layer = model_.layers()[index];
        ggml_tensor* input = norm(state, layer.ffn_norm);
        ggml_tensor* gated = nullptr;
        if (layer.gate_up != nullptr) {
            gated = ggml_swiglu(ctx_, ggml_mul_mat(ctx_, layer.gate_up, input));
        } else {
            gated = ggml_swiglu_split(ctx_, ggml_mul_mat(ctx_, layer.gate, input), ggml_mul_mat(ctx_, layer.up, input));
        }
        ggml_tensor* down = ggml_mul_mat(ctx_, layer.down, gated);
        return ggml_add(ctx_, down, state);
    }

    const Model& model_;
    const Hyperparameters& hyper_;
    const Cache& cache_;
    Graph& graph_;
    ggml_context* ctx_;
    bool flash_attention_;
};

}  // namespace

size_t llama_graph_nodes(const Hyperparameters& hyper, size_t n_runs) {
    // A layer has at most 36 nodes outside attention and 13 for each run with its joining copy.
    return static_cast<size_t>(hyper.n_layer) * (36 + 13 * n_runs) + 16;
}

Graph build_llama_graph(const Model& model, const Cache& cache, const GraphShape& shape, bool flash_attention) {
    Graph graph;
    graph.shape = shape;
    graph.nodes = open_graph(graph.context, llama_graph_nodes(model.hyper(), shape.runs.size()));
    LlamaGraphBuilder(model, cache, graph, flash_attention).build();
    graph.cost = count_cost(graph.nodes);
    return graph;
}

Graph build_llama_shift(const Model& model, const Cache& cache, uint32_t n_rows) {
    const Hyperparameters& hyper = model.hyper();
    Graph graph;
    graph.nodes = open_graph(graph.context, static_cast<size_t>(hyper.n_layer) * 8 + 8);
    ggml_context* ctx = graph.context.get();
    graph.rows = new_input(ctx, GGML_TYPE_I64, "rows", n_rows);
    graph.outputs = new_input(ctx, GGML_TYPE_I32, "outputs", n_rows);
    graph.positions = new_input(ctx, GGML_TYPE_I32, "positions", n_rows);
    for (uint32_t layer = 0; layer < hyper.n_layer; ++layer) {
        // Rotations add up, so rotating a stored key by the difference puts it at its new position.
        ggml_tensor* k = ggml_get_rows(ctx, cache.keys(layer), graph.outputs);
        k = ggml_reshape_3d(ctx, k, hyper.n_head_size_k, hyper.n_head_kv, n_rows);
        k = ggml_rope_ext(ctx, k, graph.positions, model.rope_factors(), static_cast<int>(hyper.n_rot), hyper.rope_type,
                          static_cast<int>(hyper.n_ctx_train), hyper.rope_base, 1.0F, 0.0F, 1.0F, 32.0F, 1.0F);
        k = ggml_reshape_2d(ctx, k, hyper.n_embd_k(), n_rows);
        ggml_build_forward_expand(graph.nodes, ggml_set_rows(ctx, cache.keys(layer), k, graph.rows));
    }
    graph.cost = count_cost(graph.nodes);
    return graph;
}

}  // namespace assay
