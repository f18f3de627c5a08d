// Back ends, thread pools and the scheduler of one session: allocates graphs and computes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "devices.h"
#include "engine.h"
#include "model.h"

namespace assay {

inline constexpr uint32_t kMaxSequences = 256;  // of one session

// Throws Failure where a setting that every family has is out of range.
void check_settings(const assay_session_settings& settings);

class Executor {
public:
    // n_nodes: of the largest graph. Throws Failure.
    Executor(const Model& model, const assay_session_settings& settings, assay_work& work, size_t n_nodes);
    ~Executor();
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    // Plans the buffers for the largest graph, so that no later evaluation has to enlarge them.
    void reserve(ggml_cgraph* largest, uint32_t n_tokens);
    void allocate(ggml_cgraph* graph, uint32_t n_tokens);
    // Generation and prefill have their own thread counts.
    void compute(ggml_cgraph* graph, bool is_generation);
    uint64_t compute_bytes() const;
    ggml_backend_t cpu() const { return backends_.back().get(); }
    ggml_backend_sched_t scheduler() const { return scheduler_.get(); }

private:
    void make_pools();
    void use_threads(bool is_generation);

    MemoryPlan* plan_;
    uint32_t n_threads_;
    uint32_t n_threads_batch_;
    assay_work& work_;
    std::vector<BackendHandle> backends_;  // accelerator first, CPU last
    SchedulerHandle scheduler_;
    uint64_t scheduled_bytes_ = 0;
    ggml_threadpool* pool_ = nullptr;        // generation
    ggml_threadpool* pool_batch_ = nullptr;  // prefill; the same pool where the counts are equal
    ggml_threadpool* pool_in_use_ = nullptr;
};

// Another thread may raise the flag meanwhile; NULL is never raised.
inline bool is_raised(const volatile int* flag) { return flag != nullptr && __atomic_load_n(flag, __ATOMIC_RELAXED) != 0; }

// Lets the CPU back end look at the caller's flag between nodes, for the time of one call only.
class AbortFlag {
public:
    AbortFlag(ggml_backend_t backend, const volatile int* flag);
    ~AbortFlag();
    AbortFlag(const AbortFlag&) = delete;
    AbortFlag& operator=(const AbortFlag&) = delete;

private:
    ggml_backend_t backend_;
    ggml_backend_set_abort_callback_t set_;
};

}  // namespace assay
