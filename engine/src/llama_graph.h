// Graphs of the dense llama family.
#pragma once

#include "cache.h"
#include "graph.h"
#include "model.h"

namespace assay {

// Upper bound of the nodes of a graph with n_runs attention operations a layer.
size_t llama_graph_nodes(const Hyperparameters& hyper, size_t n_runs);

// The forward pass of shape.n_tokens tokens over the cache. flash_attention: one fused operator; otherwise
// products, a mask and a softmax, which every back end has (not for q8_0 rows).
Graph build_llama_graph(const Model& model, const Cache& cache, const GraphShape& shape, bool flash_attention);

// Rotates the keys of n cache rows by a position difference each. Inputs: rows (i64), outputs (i32, the same
// rows), positions (i32, the differences).
Graph build_llama_shift(const Model& model, const Cache& cache, uint32_t n_rows);

}  // namespace assay
