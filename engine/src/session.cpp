#include "session.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "failure.h"
#include "ggml-cpu.h"
#include "llama_graph.h"
#include "pace.h"

namespace assay {
namespace {

constexpr uint16_t kVisible = 0x0000;  // 0 and -inf in half precision
constexpr uint16_t kHidden = 0xFC00;

// How far the viewed part of the cache is rounded up, so that the graph of one step serves the next ones.
// Accelerators want whole tiles of 256. On the CPU generation splits the viewed cells evenly among threads,
// so a shorter rounding keeps the shares even, at the price of a new graph every 64 tokens.
constexpr uint32_t kViewStep = 256;
constexpr uint32_t kGenerationViewStep = 64;

uint32_t round_up(uint32_t value, uint32_t step) { return (value + step - 1) / step * step; }

bool is_raised(void* flag) { return *static_cast<const volatile int*>(flag) != 0; }

// Lets the CPU back end look at the caller's flag between nodes, for the time of one call only.
class AbortFlag {
public:
    AbortFlag(ggml_backend_t backend, const volatile int* flag)
        : backend_(backend),
          set_(devices().cpu_function<ggml_backend_set_abort_callback_t>("ggml_backend_set_abort_callback")) {
        if (set_ != nullptr && flag != nullptr) set_(backend_, is_raised, const_cast<int*>(flag));
    }
    ~AbortFlag() {
        if (set_ != nullptr) set_(backend_, nullptr, nullptr);
    }
    AbortFlag(const AbortFlag&) = delete;
    AbortFlag& operator=(const AbortFlag&) = delete;

private:
    ggml_backend_t backend_;
    ggml_backend_set_abort_callback_t set_;
};

assay_session_settings checked(const assay_session_settings& settings) {
    const auto need = [](bool holds, const std::string& text) {
        if (!holds) throw Failure(ASSAY_INVALID, text);
    };
    need(settings.n_ctx >= 1 && settings.n_ctx <= (1U << 28),
         "n_ctx is " + std::to_string(settings.n_ctx) + ", 1 to 268435456 cells are allowed");
    need(settings.n_seq >= 1 && settings.n_seq <= Cache::kMaxSequences,
         "n_seq is " + std::to_string(settings.n_seq) + ", 1 to " + std::to_string(Cache::kMaxSequences) +
             " sequences are allowed");
    need(settings.n_ubatch >= 1 && settings.n_ubatch <= 8192,
         "n_ubatch is " + std::to_string(settings.n_ubatch) + ", 1 to 8192 tokens are allowed");
    for (const uint32_t n : {settings.n_threads, settings.n_threads_batch}) {
        need(n >= 1 && n <= GGML_MAX_N_THREADS, "a thread count is " + std::to_string(n) + ", 1 to " +
                                                    std::to_string(GGML_MAX_N_THREADS) + " threads are allowed");
    }
    if (!settings.flash_attention && settings.kv_type == ASSAY_KV_Q8_0) {
        throw Failure(ASSAY_UNSUPPORTED, "kv_type q8_0 needs flash_attention");
    }
    return settings;
}

}  // namespace

Session::Session(const Model& model, const assay_session_settings& settings)
    : model_(model), settings_(checked(settings)), work_(empty_work()) {
    const Devices& all = devices();
    cache_ = std::make_unique<Cache>(model_, settings_, work_);
    work_.n_allocations += 1;
    std::vector<ggml_backend_dev_t> wanted;
    if (model_.uses_accelerator()) wanted.push_back(all.accelerator);
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
    const size_t n_nodes = llama_graph_nodes(model_.hyper(), cache_->n_streams());
    scheduler_.reset(
        ggml_backend_sched_new(raw.data(), nullptr, static_cast<int>(raw.size()), n_nodes * 2, false, true));
    if (!scheduler_) throw Failure(ASSAY_MEMORY, "cannot make a scheduler of " + std::to_string(n_nodes) + " nodes");

    // The largest graph is planned once, so that no later evaluation has to enlarge the buffers.
    GraphShape largest;
    largest.n_tokens = std::min(settings_.n_ubatch, cache_->n_cells());
    largest.n_outputs = std::min(settings_.n_seq, largest.n_tokens);
    largest.runs.push_back({0, 1, largest.n_tokens, cache_->n_rows()});
    const Graph graph = build_llama_graph(model_, *cache_, largest, settings_.flash_attention);
    if (!ggml_backend_sched_reserve(scheduler_.get(), graph.nodes)) {
        throw Failure(ASSAY_MEMORY, "cannot allocate the compute buffers for ubatches of " +
                                        std::to_string(largest.n_tokens) + " tokens: " + take_ggml_error());
    }
    scheduled_bytes_ = compute_bytes();
    work_.n_allocations += 1;
    make_pools();
}

Session::~Session() {
    // The back end must not keep a pool that is gone.
    scheduler_.reset();
    backends_.clear();
    const auto free_pool = devices().cpu_function<decltype(&ggml_threadpool_free)>("ggml_threadpool_free");
    if (free_pool == nullptr) return;
    if (pool_batch_ != nullptr && pool_batch_ != pool_) free_pool(pool_batch_);
    if (pool_ != nullptr) free_pool(pool_);
}

void Session::make_pools() {
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
    pool_ = make(settings_.n_threads, true);
    pool_batch_ = settings_.n_threads_batch == settings_.n_threads ? pool_ : make(settings_.n_threads_batch, true);
}

uint64_t Session::compute_bytes() const {
    uint64_t total = 0;
    for (const BackendHandle& backend : backends_)
        total += ggml_backend_sched_get_buffer_size(scheduler_.get(), backend.get());
    return total;
}

void Session::reset_work() { work_ = empty_work(); }

uint32_t Session::check_sequence(int32_t sequence) const {
    if (sequence < 0 || static_cast<uint32_t>(sequence) >= settings_.n_seq) {
        throw Failure(ASSAY_INVALID, "sequence " + std::to_string(sequence) + " does not exist, the session has 0 to " +
                                         std::to_string(settings_.n_seq - 1));
    }
    return static_cast<uint32_t>(sequence);
}

void Session::check(const assay_batch& batch) const {
    if (batch.n == 0) throw Failure(ASSAY_INVALID, "the batch is empty");
    if (batch.tokens == nullptr || batch.positions == nullptr || batch.seq_ids == nullptr || batch.logits == nullptr) {
        throw Failure(ASSAY_INVALID, "the batch lacks an array: tokens, positions, seq_ids and logits are needed");
    }
    std::vector<int64_t> next(settings_.n_seq, -1);
    for (uint32_t i = 0; i < batch.n; ++i) {
        const auto refuse = [i](const std::string& text) {
            throw Failure(ASSAY_INVALID, "entry " + std::to_string(i) + " of the batch: " + text);
        };
        if (batch.tokens[i] < 0 || static_cast<uint32_t>(batch.tokens[i]) >= model_.hyper().n_vocab) {
            refuse("token " + std::to_string(batch.tokens[i]) + " is outside the vocabulary of " +
                   std::to_string(model_.hyper().n_vocab));
        }
        const int32_t sequence = batch.seq_ids[i];
        if (sequence < 0 || static_cast<uint32_t>(sequence) >= settings_.n_seq) {
            refuse("sequence " + std::to_string(sequence) + " does not exist, the session has 0 to " +
                   std::to_string(settings_.n_seq - 1));
        }
        int64_t& expected = next[static_cast<uint32_t>(sequence)];
        if (expected < 0) {
            const int32_t last = cache_->last_position(static_cast<uint32_t>(sequence));
            // An empty sequence may begin anywhere.
            expected = last < 0 ? std::max(batch.positions[i], 0) : int64_t{last} + 1;
        }
        if (batch.positions[i] != expected || expected >= INT32_MAX - 1) {
            refuse("position " + std::to_string(batch.positions[i]) + " of sequence " + std::to_string(sequence) +
                   ", " + std::to_string(expected) + " is next");
        }
        ++expected;
    }
}

void Session::check_room(const assay_batch& batch) const {
    std::vector<uint32_t> needed(cache_->n_streams(), 0);
    for (uint32_t i = 0; i < batch.n; ++i) ++needed[cache_->stream_of(static_cast<uint32_t>(batch.seq_ids[i]))];
    for (uint32_t stream = 0; stream < cache_->n_streams(); ++stream) {
        if (needed[stream] > cache_->n_free(stream)) {
            throw Failure(ASSAY_FULL, "the batch needs " + std::to_string(needed[stream]) + " cells and " +
                                          (cache_->is_unified() ? "the cache" : "sequence " + std::to_string(stream)) +
                                          " has " + std::to_string(cache_->n_free(stream)) + " free of " +
                                          std::to_string(cache_->n_cells()));
        }
    }
}

void Session::decode(const assay_batch& batch, const volatile int* cancel) {
    n_logit_rows_ = 0;
    logit_rows_.clear();
    check(batch);
    check_room(batch);
    const auto start = std::chrono::steady_clock::now();
    size_t n_outputs = 0;
    for (uint32_t i = 0; i < batch.n; ++i) n_outputs += batch.logits[i] != 0 ? 1 : 0;
    const size_t capacity = n_outputs * model_.hyper().n_vocab;
    if (capacity > logits_capacity_) {
        logits_capacity_ = 0;
        logits_ = std::make_unique_for_overwrite<float[]>(capacity);
        logits_capacity_ = capacity;
    }
    logit_rows_.assign(batch.n, -1);

    const AbortFlag abort_flag(backends_.back().get(), cancel);
    work_.n_decode_calls += 1;
    std::vector<Ubatch> done;
    try {
        for (uint32_t begin = 0; begin < batch.n; begin += settings_.n_ubatch) {
            if (cancel != nullptr && *cancel != 0) throw Failure(ASSAY_CANCELLED, "the decode was cancelled");
            done.push_back(place(batch, begin, std::min(batch.n, begin + settings_.n_ubatch)));
            evaluate(batch, done.back());
        }
    } catch (...) {
        undo(batch, done);
        throw;
    }
    finish_decode(start, batch.n, settings_.n_seq);
}

void Session::undo(const assay_batch& batch, const std::vector<Ubatch>& done) {
    std::vector<bool> is_touched(settings_.n_seq, false);
    for (const Ubatch& ubatch : done) {
        for (size_t i = 0; i < ubatch.order.size(); ++i) {
            const auto sequence = static_cast<uint32_t>(batch.seq_ids[ubatch.order[i]]);
            cache_->leave(ubatch.cells[i], sequence);
            is_touched[sequence] = true;
        }
    }
    for (uint32_t sequence = 0; sequence < settings_.n_seq; ++sequence) {
        if (is_touched[sequence]) cache_->refresh(sequence);
    }
    n_logit_rows_ = 0;
    logit_rows_.clear();
}

Session::Ubatch Session::place(const assay_batch& batch, uint32_t begin, uint32_t end) {
    Ubatch ubatch;
    ubatch.order.resize(end - begin);
    std::iota(ubatch.order.begin(), ubatch.order.end(), begin);
    if (cache_->n_streams() > 1) {
        std::stable_sort(ubatch.order.begin(), ubatch.order.end(),
                         [&](uint32_t a, uint32_t b) { return batch.seq_ids[a] < batch.seq_ids[b]; });
    }
    ubatch.cells.reserve(ubatch.order.size());
    for (uint32_t i = 0; i < ubatch.order.size(); ++i) {
        const uint32_t entry = ubatch.order[i];
        ubatch.cells.push_back(cache_->add(static_cast<uint32_t>(batch.seq_ids[entry]), batch.positions[entry]));
        if (batch.logits[entry] != 0) ubatch.outputs.push_back(i);
    }
    return ubatch;
}

GraphShape Session::shape_of(const Ubatch& ubatch) const {
    GraphShape shape;
    shape.n_tokens = static_cast<uint32_t>(ubatch.order.size());
    shape.n_outputs = static_cast<uint32_t>(ubatch.outputs.size());
    const bool is_generation = shape.n_tokens <= settings_.n_seq && !model_.uses_accelerator();
    const uint32_t step = is_generation ? kGenerationViewStep : kViewStep;
    for (uint32_t first = 0; first < shape.n_tokens;) {
        const uint32_t stream = ubatch.cells[first].stream;
        uint32_t last = first;
        while (last < shape.n_tokens && ubatch.cells[last].stream == stream) ++last;
        const uint32_t n_cells = std::min(cache_->n_rows(), round_up(cache_->end(stream), step));
        AttentionRun* previous = shape.runs.empty() ? nullptr : &shape.runs.back();
        if (previous != nullptr && previous->first_stream + previous->n_streams == stream &&
            previous->n_tokens == last - first) {
            previous->n_streams += 1;
            previous->n_cells = std::max(previous->n_cells, n_cells);
        } else {
            shape.runs.push_back({stream, 1, last - first, n_cells});
        }
        first = last;
    }
    return shape;
}

void Session::allocate(Graph& graph) {
    ggml_backend_sched_reset(scheduler_.get());
    if (!ggml_backend_sched_alloc_graph(scheduler_.get(), graph.nodes)) {
        throw Failure(ASSAY_MEMORY, "cannot allocate a graph of " + std::to_string(graph.shape.n_tokens) +
                                        " tokens: " + take_ggml_error());
    }
    const uint64_t bytes = compute_bytes();
    if (bytes != scheduled_bytes_) {
        scheduled_bytes_ = bytes;
        work_.n_allocations += 1;
    }
}

void Session::use_graph(const GraphShape& shape) {
    if (graph_.nodes != nullptr && graph_.shape == shape) {
        work_.n_graph_reuses += 1;
        return;
    }
    graph_ = Graph{};
    Graph fresh = build_llama_graph(model_, *cache_, shape, settings_.flash_attention);
    allocate(fresh);
    graph_ = std::move(fresh);
}

void Session::evaluate(const assay_batch& batch, const Ubatch& ubatch) {
    use_graph(shape_of(ubatch));
    set_inputs(batch, ubatch);
    compute(graph_.nodes, graph_.shape.n_tokens);
    work_.n_graphs += 1;
    work_.n_graph_nodes += graph_.cost.n_nodes;
    work_.n_flops += graph_.cost.n_flops;
    work_.n_weight_bytes_read += graph_.cost.n_weight_bytes_read;
    work_.n_tokens_evaluated += graph_.shape.n_tokens;
    keep_logits(ubatch);
}

void Session::set_inputs(const assay_batch& batch, const Ubatch& ubatch) {
    const size_t n = ubatch.order.size();
    const auto send = [&](ggml_tensor* input) {
        ggml_backend_tensor_set(input, numbers_.data(), 0, numbers_.size() * sizeof(int32_t));
        work_.n_mapping_steps += numbers_.size();
    };
    numbers_.resize(n);
    for (size_t i = 0; i < n; ++i) numbers_[i] = batch.tokens[ubatch.order[i]];
    send(graph_.tokens);
    for (size_t i = 0; i < n; ++i) numbers_[i] = batch.positions[ubatch.order[i]];
    send(graph_.positions);
    rows_.resize(n);
    for (size_t i = 0; i < n; ++i) rows_[i] = cache_->row(ubatch.cells[i]);
    ggml_backend_tensor_set(graph_.rows, rows_.data(), 0, n * sizeof(int64_t));
    work_.n_mapping_steps += n;
    if (graph_.outputs != nullptr) {
        numbers_.assign(ubatch.outputs.begin(), ubatch.outputs.end());
        send(graph_.outputs);
    }
    uint32_t first = 0;
    for (size_t i = 0; i < graph_.shape.runs.size(); ++i) {
        const AttentionRun& run = graph_.shape.runs[i];
        // A graph of one layer without outputs has no attention, and then the mask has no memory.
        if (graph_.masks[i]->buffer != nullptr) set_mask(batch, ubatch, first, run, graph_.masks[i]);
        first += run.n_tokens * run.n_streams;
    }
}

void Session::set_mask(const assay_batch& batch, const Ubatch& ubatch, uint32_t first, const AttentionRun& run,
                       ggml_tensor* mask) {
    const uint32_t n_rows = run.n_tokens * run.n_streams;
    const size_t n_entries = static_cast<size_t>(n_rows) * run.n_cells;
    // Long contexts have large masks: on the host they are written in place.
    const bool is_host = ggml_backend_buffer_is_host(mask->buffer);
    if (!is_host) mask_.resize(n_entries);
    uint16_t* entries = is_host ? static_cast<uint16_t*>(mask->data) : mask_.data();
    int32_t viewed = -1;
    const int32_t* positions = nullptr;
    for (uint32_t i = 0; i < n_rows; ++i) {
        const uint32_t entry = ubatch.order[first + i];
        if (batch.seq_ids[entry] != viewed) {
            viewed = batch.seq_ids[entry];
            positions = cache_->view(static_cast<uint32_t>(viewed), run.n_cells, view_);
        }
        const int32_t own = batch.positions[entry];
        uint16_t* row = entries + static_cast<size_t>(i) * run.n_cells;
        for (uint32_t cell = 0; cell < run.n_cells; ++cell) row[cell] = positions[cell] <= own ? kVisible : kHidden;
    }
    if (!is_host) ggml_backend_tensor_set(mask, entries, 0, n_entries * sizeof(uint16_t));
    work_.n_cells_visited += n_entries;
    work_.n_mapping_steps += n_entries;
}

void Session::use_threads(uint32_t n_tokens) {
    const bool is_generation = n_tokens <= settings_.n_seq;
    ggml_backend_t cpu = backends_.back().get();
    ggml_threadpool* pool = is_generation ? pool_ : pool_batch_;
    if (pool != nullptr && pool != pool_in_use_) {
        const auto set_pool =
            devices().cpu_function<decltype(&ggml_backend_cpu_set_threadpool)>("ggml_backend_cpu_set_threadpool");
        if (set_pool != nullptr) set_pool(cpu, pool);
        pool_in_use_ = pool;
    }
    const auto set_threads = devices().cpu_function<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads");
    if (set_threads != nullptr) {
        set_threads(cpu, static_cast<int>(is_generation ? settings_.n_threads : settings_.n_threads_batch));
    }
}

void Session::compute(ggml_cgraph* graph, uint32_t n_tokens) {
    use_threads(n_tokens);
    const ggml_status status = ggml_backend_sched_graph_compute(scheduler_.get(), graph);
    if (status == GGML_STATUS_SUCCESS) return;
    if (status == GGML_STATUS_ABORTED) throw Failure(ASSAY_CANCELLED, "the decode was cancelled");
    if (status == GGML_STATUS_ALLOC_FAILED)
        throw Failure(ASSAY_MEMORY, "a back end ran out of memory: " + take_ggml_error());
    throw Failure(ASSAY_INTERNAL, "a back end failed: " + take_ggml_error());
}

void Session::keep_logits(const Ubatch& ubatch) {
    if (ubatch.outputs.empty()) return;
    const size_t n_vocab = model_.hyper().n_vocab;
    ggml_backend_tensor_get(graph_.logits, logits_.get() + n_logit_rows_ * n_vocab, 0,
                            ubatch.outputs.size() * n_vocab * sizeof(float));
    for (const uint32_t place : ubatch.outputs)
        logit_rows_[ubatch.order[place]] = static_cast<int32_t>(n_logit_rows_++);
}

const float* Session::logits(uint32_t i) const {
    if (i >= logit_rows_.size() || logit_rows_[i] < 0) return nullptr;
    return logits_.get() + static_cast<size_t>(logit_rows_[i]) * model_.hyper().n_vocab;
}

void Session::run_once(Graph& graph) {
    graph_ = Graph{};
    allocate(graph);
}

}  // namespace assay
