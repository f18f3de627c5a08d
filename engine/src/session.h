// One mutable set of sequences over a model: places tokens in the cache, runs the graphs, keeps the logits.
#pragma once

#include <memory>
#include <vector>

#include "cache.h"
#include "graph.h"
#include "model.h"

namespace assay {

class Session {
public:
    // Allocates the cache and the compute buffers for the largest ubatch. Throws Failure.
    Session(const Model& model, const assay_session_settings& settings);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // All or nothing: on any Failure the cells that the call added are gone again.
    void decode(const assay_batch& batch, const volatile int* cancel);
    const float* logits(uint32_t i) const;

    // session_edit.cpp
    void remove(int32_t sequence, int32_t p0, int32_t p1);
    void copy(int32_t source, int32_t target, int32_t p0, int32_t p1);
    void keep(int32_t sequence);
    void shift(int32_t sequence, int32_t p0, int32_t p1, int32_t delta);
    void fill_zero(int32_t sequence, uint32_t n);

    // state.cpp
    size_t state_size(int32_t sequence) const;
    size_t save_state(int32_t sequence, uint8_t* data, size_t size) const;
    void restore_state(int32_t sequence, const uint8_t* data, size_t size);

    const Cache& cache() const { return *cache_; }
    uint64_t compute_bytes() const;
    uint32_t check_sequence(int32_t sequence) const;  // Failure(ASSAY_INVALID) outside [0, n_seq)
    const assay_work& work() const { return work_; }
    void reset_work();

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
    void allocate(Graph& graph);
    void compute(ggml_cgraph* graph, uint32_t n_tokens);
    void use_threads(uint32_t n_tokens);
    void make_pools();
    void keep_logits(const Ubatch& ubatch);
    void undo(const assay_batch& batch, const std::vector<Ubatch>& done);
    // Runs a graph that is used once; the kept graph is dropped, because both share the compute buffers.
    void run_once(Graph& graph);
    std::vector<Cache::Cell> take_cells(uint32_t sequence, const std::vector<int32_t>& positions);

    const Model& model_;
    assay_session_settings settings_;
    assay_work work_;
    std::unique_ptr<Cache> cache_;
    std::vector<BackendHandle> backends_;  // accelerator first, CPU last
    SchedulerHandle scheduler_;
    uint64_t scheduled_bytes_ = 0;
    Graph graph_;

    ggml_threadpool* pool_ = nullptr;        // generation
    ggml_threadpool* pool_batch_ = nullptr;  // prefill; the same pool where the counts are equal
    ggml_threadpool* pool_in_use_ = nullptr;

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
