// Evaluates ubatches of qwen4exp: selections, tables and inputs on the host, then the graph. One for the trunk, one for
// the draft block.
#pragma once

#include <memory>
#include <vector>

#include "capture.h"
#include "executor.h"
#include "indexed_cache.h"
#include "ple_table.h"
#include "qwen_graph.h"
#include "recurrent_rows.h"

namespace assay {

// Tokens whose cells have been taken, run after run.
struct QwenUbatch {
    struct Run {
        uint32_t sequence = 0;
        std::vector<qsa::Row> rows;
        RecurrentRows::Plan plan;  // trunk
    };
    std::vector<Run> runs;
    std::vector<int32_t> tokens;             // -1 where an embedding stands for the token
    std::vector<const float*> embeddings;    // [n] of each token, nullptr for those with an id
    std::vector<const float*> hidden;        // draft: [hcn] of each token
    std::vector<int32_t> outputs;            // places of the tokens whose logits are asked for
    bool wants_hidden = false;

    uint32_t n_tokens() const { return static_cast<uint32_t>(tokens.size()); }
};

class QwenEvaluator {
public:
    struct Parts {
        const Model& model;
        const assay_session_settings& settings;
        IndexedCache& cache;
        RecurrentRows* recurrent;  // nullptr: the draft block
        PleTable* ple;             // nullptr where the model has none, and for the draft block
        ggml_tensor* output;
        assay_work& work;
    };
    // Plans the buffers for the largest ubatch. Throws Failure.
    QwenEvaluator(const Parts& parts, uint32_t n_ubatch, bool wants_hidden);

    // Afterwards the logits and hidden rows can be read from graph(). On Failure nothing of the ubatch is to be kept.
    void evaluate(const QwenUbatch& ubatch);
    const QwenGraph& graph() const { return graph_; }
    Executor& executor() { return executor_; }
    const Executor& executor() const { return executor_; }
    void capture_into(Capture* capture) { capture_ = capture; }

private:
    QwenRun map(const QwenUbatch::Run& run);
    QwenRun map_masked(const QwenUbatch::Run& run);
    void pool_early(uint32_t sequence, const qsa::Selection& selection, uint32_t first, uint32_t last);
    QwenGraphContext graph_context() const;
    QwenGraphShape largest_shape(uint32_t n_ubatch, bool wants_hidden) const;
    void use_graph(const QwenGraphShape& shape);
    void set_inputs(const QwenUbatch& ubatch);
    void set_positions(const QwenUbatch& ubatch);
    void set_embeddings(const QwenUbatch& ubatch);
    void set_ple(const QwenUbatch& ubatch);
    void set_pooling(uint32_t sequence, const qsa::Selection& selection, uint32_t first, uint32_t n,
                     const QwenRunInputs& inputs);
    void set_selection(const QwenRun& run, const QwenRunInputs& inputs);
    void set_recurrent(const QwenRun& run, const RecurrentRows::Plan& plan, const QwenRunInputs& inputs);
    void set_history(uint32_t n_past, const QwenRun& run, const RecurrentRows::Plan& plan, const HistoryInputs& inputs);
    void count(uint32_t sequence);
    void take_captures();
    template <class Number>
    void send(ggml_tensor* input, const std::vector<Number>& numbers);

    Parts parts_;
    const QwenShape& s_;
    Executor executor_;
    QwenGraph graph_;
    Capture* capture_ = nullptr;
    bool was_captured_ = false;

    // Scratch of the inputs, kept to avoid allocations in generation.
    std::vector<int32_t> numbers_;
    std::vector<int64_t> long_numbers_;
    std::vector<float> reals_;
    std::vector<int32_t> context_;
    std::vector<uint64_t> ple_rows_;
    std::vector<uint32_t> first_pooled_;  // of each run of the ubatch
};

}  // namespace assay
