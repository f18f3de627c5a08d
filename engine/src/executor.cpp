#include "executor.h"

#include "failure.h"
#include "ggml-cpu.h"

namespace assay {
namespace {

bool is_raised_flag(void* flag) { return is_raised(static_cast<const volatile int*>(flag)); }

}  // namespace

AbortFlag::AbortFlag(ggml_backend_t backend, const volatile int* flag)
    : backend_(backend),
      set_(devices().cpu_function<ggml_backend_set_abort_callback_t>("ggml_backend_set_abort_callback")) {
    if (set_ != nullptr && flag != nullptr) set_(backend_, is_raised_flag, const_cast<int*>(flag));
}

AbortFlag::~AbortFlag() {
    if (set_ != nullptr) set_(backend_, nullptr, nullptr);
}

void check_settings(const assay_session_settings& settings) {
    const auto need = [](bool holds, const std::string& text) {
        if (!holds) throw Failure(ASSAY_INVALID, text);
    };
    need(settings.n_ctx >= 1 && settings.n_ctx <= (1U << 28),
         "n_ctx is " + std::to_string(settings.n_ctx) + ", 1 to 268435456 cells are allowed");
    need(settings.n_seq >= 1 && settings.n_seq <= kMaxSequences,
         "n_seq is " + std::to_string(settings.n_seq) + ", 1 to " + std::to_string(kMaxSequences) +
             " sequences are allowed");
    need(settings.n_ubatch >= 1 && settings.n_ubatch <= 8192,
         "n_ubatch is " + std::to_string(settings.n_ubatch) + ", 1 to 8192 tokens are allowed");
    for (const uint32_t n : {settings.n_threads, settings.n_threads_batch}) {
        need(n >= 1 && n <= GGML_MAX_N_THREADS, "a thread count is " + std::to_string(n) + ", 1 to " +
                                                    std::to_string(GGML_MAX_N_THREADS) + " threads are allowed");
    }
}

Executor::Executor(const Model& model, const assay_session_settings& settings, assay_work& work, size_t n_nodes)
    : plan_(model.memory_plan()), n_threads_(settings.n_threads), n_threads_batch_(settings.n_threads_batch), work_(work) {
    const Devices& all = devices();
    std::vector<ggml_backend_dev_t> wanted;
    if (model.uses_accelerator()) wanted.push_back(all.accelerator);
    wanted.push_back(all.cpu);
    std::vector<ggml_backend_t> raw;
    for (ggml_backend_dev_t device : wanted) {
        backends_.emplace_back(ggml_backend_dev_init(device, nullptr));
        if (!backends_.back()) {
            throw Failure(ASSAY_MEMORY, std::string("cannot start the back end ") + ggml_backend_dev_name(device) +
                                            ": " + take_ggml_error());
        }
        raw.push_back(backends_.back().get());
    }
    // The scheduler describes up to 60 copies of inputs for each node, in one block that it does not check.
    need_memory(n_nodes * 2 * 60 * sizeof(ggml_tensor) + ggml_graph_overhead_custom(n_nodes * 2, false));
    scheduler_.reset(
        ggml_backend_sched_new(raw.data(), nullptr, static_cast<int>(raw.size()), n_nodes * 2, false, true));
    if (!scheduler_) throw Failure(ASSAY_MEMORY, "cannot make a scheduler of " + std::to_string(n_nodes) + " nodes");
}

Executor::~Executor() {
    // The back end must not keep a pool that is gone.
    scheduler_.reset();
    backends_.clear();
    const auto free_pool = devices().cpu_function<decltype(&ggml_threadpool_free)>("ggml_threadpool_free");
    if (free_pool == nullptr) return;
    if (pool_batch_ != nullptr && pool_batch_ != pool_) free_pool(pool_batch_);
    if (pool_ != nullptr) free_pool(pool_);
}

void Executor::reserve(ggml_cgraph* largest, uint32_t n_tokens) {
    if (plan_ != nullptr) {
        std::vector<size_t> sizes(backends_.size());
        ggml_backend_sched_reserve_size(scheduler_.get(), largest, sizes.data());
        for (size_t i = 0; i < sizes.size(); ++i) {
            plan_->add(ggml_backend_get_device(backends_[i].get()), sizes[i]);
            plan_->compute_bytes += sizes[i];
        }
        return;
    }
    if (!ggml_backend_sched_reserve(scheduler_.get(), largest)) {
        throw Failure(ASSAY_MEMORY, "cannot allocate the compute buffers for ubatches of " + std::to_string(n_tokens) +
                                        " tokens: " + take_ggml_error());
    }
    scheduled_bytes_ = compute_bytes();
    work_.n_allocations += 1;
    if (pool_ == nullptr) make_pools();
}

void Executor::make_pools() {
    const auto new_pool = devices().cpu_function<decltype(&ggml_threadpool_new)>("ggml_threadpool_new");
    if (new_pool == nullptr) return;  // the back end makes its own threads
    const auto make = [&](uint32_t n_threads, bool is_paused) {
        ggml_threadpool_params params = ggml_threadpool_params_default(static_cast<int>(n_threads));
        params.paused = is_paused;
        ggml_threadpool* pool = new_pool(&params);
        if (pool == nullptr) throw Failure(ASSAY_MEMORY, "cannot start " + std::to_string(n_threads) + " threads");
        return pool;
    };
    // Idle pools wait on a condition instead of spinning.
    pool_ = make(n_threads_, true);
    pool_batch_ = n_threads_batch_ == n_threads_ ? pool_ : make(n_threads_batch_, true);
}

uint64_t Executor::compute_bytes() const {
    uint64_t total = 0;
    for (const BackendHandle& backend : backends_)
        total += ggml_backend_sched_get_buffer_size(scheduler_.get(), backend.get());
    return total;
}

void Executor::allocate(ggml_cgraph* graph, uint32_t n_tokens) {
    ggml_backend_sched_reset(scheduler_.get());
    if (!ggml_backend_sched_alloc_graph(scheduler_.get(), graph)) {
        throw Failure(ASSAY_MEMORY, "cannot allocate a graph of " + std::to_string(n_tokens) +
                                        " tokens: " + take_ggml_error());
    }
    const uint64_t bytes = compute_bytes();
    if (bytes != scheduled_bytes_) {
        scheduled_bytes_ = bytes;
        work_.n_allocations += 1;
    }
}

void Executor::use_threads(bool is_generation) {
    ggml_threadpool* pool = is_generation ? pool_ : pool_batch_;
    if (pool != nullptr && pool != pool_in_use_) {
        const auto set_pool =
            devices().cpu_function<decltype(&ggml_backend_cpu_set_threadpool)>("ggml_backend_cpu_set_threadpool");
        if (set_pool != nullptr) set_pool(cpu(), pool);
        pool_in_use_ = pool;
    }
    const auto set_threads = devices().cpu_function<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads");
    if (set_threads != nullptr) set_threads(cpu(), static_cast<int>(is_generation ? n_threads_ : n_threads_batch_));
}

void Executor::compute(ggml_cgraph* graph, bool is_generation) {
    use_threads(is_generation);
    const ggml_status status = ggml_backend_sched_graph_compute(scheduler_.get(), graph);
    if (status == GGML_STATUS_SUCCESS) return;
    if (status == GGML_STATUS_ABORTED) throw Failure(ASSAY_CANCELLED, "the decode was cancelled");
    if (status == GGML_STATUS_ALLOC_FAILED)
        throw Failure(ASSAY_MEMORY, "a back end ran out of memory: " + take_ggml_error());
    throw Failure(ASSAY_INTERNAL, "a back end failed: " + take_ggml_error());
}

}  // namespace assay
