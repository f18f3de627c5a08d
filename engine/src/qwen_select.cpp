// Scores of blocks, and the blocks that a query keeps.
#include <cmath>

#include "qwen_builder.h"

namespace assay {

// f32 [blocks, queries]: the sum over the indexer heads of the positive parts of their products.
ggml_tensor* QwenBuilder::scores(uint32_t index, const QwenRun& run, uint32_t n_blocks, ggml_tensor* index_q) {
    ggml_tensor* table = c_.cache.pooled(index);
    ggml_tensor* pooled = ggml_view_2d(ctx_, table, s_.index_size, n_blocks, table->nb[1],
                                       static_cast<size_t>(run.sequence) * c_.cache.n_blocks_max() * table->nb[1]);
    ggml_tensor* sum = nullptr;
    for (uint32_t head = 0; head < s_.n_index_heads; ++head) {
        ggml_tensor* q = ggml_view_2d(ctx_, index_q, index_q->ne[0], index_q->ne[2], index_q->nb[2],
                                      static_cast<size_t>(head) * index_q->nb[1]);
        ggml_tensor* product = ggml_mul_mat(ctx_, pooled, q);
        ggml_mul_mat_set_prec(product, GGML_PREC_F32);
        ggml_tensor* part = ggml_relu(ctx_, product);
        sum = sum == nullptr ? part : ggml_add(ctx_, sum, part);
    }
    return ggml_scale(ctx_, sum, 1.0F / std::sqrt(static_cast<float>(s_.index_size)));
}

SelectScratch& QwenBuilder::new_scratch(const ggml_tensor* scores) {
    // Scratch belongs to the graph: an operator has no way to report that memory is out.
    graph_.scratch.push_back(std::make_unique<SelectScratch>(
        c_.n_threads_max, std::vector<int32_t>(static_cast<size_t>(scores->ne[0]))));
    return *graph_.scratch.back();
}

// Only on the host: the masked route exists for one policy of the past.
ggml_tensor* QwenBuilder::kept_mask(ggml_tensor* scores, ggml_tensor* bias) {
    return keep_mask(ctx_, scores, bias, s_.kept_blocks(), new_scratch(scores));
}

// i32 [kept, queries], rising ordinals; those past min(kept, visible) are dead.
ggml_tensor* QwenBuilder::kept_blocks(ggml_tensor* scores, ggml_tensor* visible, int64_t n_kept) {
    if (c_.plain_operators) return keep_blocks_plain(ctx_, scores, visible, n_kept);
    return keep_blocks(ctx_, scores, visible, n_kept, new_scratch(scores));
}

}  // namespace assay
