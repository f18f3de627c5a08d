// The blocks that a query keeps: higher score first, then the lower ordinal.
#pragma once

#include <cstdint>
#include <vector>

#include "ggml.h"

namespace assay {

// Room for ordinals, one vector a thread, each as long as a row of scores. Lives as long as the graph.
using SelectScratch = std::vector<std::vector<int32_t>>;

// scores: f32 [blocks, queries], at least 0. visible: f32 [1, queries], how many of the first blocks a query sees.
// i32 [n_kept, queries], rising ordinals; those past min(n_kept, visible) are dead. On the host.
ggml_tensor* keep_blocks(ggml_context* context, ggml_tensor* scores, ggml_tensor* visible, int64_t n_kept,
                         SelectScratch& scratch);
// The same of operators that every back end has.
ggml_tensor* keep_blocks_plain(ggml_context* context, ggml_tensor* scores, ggml_tensor* visible, int64_t k);
// bias: f32 [blocks, queries], 0 where a block competes, at least qsa::kAlways where it is kept in any case.
// f32 [blocks, queries]: 0 for the blocks that the query keeps, those that it always keeps beside the budget. On the host.
ggml_tensor* keep_mask(ggml_context* context, ggml_tensor* scores, ggml_tensor* bias, int64_t n_kept, SelectScratch& scratch);
// 1 where the column is below the query's limit, else 0: [n, queries].
ggml_tensor* below(ggml_context* context, ggml_tensor* limits, int64_t n);

}  // namespace assay
