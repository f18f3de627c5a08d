// QSA attention. Rows are gathered in rank order, so that results do not depend on where cells lie.
#include <algorithm>

#include "qwen_builder.h"

namespace assay {
namespace {

// What no query may see. Finite, so that products with zero stay zero; far below every score.
constexpr float kHidden = -1e30F;
int64_t strip_of(int64_t n_tokens, int64_t bytes_of_query, uint64_t strip_bytes) {
    return std::clamp<int64_t>(static_cast<int64_t>(strip_bytes) / std::max<int64_t>(bytes_of_query, 1), 1, n_tokens);
}

}  // namespace

int64_t selected_strip(const QwenShape& s, const QwenRun& run, uint64_t strip_bytes) {
    const int64_t n_cells = int64_t{s.budget} + run.n_tail;
    const int64_t of_query = n_cells * (3 * int64_t{s.n_embd_kv()} + 2 * int64_t{s.n_head}) * 4;
    return strip_of(run.n_tokens, of_query, strip_bytes);
}

int64_t dense_strip(const QwenShape& s, const QwenRun& run, uint64_t strip_bytes) {
    return strip_of(run.n_tokens, int64_t{run.n_viewed} * (2 * int64_t{s.n_head} + 2) * 4, strip_bytes);
}

int64_t score_strip(const QwenRun& run, uint64_t strip_bytes) {
    return strip_of(run.n_tokens, int64_t{run.n_viewed} * 12 * 4, strip_bytes);
}

ggml_tensor* QwenBuilder::rotate(ggml_tensor* heads, ggml_tensor* positions) {
    int sections[4] = {s_.sections[0], s_.sections[1], s_.sections[2], s_.sections[3]};
    return ggml_rope_multi(ctx_, heads, positions, nullptr, static_cast<int>(s_.n_rot), sections,
                           GGML_ROPE_TYPE_IMROPE, static_cast<int>(c_.model.hyper().n_ctx_train), s_.rope_base, 1.0F,
                           0.0F, 1.0F, 32.0F, 1.0F);
}

// Mean of the raw keys of a block, norm, rotation to the block's first cell - in this order.
void QwenBuilder::pool(uint32_t index, const QwenLayer& layer, const QwenRunInputs& inputs, uint32_t n_pooled) {
    ggml_tensor* raw = ggml_get_rows(ctx_, c_.cache.raw(index), inputs.pool_cells);
    raw = ggml_reshape_3d(ctx_, raw, s_.index_size, s_.ratio, n_pooled);
    ggml_tensor* mean = ggml_scale(ctx_, sum_of_parts(raw, s_.ratio), 1.0F / static_cast<float>(s_.ratio));
    ggml_tensor* key = norm(mean, layer.index_k_norm);
    key = rotate(ggml_reshape_3d(ctx_, key, s_.index_size, 1, n_pooled), inputs.pool_at);
    key = ggml_reshape_2d(ctx_, key, s_.index_size, n_pooled);
    expand(ggml_set_rows(ctx_, c_.cache.pooled(index), key, inputs.pool_rows));
}

ggml_tensor* QwenBuilder::attention(uint32_t block, ggml_tensor* input) {
    const QwenLayer& layer = model_.layers()[block];
    const uint32_t index = c_.cache.index_of(block);
    const int64_t n = input->ne[1];
    const int64_t hd = s_.head_size;
    // Query and gate of a head stand side by side.
    ggml_tensor* qg = ggml_mul_mat(ctx_, layer.q, input);
    const auto half = [&](int64_t offset) {
        return ggml_view_3d(ctx_, qg, hd, s_.n_head, n, static_cast<size_t>(2 * hd) * sizeof(float), qg->nb[1],
                            static_cast<size_t>(offset) * sizeof(float));
    };
    ggml_tensor* q = rotate(norm(half(0), layer.q_norm), graph_.positions);
    ggml_tensor* k = ggml_reshape_3d(ctx_, ggml_mul_mat(ctx_, layer.k, input), hd, s_.n_head_kv, n);
    k = rotate(norm(k, layer.k_norm), graph_.positions);
    ggml_tensor* v = ggml_mul_mat(ctx_, layer.v, input);
    ggml_tensor* raw = ggml_mul_mat(ctx_, layer.index_k, input);
    ggml_tensor* index_q =
        ggml_reshape_3d(ctx_, ggml_mul_mat(ctx_, layer.index_q, input), s_.index_size, s_.n_index_heads, n);
    index_q = rotate(norm(index_q, layer.index_q_norm), graph_.positions);
    expand(q);
    expand(index_q);
    k = ggml_reshape_2d(ctx_, k, s_.n_embd_kv(), n);
    expand(ggml_set_rows(ctx_, c_.cache.keys(index), k, graph_.rows));
    expand(ggml_set_rows(ctx_, c_.cache.values(index), v, graph_.rows));
    expand(ggml_set_rows(ctx_, c_.cache.raw(index), raw, graph_.rows));

    std::vector<ggml_tensor*> parts;
    int64_t first = 0;
    for (size_t i = 0; i < graph_.shape.runs.size(); ++i) {
        const QwenRun& run = graph_.shape.runs[i];
        const QwenRunInputs& inputs = graph_.runs[i];
        pool(index, layer, inputs, run.n_pooled);
        const auto own = [&](ggml_tensor* x) {
            return ggml_view_3d(ctx_, x, x->ne[0], x->ne[1], run.n_tokens, x->nb[1], x->nb[2],
                                static_cast<size_t>(first) * x->nb[2]);
        };
        if (run.is_masked)
            parts.push_back(attend_masked(index, run, inputs, own(q), own(index_q)));
        else if (run.is_sparse)
            parts.push_back(attend_selected(index, run, inputs, own(q), own(index_q)));
        else
            parts.push_back(attend_all(index, run, own(q)));
        first += run.n_tokens;
    }
    ggml_tensor* out = join(std::move(parts), 1);
    ggml_tensor* gate = ggml_cont_2d(ctx_, half(hd), hd * s_.n_head, n);
    return ggml_mul_mat(ctx_, layer.o, ggml_mul(ctx_, out, ggml_sigmoid(ctx_, gate)));
}

// Rows of the cache as [head size, n, kv heads, sets].
ggml_tensor* QwenBuilder::cached(ggml_tensor* rows, ggml_tensor* indices, int64_t n, int64_t n_sets) {
    ggml_tensor* gathered = ggml_get_rows(ctx_, rows, indices);
    gathered = ggml_reshape_4d(ctx_, gathered, s_.head_size, s_.n_head_kv, n, n_sets);
    return ggml_permute(ctx_, gathered, 0, 2, 1, 3);
}

// q [head size, queries, heads, sets], k and v [head size, cells, kv heads, sets], mask f32 [cells, queries, 1, sets].
// Returns [head size * heads, queries * sets].
ggml_tensor* QwenBuilder::softmax_attention(ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, ggml_tensor* mask) {
    const int64_t n_out = int64_t{s_.head_size} * s_.n_head;
    const int64_t n_queries = q->ne[1] * q->ne[3];
    if (c_.flash_attention) {
        // Beyond the range of half precision, hidden cells become -inf.
        ggml_tensor* half = ggml_cast(ctx_, mask, GGML_TYPE_F16);
        ggml_tensor* out = ggml_flash_attn_ext(ctx_, q, k, v, half, s_.attention_scale, 0.0F, 0.0F);
        ggml_flash_attn_ext_set_prec(out, GGML_PREC_F32);
        return ggml_reshape_2d(ctx_, out, n_out, n_queries);
    }
    ggml_tensor* scores = ggml_mul_mat(ctx_, k, q);
    ggml_mul_mat_set_prec(scores, GGML_PREC_F32);
    scores = ggml_scale(ctx_, scores, s_.attention_scale);
    ggml_tensor* weights = ggml_soft_max(ctx_, ggml_add(ctx_, scores, mask));
    ggml_tensor* out = ggml_mul_mat(ctx_, ggml_cont(ctx_, ggml_transpose(ctx_, v)), weights);
    return ggml_cont_2d(ctx_, ggml_permute(ctx_, out, 0, 2, 1, 3), n_out, n_queries);
}

// [ranks, queries]: 0 or hidden.
ggml_tensor* QwenBuilder::causal_mask(const QwenRun& run, const QwenRunInputs& inputs) {
    return ggml_scale_bias(ctx_, below(ctx_, inputs.visible, run.n_viewed), -kHidden, kHidden);
}

// Every query over the same rows, a strip of queries at a time. mask: f32 [rows, queries].
ggml_tensor* QwenBuilder::attend_rows(uint32_t index, const QwenRun& run, ggml_tensor* rows, ggml_tensor* q,
                                      ggml_tensor* mask) {
    ggml_tensor* k = cached(c_.cache.keys(index), rows, run.n_viewed, 1);
    ggml_tensor* v = cached(c_.cache.values(index), rows, run.n_viewed, 1);
    const int64_t strip = dense_strip(s_, run, c_.strip_bytes);
    std::vector<ggml_tensor*> parts;
    for (int64_t at = 0; at < run.n_tokens; at += strip) {
        const int64_t n = std::min(strip, run.n_tokens - at);
        ggml_tensor* own = ggml_view_3d(ctx_, q, q->ne[0], q->ne[1], n, q->nb[1], q->nb[2],
                                        static_cast<size_t>(at) * q->nb[2]);
        ggml_tensor* own_mask =
            ggml_view_2d(ctx_, mask, mask->ne[0], n, mask->nb[1], static_cast<size_t>(at) * mask->nb[1]);
        parts.push_back(softmax_attention(ggml_permute(ctx_, own, 0, 2, 1, 3), k, v, own_mask));
    }
    return join(std::move(parts), 1);
}

ggml_tensor* QwenBuilder::attend_all(uint32_t index, const QwenRun& run, ggml_tensor* q) {
    const auto which = static_cast<size_t>(&run - graph_.shape.runs.data());
    ggml_tensor* table = c_.cache.own_table();
    ggml_tensor* ranks = ggml_view_1d(ctx_, table, run.n_viewed, run.sequence * table->nb[1]);
    return attend_rows(index, run, ranks, q, causal_masks_[which]);
}

// A mask over the cells of the window: the blocks that a query keeps, spread over their cells, and what it may see.
ggml_tensor* QwenBuilder::attend_masked(uint32_t index, const QwenRun& run, const QwenRunInputs& inputs, ggml_tensor* q,
                                        ggml_tensor* index_q) {
    ggml_tensor* kept = kept_mask(scores(index, run, run.n_columns, index_q), inputs.block_bias);
    ggml_tensor* by_cell = ggml_get_rows(ctx_, ggml_cont(ctx_, ggml_transpose(ctx_, kept)), inputs.block_of_cell);
    ggml_tensor* mask = ggml_add(ctx_, ggml_cont(ctx_, ggml_transpose(ctx_, by_cell)), inputs.cell_mask);
    return attend_rows(index, run, inputs.tail, q, mask);
}

ggml_tensor* QwenBuilder::attend_selected(uint32_t index, const QwenRun& run, const QwenRunInputs& inputs,
                                          ggml_tensor* q, ggml_tensor* index_q) {
    const int64_t n_kept = std::min(s_.kept_blocks(), run.n_viewed);
    const int64_t n_members = n_kept * s_.ratio;
    const int64_t n_cells = n_members + run.n_tail;
    ggml_tensor* table = c_.cache.block_table();
    // Members of this sequence's blocks: [ratio, blocks].
    ggml_tensor* members = ggml_view_2d(ctx_, table, s_.ratio, run.n_viewed, table->nb[1],
                                        static_cast<size_t>(run.sequence) * c_.cache.n_blocks_max() * table->nb[1]);
    std::vector<ggml_tensor*> kept_parts;
    const int64_t score_step = score_strip(run, c_.strip_bytes);
    for (int64_t at = 0; at < run.n_tokens; at += score_step) {
        const int64_t n = std::min(score_step, run.n_tokens - at);
        ggml_tensor* own = ggml_view_3d(ctx_, index_q, index_q->ne[0], index_q->ne[1], n, index_q->nb[1],
                                        index_q->nb[2], static_cast<size_t>(at) * index_q->nb[2]);
        ggml_tensor* visible = ggml_view_2d(ctx_, inputs.visible, 1, n, inputs.visible->nb[1],
                                            static_cast<size_t>(at) * inputs.visible->nb[1]);
        kept_parts.push_back(kept_blocks(scores(index, run, run.n_viewed, own), visible, n_kept));
    }
    ggml_tensor* kept = join(std::move(kept_parts), 1);
    note("selected." + std::to_string(c_.cache.block_of(index)), kept);

    std::vector<ggml_tensor*> parts;
    const int64_t strip = selected_strip(s_, run, c_.strip_bytes);
    for (int64_t at = 0; at < run.n_tokens; at += strip) {
        const int64_t n = std::min(strip, run.n_tokens - at);
        const auto own = [&](ggml_tensor* x) {
            return ggml_view_2d(ctx_, x, x->ne[0], n, x->nb[1], static_cast<size_t>(at) * x->nb[1]);
        };
        ggml_tensor* blocks = ggml_reshape_1d(ctx_, own(kept), n_kept * n);
        ggml_tensor* cells = ggml_reshape_2d(ctx_, ggml_get_rows(ctx_, members, blocks), n_members, n);
        cells = ggml_concat(ctx_, cells, own(inputs.tail), 0);
        cells = ggml_reshape_1d(ctx_, cells, n_cells * n);
        // A query that sees fewer blocks than the budget holds has dead ones at the end.
        ggml_tensor* is_live = ggml_reshape_3d(ctx_, below(ctx_, own(inputs.visible), n_kept), 1, n_kept, n);
        is_live = ggml_reshape_2d(ctx_, ggml_repeat_4d(ctx_, is_live, s_.ratio, n_kept, n, 1), n_members, n);
        ggml_tensor* mask =
            ggml_concat(ctx_, ggml_scale_bias(ctx_, is_live, -kHidden, kHidden), own(inputs.tail_mask), 0);
        mask = ggml_reshape_4d(ctx_, mask, n_cells, 1, 1, n);
        ggml_tensor* k = cached(c_.cache.keys(index), cells, n_cells, n);
        ggml_tensor* v = cached(c_.cache.values(index), cells, n_cells, n);
        ggml_tensor* queries = ggml_view_4d(ctx_, q, q->ne[0], 1, q->ne[1], n, q->nb[1], q->nb[1], q->nb[2],
                                            static_cast<size_t>(at) * q->nb[2]);
        parts.push_back(softmax_attention(queries, k, v, mask));
    }
    return join(std::move(parts), 1);
}

}  // namespace assay
