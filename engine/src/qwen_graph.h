// Graphs of qwen4exp: the trunk, and the draft block with the same parts.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "block_choice.h"
#include "capture.h"
#include "graph.h"
#include "indexed_cache.h"
#include "recurrent_rows.h"

namespace assay {

// The tokens of one sequence in a ubatch. Recurrent and sparse parts go run by run, everything else over all tokens.
struct QwenRun {
    uint32_t sequence = 0;
    uint32_t n_tokens = 0;
    bool is_sparse = false;   // else every own cell is attended, with a causal mask
    bool is_masked = false;   // the selection is exact as a mask over cells only
    uint32_t n_viewed = 0;    // dense: ranks; sparse: blocks; masked: cells of the window
    uint32_t n_columns = 0;   // masked: blocks with the spare one, padded
    uint32_t n_tail = 0;      // cells beside the blocks, of each query
    uint32_t n_pooled = 0;    // blocks whose pooled key is made
    uint32_t n_written = 0;   // recurrent rows
    bool operator==(const QwenRun&) const = default;
};

struct QwenGraphShape {
    bool is_draft = false;
    uint32_t n_tokens = 0;
    uint32_t n_embeddings = 0;  // tokens that come as embeddings
    uint32_t n_outputs = 0;
    bool wants_hidden = false;  // the residual of every token
    std::vector<QwenRun> runs;  // in the order of the tokens
    bool operator==(const QwenGraphShape&) const = default;
};

// Where the inputs of a convolution come from and go to. A recurrent row has `past` of them, each a row of its own.
struct HistoryInputs {
    ggml_tensor* from = nullptr;     // i32 [past]
    ggml_tensor* windows = nullptr;  // i32 [past * n_written]: columns of (past, run) to keep; nullptr for the last ones
    ggml_tensor* to = nullptr;       // i64 [past * n_written]
};

struct QwenRunInputs {
    ggml_tensor* visible = nullptr;         // f32 [1, n_tokens]: ranks or blocks that may be seen
    ggml_tensor* tail = nullptr;            // i32 [n_tail, n_tokens]: cache rows; masked: [n_viewed]
    ggml_tensor* tail_mask = nullptr;       // f32 [n_tail, n_tokens]: 0 or -1e30
    ggml_tensor* block_bias = nullptr;      // f32 [n_columns, n_tokens]
    ggml_tensor* block_of_cell = nullptr;   // i32 [n_viewed]
    ggml_tensor* cell_mask = nullptr;       // f32 [n_viewed, n_tokens]
    ggml_tensor* pool_cells = nullptr;      // i32 [ratio * n_pooled]: cache rows
    ggml_tensor* pool_at = nullptr;         // i32 [4 * n_pooled]: rope positions, axis by axis
    ggml_tensor* pool_rows = nullptr;       // i64 [n_pooled]
    ggml_tensor* state_from = nullptr;      // i32 [value heads]
    ggml_tensor* state_to = nullptr;        // i64 [value heads * n_written], newest first
    HistoryInputs conv;
    HistoryInputs ple;
};

struct QwenCapture {
    std::string name;
    ggml_tensor* tensor;
};

struct QwenGraph {
    QwenGraphShape shape;
    ContextHandle context;
    ggml_cgraph* nodes = nullptr;
    ggml_tensor* tokens = nullptr;      // i32 [n_tokens - n_embeddings]
    ggml_tensor* embeddings = nullptr;  // f32 [n, n_embeddings]
    ggml_tensor* sources = nullptr;     // i32 [n_tokens]: place among the tokens, then the embeddings, where both occur
    ggml_tensor* hidden_in = nullptr;   // f32 [hcn, n_tokens], draft
    ggml_tensor* positions = nullptr;   // i32 [4 * n_tokens]: t, y, x, t
    ggml_tensor* rows = nullptr;        // i64 [n_tokens], cache rows that the tokens are written to
    ggml_tensor* ple = nullptr;         // f32 [n, n_tokens]
    ggml_tensor* outputs = nullptr;     // i32 [n_outputs], nullptr where every token is an output, in order
    std::vector<QwenRunInputs> runs;
    ggml_tensor* logits = nullptr;      // f32 [n_vocab, n_outputs]
    ggml_tensor* hidden = nullptr;      // f32 [hcn, n_tokens]
    std::vector<QwenCapture> captures;
    std::vector<std::unique_ptr<SelectScratch>> scratch;
    GraphCost cost;
};

struct QwenGraphContext {
    const Model& model;
    const IndexedCache& cache;
    const RecurrentRows* recurrent;  // nullptr for the draft block
    ggml_tensor* output;             // the rows of the head, of the draft perhaps some
    bool flash_attention;
    bool plain_operators;            // only operators that every back end has
    uint64_t strip_bytes;
    uint32_t n_threads_max;
    const Capture* capture;          // nullptr: nothing is captured
};

// Queries whose rows are gathered, or whose scores are kept, at a time: memory must not grow with chunk times depth.
int64_t selected_strip(const QwenShape& shape, const QwenRun& run, uint64_t strip_bytes);
int64_t dense_strip(const QwenShape& shape, const QwenRun& run, uint64_t strip_bytes);
int64_t score_strip(const QwenRun& run, uint64_t strip_bytes);

// Upper bound of the nodes of a graph of this shape.
size_t qwen_graph_nodes(const QwenShape& shape, const QwenGraphShape& graph, bool plain_operators,
                        uint64_t strip_bytes);

QwenGraph build_qwen_graph(const QwenGraphContext& context, const QwenGraphShape& shape);

// Makes pooled keys of blocks whose cells were all written earlier. Inputs: those of runs[0] for pooling.
QwenGraph build_pooling_graph(const QwenGraphContext& context, uint32_t n_pooled);

}  // namespace assay
