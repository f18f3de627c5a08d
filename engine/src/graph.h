// One compute graph: its shape (all that decides its topology), its inputs and its result.
#pragma once

#include <cstdint>
#include <vector>

#include "devices.h"
#include "work.h"

namespace assay {

// Attention of neighbouring streams that bring the same number of tokens, computed as one operation.
struct AttentionRun {
    uint32_t first_stream = 0;
    uint32_t n_streams = 1;
    uint32_t n_tokens = 0;  // of each stream
    uint32_t n_cells = 0;   // viewed rows of each stream
    bool operator==(const AttentionRun&) const = default;
};

struct GraphShape {
    uint32_t n_tokens = 0;
    uint32_t n_outputs = 0;
    std::vector<AttentionRun> runs;  // in the order of the tokens
    bool operator==(const GraphShape&) const = default;
};

struct Graph {
    GraphShape shape;
    ContextHandle context;
    ggml_cgraph* nodes = nullptr;
    ggml_tensor* tokens = nullptr;     // i32 [n_tokens]
    ggml_tensor* positions = nullptr;  // i32 [n_tokens]
    ggml_tensor* rows = nullptr;       // i64 [n_tokens], cache rows that the tokens are written to
    ggml_tensor* outputs = nullptr;    // i32 [n_outputs], nullptr where every token is an output, in order
    std::vector<ggml_tensor*> masks;   // f16 [n_cells, n_tokens, 1, n_streams] of each run: 0 or -inf
    ggml_tensor* logits = nullptr;     // f32 [n_vocab, n_outputs], nullptr without outputs
    GraphCost cost;
};

// A context for one graph of at most n_nodes nodes, and the empty graph in it.
ggml_cgraph* open_graph(ContextHandle& context, size_t n_nodes);

ggml_tensor* new_input(ggml_context* context, ggml_type type, const char* name, int64_t ne0, int64_t ne1 = 1,
                       int64_t ne2 = 1, int64_t ne3 = 1);

}  // namespace assay
