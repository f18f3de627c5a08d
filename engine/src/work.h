// What a graph costs, counted from the graph itself: exact and the same on every host.
#pragma once

#include <cstdint>

#include "engine.h"
#include "ggml.h"

namespace assay {

struct GraphCost {
    uint64_t n_nodes = 0;
    uint64_t n_flops = 0;              // of matrix products, attention and delta nets
    uint64_t n_weight_bytes_read = 0;  // each weight once for each operation that reads it; of experts, those that tokens can choose at most
};

// Counts the nodes of the graph. Weights are the tensors in buffers marked as weights; a row look-up reads
// only its rows.
GraphCost count_cost(ggml_cgraph* graph);

// Zero counters with struct_size set.
assay_work empty_work();

}  // namespace assay
