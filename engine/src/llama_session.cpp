#include "llama_session.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "failure.h"
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

assay_session_settings checked(const assay_session_settings& settings) {
    check_settings(settings);
    if (!settings.flash_attention && settings.kv_type == ASSAY_KV_Q8_0) {
        throw Failure(ASSAY_UNSUPPORTED, "kv_type q8_0 needs flash_attention");
    }
    if (settings.n_draft > 0) throw Failure(ASSAY_UNSUPPORTED, "n_draft: this model has no draft block; use 0");
    if (settings.reserved_layout || settings.bucket_policy || settings.n_rollback > 0) {
        throw Failure(ASSAY_UNSUPPORTED, "reserved_layout, bucket_policy and n_rollback are settings of qwen4exp");
    }
    return settings;
}

}  // namespace

LlamaSession::LlamaSession(const Model& model, const assay_session_settings& settings)
    : Session(model, checked(settings)) {
    cache_ = std::make_unique<Cache>(model_, settings_, work_);
    work_.n_allocations += 1;
    executor_ =
        std::make_unique<Executor>(model_, settings_, work_, llama_graph_nodes(model_.hyper(), cache_->n_streams()));
    GraphShape largest;
    largest.n_tokens = std::min(settings_.n_ubatch, cache_->n_cells());
    largest.n_outputs = std::min(settings_.n_seq, largest.n_tokens);
    largest.runs.push_back({0, 1, largest.n_tokens, cache_->n_rows()});
    const Graph graph = build_llama_graph(model_, *cache_, largest, settings_.flash_attention);
    executor_->reserve(graph.nodes, largest.n_tokens);
}

void LlamaSession::check(const assay_batch& batch) const {
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

void LlamaSession::check_room(const assay_batch& batch) const {
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

void LlamaSession::decode(const assay_batch& batch, const volatile int* cancel) {
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

    const AbortFlag abort_flag(executor_->cpu(), cancel);
    work_.n_decode_calls += 1;
    std::vector<Ubatch> done;
    try {
        for (uint32_t begin = 0; begin < batch.n; begin += settings_.n_ubatch) {
            if (is_raised(cancel)) throw Failure(ASSAY_CANCELLED, "the decode was cancelled");
            done.push_back(place(batch, begin, std::min(batch.n, begin + settings_.n_ubatch)));
            evaluate(batch, done.back());
        }
    } catch (...) {
        undo(batch, done);
        throw;
    }
    finish_decode(start, batch.n, settings_.n_seq, *std::max_element(batch.positions, batch.positions + batch.n));
}

void LlamaSession::decode_rows(const assay_rows&, const volatile int*) {
    throw Failure(ASSAY_UNSUPPORTED, "this model takes token ids at one position each; embeddings and 2-D positions "
                                     "belong to qwen4exp");
}

void LlamaSession::undo(const assay_batch& batch, const std::vector<Ubatch>& done) {
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

LlamaSession::Ubatch LlamaSession::place(const assay_batch& batch, uint32_t begin, uint32_t end) {
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

GraphShape LlamaSession::shape_of(const Ubatch& ubatch) const {
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

void LlamaSession::use_graph(const GraphShape& shape) {
    if (graph_.nodes != nullptr && graph_.shape == shape) {
        work_.n_graph_reuses += 1;
        return;
    }
    graph_ = Graph{};
    Graph fresh = build_llama_graph(model_, *cache_, shape, settings_.flash_attention);
    executor_->allocate(fresh.nodes, shape.n_tokens);
    graph_ = std::move(fresh);
}

void LlamaSession::evaluate(const assay_batch& batch, const Ubatch& ubatch) {
    use_graph(shape_of(ubatch));
    set_inputs(batch, ubatch);
    executor_->compute(graph_.nodes, graph_.shape.n_tokens <= settings_.n_seq);
    work_.n_graphs += 1;
    work_.n_graph_nodes += graph_.cost.n_nodes;
    work_.n_flops += graph_.cost.n_flops;
    work_.n_weight_bytes_read += graph_.cost.n_weight_bytes_read;
    work_.n_tokens_evaluated += graph_.shape.n_tokens;
    keep_logits(ubatch);
}

void LlamaSession::set_inputs(const assay_batch& batch, const Ubatch& ubatch) {
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

void LlamaSession::set_mask(const assay_batch& batch, const Ubatch& ubatch, uint32_t first, const AttentionRun& run,
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

void LlamaSession::keep_logits(const Ubatch& ubatch) {
    if (ubatch.outputs.empty()) return;
    const size_t n_vocab = model_.hyper().n_vocab;
    ggml_backend_tensor_get(graph_.logits, logits_.get() + n_logit_rows_ * n_vocab, 0,
                            ubatch.outputs.size() * n_vocab * sizeof(float));
    for (const uint32_t place : ubatch.outputs)
        logit_rows_[ubatch.order[place]] = static_cast<int32_t>(n_logit_rows_++);
}

const float* LlamaSession::logits(uint32_t i) const {
    if (i >= logit_rows_.size() || logit_rows_[i] < 0) return nullptr;
    return logits_.get() + static_cast<size_t>(logit_rows_[i]) * model_.hyper().n_vocab;
}

void LlamaSession::run_once(Graph& graph) {
    graph_ = Graph{};
    executor_->allocate(graph.nodes, graph.shape.n_tokens);
}

}  // namespace assay
