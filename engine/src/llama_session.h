// Sessions of the llama family: places tokens in the cache, runs the graphs, keeps the logits.
#pragma once

#include <memory>
#include <vector>

#include "cache.h"
#include "executor.h"
#include "graph.h"
#include "session.h"

namespace assay {

class LlamaSession final : public Session {
public:
    // Allocates the cache and the compute buffers for the largest ubatch. Throws Failure.
    LlamaSession(const Model& model, const assay_session_settings& settings);

    void decode(const assay_batch& batch, const volatile int* cancel) override;
    void decode_rows(const assay_rows& rows, const volatile int* cancel) override;
    const float* logits(uint32_t i) const override;

    // llama_edit.cpp
    void remove(int32_t sequence, int32_t p0, int32_t p1) override;
    void copy(int32_t source, int32_t target, int32_t p0, int32_t p1) override;
    void keep(int32_t sequence) override;
    void shift(int32_t sequence, int32_t p0, int32_t p1, int32_t delta) override;
    void fill_zero(int32_t sequence, uint32_t n) override;

    // llama_state.cpp
    size_t state_size(int32_t sequence) const override;
    size_t save_state(int32_t sequence, uint8_t* data, size_t size) const override;
    void restore_state(int32_t sequence, const uint8_t* data, size_t size) override;

    int32_t last_position(uint32_t sequence) const override { return cache_->last_position(sequence); }
    uint32_t n_cells_of(uint32_t sequence) const override { return cache_->n_cells_of(sequence); }
    uint64_t cache_bytes() const override { return cache_->bytes(); }
    uint64_t compute_bytes() const override { return executor_->compute_bytes(); }

private:
    // The tokens of one graph evaluation in the order in which the graph sees them: grouped by stream.
    struct Ubatch {
        std::vector<uint32_t> order;     // indices into the batch
        std::vector<Cache::Cell> cells;  // of each token in that order
        std::vector<uint32_t> outputs;   // places in `order` whose logits are asked for
    };

    void check(const assay_batch& batch) const;
    void check_room(const assay_batch& batch) const;
    Ubatch place(const assay_batch& batch, uint32_t begin, uint32_t end);
    GraphShape shape_of(const Ubatch& ubatch) const;
    void use_graph(const GraphShape& shape);
    void set_inputs(const assay_batch& batch, const Ubatch& ubatch);
    void set_mask(const assay_batch& batch, const Ubatch& ubatch, uint32_t first, const AttentionRun& run,
                  ggml_tensor* mask);
    void evaluate(const assay_batch& batch, const Ubatch& ubatch);
    void keep_logits(const Ubatch& ubatch);
    void undo(const assay_batch& batch, const std::vector<Ubatch>& done);
    // Runs a graph that is used once; the kept graph is dropped, because both share the compute buffers.
    void run_once(Graph& graph);
    std::vector<Cache::Cell> take_cells(uint32_t sequence, const std::vector<int32_t>& positions);

    std::unique_ptr<Cache> cache_;
    std::unique_ptr<Executor> executor_;
    Graph graph_;

    std::unique_ptr<float[]> logits_;
    size_t logits_capacity_ = 0;
    size_t n_logit_rows_ = 0;
    std::vector<int32_t> logit_rows_;  // of each batch entry, -1 without logits

    std::vector<int32_t> numbers_;  // scratch of the inputs, kept to avoid allocations in generation
    std::vector<int64_t> rows_;
    std::vector<uint16_t> mask_;
    std::vector<int32_t> view_;
};

}  // namespace assay
