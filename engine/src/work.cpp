#include "work.h"

#include <algorithm>

#include "ggml-backend.h"

namespace assay {
namespace {

bool is_weight(const ggml_tensor* tensor) {
    return tensor->buffer != nullptr &&
           ggml_backend_buffer_get_usage(tensor->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
}

uint64_t product(uint64_t a, int64_t b) { return a * static_cast<uint64_t>(b); }

uint64_t node_flops(const ggml_tensor* node) {
    // A product of [k, m] and [k, n] does k multiply-adds for each of its m * n elements.
    if (node->op == GGML_OP_MUL_MAT)
        return 2 * product(static_cast<uint64_t>(ggml_nelements(node)), node->src[0]->ne[0]);
    // Each token meets the matrices of its experts only.
    if (node->op == GGML_OP_MUL_MAT_ID)
        return 2 * product(static_cast<uint64_t>(ggml_nelements(node)), node->src[0]->ne[0]);
    // Decay, prediction, update and read-out of a square state for each head and token.
    if (node->op == GGML_OP_GATED_DELTA_NET)
        return 7 * product(static_cast<uint64_t>(ggml_nelements(node->src[2])), node->src[2]->ne[0]);
    if (node->op == GGML_OP_FLASH_ATTN_EXT) {
        const ggml_tensor* q = node->src[0];
        const ggml_tensor* k = node->src[1];
        const ggml_tensor* v = node->src[2];
        const uint64_t n_pairs =
            product(product(product(1, q->ne[1]), q->ne[2]), q->ne[3]) * static_cast<uint64_t>(k->ne[1]);
        return 2 * n_pairs * static_cast<uint64_t>(k->ne[0] + v->ne[0]);
    }
    return 0;
}

}  // namespace

GraphCost count_cost(ggml_cgraph* graph) {
    GraphCost cost;
    const int n_nodes = ggml_graph_n_nodes(graph);
    cost.n_nodes = static_cast<uint64_t>(n_nodes);
    for (int i = 0; i < n_nodes; ++i) {
        const ggml_tensor* node = ggml_graph_node(graph, i);
        cost.n_flops += node_flops(node);
        // Views have their origin as a source but read nothing.
        if (node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_PERMUTE ||
            node->op == GGML_OP_TRANSPOSE) {
            continue;
        }
        for (const ggml_tensor* source : node->src) {
            if (source == nullptr || !is_weight(source)) continue;
            if (node->op == GGML_OP_GET_ROWS && source == node->src[0]) {
                cost.n_weight_bytes_read +=
                    product(ggml_row_size(source->type, source->ne[0]), ggml_nelements(node->src[1]));
            } else if (node->op == GGML_OP_MUL_MAT_ID && source == node->src[0]) {
                // Which experts are read depends on the values; as many as the tokens can choose at most.
                const int64_t n_experts = std::min(source->ne[2], ggml_nelements(node->src[2]));
                cost.n_weight_bytes_read += product(source->nb[2], n_experts);
            } else {
                cost.n_weight_bytes_read += ggml_nbytes(source);
            }
        }
    }
    return cost;
}

assay_work empty_work() {
    assay_work work{};
    work.struct_size = sizeof work;
    return work;
}

}  // namespace assay
