#include "qwen_session.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>

#include "failure.h"
#include "json_text.h"
#include "pace.h"

namespace assay {
namespace {

std::vector<uint32_t> trunk_layers(const QwenShape& shape) {
    std::vector<uint32_t> layers;
    for (uint32_t i = 0; i < shape.n_layer; ++i) {
        if (!shape.is_linear[i]) layers.push_back(i);
    }
    return layers;
}

}  // namespace

QwenSession::QwenSession(const Model& model, const assay_session_settings& settings) : Session(model, settings) {
    check_settings(settings_);
    // A verification takes back up to all drafts.
    settings_.n_rollback = std::max(settings_.n_rollback, settings_.n_draft);
    if (settings_.n_rollback > 64) {
        throw Failure(ASSAY_INVALID, "n_rollback is " + std::to_string(settings_.n_rollback) + ", 0 to 64 are allowed");
    }
    const QwenShape& shape = model.qwen()->shape();
    const qsa::Policy policy = settings.bucket_policy ? qsa::Policy::Bucket : qsa::Policy::Rank;
    cache_ = std::make_unique<IndexedCache>(
        model, settings_,
        IndexedCache::Kind{trunk_layers(shape), settings.kv_type, policy, settings.reserved_layout}, work_);
    recurrent_ = std::make_unique<RecurrentRows>(model, settings_.n_seq, settings_.n_rollback);
    work_.n_allocations += 2;
    if (shape.ple.exists()) ple_ = std::make_unique<PleTable>(model, settings.ple_cache_bytes);
    if (ple_ && model.memory_plan() != nullptr) model.memory_plan()->host_bytes += ple_->use().n_bytes_max;
    const uint32_t n_ubatch = std::min<uint64_t>(settings.n_ubatch, uint64_t{settings.n_ctx} * cache_->cells.n_streams());
    evaluator_ = std::make_unique<QwenEvaluator>(
        QwenEvaluator::Parts{model, settings_, *cache_, recurrent_.get(), ple_.get(), model.output(), work_}, n_ubatch,
        settings_.n_draft > 0);
    evaluator_->capture_into(&capture_);
    if (settings_.n_draft > 0) {
        draft_ = std::make_unique<Draft>(model, settings_, n_ubatch, work_);
        draft_->capture_into(&capture_);
    }
}

QwenSession::~QwenSession() = default;

uint64_t QwenSession::cache_bytes() const { return cache_->bytes() + recurrent_->bytes() + (draft_ ? draft_->bytes() : 0); }

uint64_t QwenSession::compute_bytes() const {
    return evaluator_->executor().compute_bytes() + (draft_ ? draft_->compute_bytes() : 0);
}

std::string QwenSession::info() const {
    const QwenShape& shape = model_.qwen()->shape();
    JsonText json;
    json.open('{');
    json.field("cache_bytes", cache_bytes());
    json.field("compute_bytes", compute_bytes());
    json.field("recurrent_bytes", recurrent_->bytes());
    json.field("draft_bytes", draft_ ? draft_->bytes() : 0);
    json.field("n_rollback", settings_.n_rollback);
    json.field("policy", qsa::name(settings_.bucket_policy ? qsa::Policy::Bucket : qsa::Policy::Rank));
    json.key("route_reasons");
    json.open('{');
    for (size_t i = 0; i < cache_->reasons.size(); ++i) {
        if (cache_->reasons[i] > 0) json.field(qsa::name(static_cast<qsa::Reason>(i)), cache_->reasons[i]);
    }
    json.close('}');
    json.key("can_take_back");
    json.open('[');
    for (uint32_t i = 0; i < settings_.n_seq; ++i) json.value(recurrent_->n_past(i));
    json.close(']');
    if (ple_) {
        const PleTable::Use use = ple_->use();
        json.key("ple");
        json.open('{');
        json.field("n_rows", use.n_rows);
        json.field("n_hits", use.n_rows - use.n_misses);
        json.field("n_misses", use.n_misses);
        json.field("n_pages", use.n_bytes / (shape.ple.row_width * sizeof(float)));
        json.field("cached_bytes", use.n_bytes);
        json.field("cache_bytes_max", use.n_bytes_max);
        json.close('}');
    }
    json.close('}');
    return json.text();
}

void QwenSession::decode(const assay_batch& batch, const volatile int* cancel) {
    if (batch.n == 0) throw Failure(ASSAY_INVALID, "the batch is empty");
    if (batch.tokens == nullptr || batch.positions == nullptr || batch.seq_ids == nullptr || batch.logits == nullptr) {
        throw Failure(ASSAY_INVALID, "the batch lacks an array: tokens, positions, seq_ids and logits are needed");
    }
    std::vector<Row> rows(batch.n);
    for (uint32_t i = 0; i < batch.n; ++i) {
        check_entry(i, batch.tokens[i], batch.seq_ids[i]);
        const int32_t p = batch.positions[i];
        rows[i] = {batch.tokens[i], nullptr, {p, p, p}, static_cast<uint32_t>(batch.seq_ids[i]), batch.logits[i] != 0, 0};
    }
    run(rows, cancel);
}

void QwenSession::decode_rows(const assay_rows& batch, const volatile int* cancel) {
    if (batch.n == 0) throw Failure(ASSAY_INVALID, "the batch is empty");
    if (batch.tokens == nullptr || batch.positions == nullptr || batch.seq_ids == nullptr || batch.logits == nullptr) {
        throw Failure(ASSAY_INVALID, "the rows lack an array: tokens, positions, seq_ids and logits are needed");
    }
    if (batch.n_axes != 1 && batch.n_axes != 3 && batch.n_axes != 4) {
        throw Failure(ASSAY_INVALID, "n_axes is " + std::to_string(batch.n_axes) + ", 1, 3 or 4 is needed");
    }
    std::vector<Row> rows(batch.n);
    const float* embedding = batch.embeddings;
    for (uint32_t i = 0; i < batch.n; ++i) {
        const bool is_embedding = batch.tokens[i] == -1;
        check_entry(i, is_embedding ? 0 : batch.tokens[i], batch.seq_ids[i]);
        const auto axis = [&](uint32_t a) {
            return batch.positions[(a < batch.n_axes ? size_t{a} * batch.n : 0) + i];
        };
        rows[i] = {batch.tokens[i], nullptr, {axis(0), axis(1), axis(2)}, static_cast<uint32_t>(batch.seq_ids[i]),
                   batch.logits[i] != 0, axis(3)};
        if (!is_embedding) continue;
        if (embedding == nullptr) {
            throw Failure(ASSAY_INVALID, "entry " + std::to_string(i) + " of the batch: it has no token and no embedding");
        }
        rows[i].embedding = embedding;
        embedding += model_.hyper().n_embd;
    }
    run(rows, cancel);
}

void QwenSession::check_entry(uint32_t i, int32_t token, int32_t sequence) const {
    const auto refuse = [i](const std::string& text) {
        throw Failure(ASSAY_INVALID, "entry " + std::to_string(i) + " of the batch: " + text);
    };
    if (token < 0 || static_cast<uint32_t>(token) >= model_.hyper().n_vocab) {
        refuse("token " + std::to_string(token) + " is outside the vocabulary of " +
               std::to_string(model_.hyper().n_vocab));
    }
    if (sequence < 0 || static_cast<uint32_t>(sequence) >= settings_.n_seq) {
        refuse("sequence " + std::to_string(sequence) + " does not exist, the session has 0 to " +
               std::to_string(settings_.n_seq - 1));
    }
}

void QwenSession::check(const std::vector<Row>& rows) const {
    std::map<uint32_t, Coordinates> last;
    for (size_t i = 0; i < rows.size(); ++i) {
        const Row& row = rows[i];
        auto known = last.find(row.sequence);
        if (known == last.end()) {
            const Coordinates none{-1, -1, -1};
            known = last.emplace(row.sequence, cache_->cells.has(row.sequence) ? cache_->cells.last(row.sequence) : none)
                        .first;
        }
        const bool is_in_range = row.at.t >= 0 && row.at.y >= 0 && row.at.x >= 0 && row.at.t < INT32_MAX - 1 &&
                                 row.at.y < INT32_MAX - 1 && row.at.x < INT32_MAX - 1;
        if (!is_in_range || row.at <= known->second) {
            throw Failure(ASSAY_INVALID, "entry " + std::to_string(i) + " of the batch: position " +
                                             std::to_string(row.at.t) + " of sequence " +
                                             std::to_string(row.sequence) + ", the last one is " +
                                             std::to_string(known->second.t) + " and positions rise");
        }
        known->second = row.at;
    }
}

void QwenSession::check_room(const std::vector<Row>& rows) const {
    std::map<uint32_t, uint32_t> needed;  // by a sequence that stands for its cells
    const bool is_common = settings_.kv_unified && !settings_.reserved_layout;
    for (const Row& row : rows) ++needed[is_common ? 0 : row.sequence];
    for (const auto& [sequence, n] : needed) {
        const uint32_t n_free = cache_->cells.n_free(sequence);
        if (n <= n_free) continue;
        throw Failure(ASSAY_FULL, "the batch needs " + std::to_string(n) + " cells and " +
                                      (is_common ? "the cache" : "sequence " + std::to_string(sequence)) + " has " +
                                      std::to_string(n_free) + " free of " + std::to_string(cache_->cells.n_cells()));
    }
}

void QwenSession::make_room_for_logits(const std::vector<Row>& rows) {
    const auto n = static_cast<size_t>(
        std::count_if(rows.begin(), rows.end(), [](const Row& row) { return row.wants_logits; }));
    const size_t capacity = n * model_.hyper().n_vocab;
    if (capacity > logits_capacity_) {
        logits_capacity_ = 0;
        logits_ = std::make_unique_for_overwrite<float[]>(capacity);
        logits_capacity_ = capacity;
    }
    logit_rows_.assign(rows.size(), -1);
}

std::vector<QwenSession::Start> QwenSession::begin(const std::vector<Row>& rows) {
    std::vector<Start> starts;
    for (const Row& row : rows) {
        const bool is_known = std::any_of(starts.begin(), starts.end(),
                                          [&](const Start& start) { return start.sequence == row.sequence; });
        if (is_known) continue;
        starts.push_back({row.sequence, static_cast<uint32_t>(cache_->cells.order(row.sequence).size()),
                          recurrent_->retain(row.sequence), draft_ ? draft_->n_cells(row.sequence) : 0,
                          draft_ ? draft_->residuals(row.sequence) : Draft::Residuals{}});
    }
    return starts;
}

void QwenSession::end(const std::vector<Start>& starts) {
    for (const Start& start : starts) recurrent_->release(start.recurrent_row);
}

void QwenSession::undo(const std::vector<Start>& starts) {
    for (const Start& start : starts) {
        cache_->forget_run(start.sequence, start.n_cells);
        recurrent_->revert(start.sequence, start.recurrent_row);
        if (draft_) draft_->revert(start.sequence, start.n_draft_cells, start.residuals);
    }
    n_logit_rows_ = 0;
    logit_rows_.clear();
}

void QwenSession::run(const std::vector<Row>& rows, const volatile int* cancel) {
    if (held_) throw Failure(ASSAY_INVALID, "a verification waits for draft_accept");
    n_logit_rows_ = 0;
    logit_rows_.clear();
    check(rows);
    check_room(rows);
    const auto start_time = std::chrono::steady_clock::now();
    make_room_for_logits(rows);
    capture_.clear();
    const AbortFlag abort_flag(evaluator_->executor().cpu(), cancel);
    work_.n_decode_calls += 1;
    const std::vector<Start> starts = begin(rows);
    const auto n = static_cast<uint32_t>(rows.size());
    try {
        for (uint32_t first = 0; first < n; first += settings_.n_ubatch) {
            if (is_raised(cancel)) throw Failure(ASSAY_CANCELLED, "the decode was cancelled");
            const Placed placed = place(rows, first, std::min(n, first + settings_.n_ubatch));
            evaluator_->evaluate(placed.ubatch);
            keep_logits(placed);
            if (draft_) keep_residuals(placed);
            capture_.next_ubatch();
        }
    } catch (...) {
        undo(starts);
        end(starts);
        throw;
    }
    end(starts);
    int32_t last_position = 0;
    for (const Row& row : rows) last_position = std::max(last_position, row.at.t);
    // A verification of drafts is a generation step, however many tokens it has.
    finish_decode(start_time, n, holds_catch_up_ ? n : settings_.n_seq, last_position);
}

QwenSession::Placed QwenSession::place(const std::vector<Row>& rows, uint32_t first, uint32_t last) {
    Placed placed;
    placed.order.resize(last - first);
    std::iota(placed.order.begin(), placed.order.end(), first);
    std::stable_sort(placed.order.begin(), placed.order.end(),
                     [&](uint32_t a, uint32_t b) { return rows[a].sequence < rows[b].sequence; });
    QwenUbatch& ubatch = placed.ubatch;
    ubatch.wants_hidden = draft_ != nullptr;
    const int32_t image = model_.qwen()->shape().ple.image;
    for (uint32_t i = 0; i < placed.order.size(); ++i) {
        const Row& row = rows[placed.order[i]];
        if (ubatch.runs.empty() || ubatch.runs.back().sequence != row.sequence) {
            ubatch.runs.emplace_back();
            ubatch.runs.back().sequence = row.sequence;
        }
        const bool is_image = row.embedding != nullptr;
        const uint32_t cell = cache_->cells.add(row.sequence, row.at, is_image ? image : row.token);
        ubatch.runs.back().rows.push_back({cell, row.at, is_image, row.fourth});
        ubatch.tokens.push_back(is_image ? -1 : row.token);
        ubatch.embeddings.push_back(row.embedding);
        if (row.wants_logits) ubatch.outputs.push_back(static_cast<int32_t>(i));
    }
    for (QwenUbatch::Run& run : ubatch.runs)
        run.plan = recurrent_->advance(run.sequence, static_cast<uint32_t>(run.rows.size()));
    return placed;
}

void QwenSession::keep_logits(const Placed& placed) {
    if (placed.ubatch.outputs.empty()) return;
    const size_t n_vocab = model_.hyper().n_vocab;
    ggml_backend_tensor_get(evaluator_->graph().logits, logits_.get() + n_logit_rows_ * n_vocab, 0,
                            placed.ubatch.outputs.size() * n_vocab * sizeof(float));
    for (const int32_t place : placed.ubatch.outputs)
        logit_rows_[placed.order[static_cast<size_t>(place)]] = static_cast<int32_t>(n_logit_rows_++);
}

// Shows the ubatch to the draft block, or holds it back until it is known what is accepted.
void QwenSession::keep_residuals(const Placed& placed) {
    const size_t hcn = model_.qwen()->shape().hcn();
    hidden_.resize(placed.ubatch.tokens.size() * hcn);
    ggml_backend_tensor_get(evaluator_->graph().hidden, hidden_.data(), 0, hidden_.size() * sizeof(float));
    std::vector<Draft::Seen> seen;
    size_t first = 0;
    for (const QwenUbatch::Run& run : placed.ubatch.runs) {
        const auto begin = placed.ubatch.tokens.begin() + static_cast<ptrdiff_t>(first);
        seen.push_back({run.sequence, run.rows, {begin, begin + static_cast<ptrdiff_t>(run.rows.size())},
                        hidden_.data() + first * hcn});
        first += run.rows.size();
    }
    if (holds_catch_up_)
        held_ = std::move(seen.front());
    else
        draft_->catch_up(seen);
}

const float* QwenSession::logits(uint32_t i) const {
    if (i >= logit_rows_.size() || logit_rows_[i] < 0) return nullptr;
    return logits_.get() + static_cast<size_t>(logit_rows_[i]) * model_.hyper().n_vocab;
}

}  // namespace assay
