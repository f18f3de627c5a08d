#include "draft.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "failure.h"

namespace assay {

Draft::Draft(const Model& model, const assay_session_settings& settings, uint32_t n_ubatch, assay_work& work)
    : s_(model.qwen()->shape()),
      n_residuals_(settings.n_rollback + 1),
      n_vocab_(model.hyper().n_vocab),
      residuals_(settings.n_seq),
      zeros_(s_.hcn(), 0.0F) {
    if (s_.n_mtp == 0) {
        throw Failure(ASSAY_UNSUPPORTED, "n_draft is " + std::to_string(settings.n_draft) +
                                             " and the model has no draft block; use 0");
    }
    if (settings.n_draft > 6) {
        throw Failure(ASSAY_INVALID, "n_draft is " + std::to_string(settings.n_draft) + ", 0 to 6 tokens are allowed");
    }
    if (settings.n_draft_vocab > n_vocab_) {
        throw Failure(ASSAY_INVALID, "n_draft_vocab is " + std::to_string(settings.n_draft_vocab) +
                                         ", the vocabulary has " + std::to_string(n_vocab_));
    }
    if (settings.n_draft_vocab > 0) make_shortlist(model, settings.n_draft_vocab);
    cache_ = std::make_unique<IndexedCache>(
        model, settings,
        IndexedCache::Kind{{s_.n_layer}, settings.draft_kv_type, qsa::Policy::Rank, settings.reserved_layout}, work);
    work.n_allocations += 1;
    ggml_tensor* output = shortlist_ == nullptr ? model.output() : shortlist_;
    evaluator_ = std::make_unique<QwenEvaluator>(
        QwenEvaluator::Parts{model, settings, *cache_, nullptr, nullptr, output, work}, n_ubatch, true);
}

// The first rows of the head in memory of their own: a part of a weight in a repacked buffer cannot be viewed.
void Draft::make_shortlist(const Model& model, uint32_t n_rows) {
    const GgufTensor* source = model.file().find_tensor("output.weight");
    if (source == nullptr) source = model.file().find_tensor("token_embd.weight");
    shortlist_context_ = make_description_context(1);
    shortlist_ = ggml_new_tensor_2d(shortlist_context_.get(), source->type, source->ne[0], n_rows);
    ggml_backend_dev_t device = model.layer_device(s_.n_layer);
    shortlist_buffer_ =
        allocate_tensors(shortlist_context_.get(), ggml_backend_dev_buffer_type(device), model.memory_plan());
    if (!shortlist_buffer_) throw Failure(ASSAY_MEMORY, "cannot allocate the shortlist of the drafts");
    ggml_backend_buffer_set_usage(shortlist_buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    if (model.memory_plan() == nullptr)
        ggml_backend_tensor_set(shortlist_, model.file().mapping().data() + source->offset, 0, ggml_nbytes(shortlist_));
    n_vocab_ = n_rows;
}

uint64_t Draft::bytes() const {
    return cache_->bytes() + (shortlist_ == nullptr ? 0 : ggml_nbytes(shortlist_));
}

const float* Draft::pending(uint32_t sequence) const {
    return residuals_[sequence].empty() ? zeros_.data() : residuals_[sequence].front()->data();
}

void Draft::add(QwenUbatch& ubatch, uint32_t sequence, int32_t token, int32_t position, const float* hidden) {
    if (ubatch.runs.empty() || ubatch.runs.back().sequence != sequence) {
        ubatch.runs.emplace_back();
        ubatch.runs.back().sequence = sequence;
    }
    const Coordinates at{position, position, position};
    const uint32_t cell = cache_->cells.add(sequence, at, token);
    ubatch.runs.back().rows.push_back({cell, at, false, 0});
    ubatch.tokens.push_back(token);
    ubatch.embeddings.push_back(nullptr);
    ubatch.hidden.push_back(hidden);
}

void Draft::catch_up(const std::vector<Seen>& runs) {
    QwenUbatch ubatch;
    for (const Seen& run : runs) {
        for (size_t i = 0; i < run.rows.size(); ++i) {
            if (run.tokens[i] < 0) continue;
            const float* hidden = i == 0 ? pending(run.sequence) : run.residuals + (i - 1) * s_.hcn();
            add(ubatch, run.sequence, run.tokens[i], run.rows[i].at.t, hidden);
        }
    }
    if (!ubatch.tokens.empty()) {
        const bool is_captured = capture_ != nullptr && capture_->wants("draft.logits");
        if (is_captured) {
            ubatch.outputs.resize(ubatch.tokens.size());
            std::iota(ubatch.outputs.begin(), ubatch.outputs.end(), 0);
            ubatch.wants_hidden = true;
        }
        evaluator_->evaluate(ubatch);
        if (is_captured) {
            capture_->add("draft.logits", evaluator_->graph().logits);
            capture_->add("draft.residual", evaluator_->graph().hidden);
        }
    }
    for (const Seen& run : runs) {
        Residuals& own = residuals_[run.sequence];
        const size_t n = run.rows.size();
        for (size_t i = n - std::min<size_t>(n, n_residuals_); i < n; ++i) {
            const float* row = run.residuals + i * s_.hcn();
            own.insert(own.begin(), std::make_shared<const std::vector<float>>(row, row + s_.hcn()));
        }
        if (own.size() > n_residuals_) own.resize(n_residuals_);
    }
}

std::vector<int32_t> Draft::propose(uint32_t sequence, int32_t last, int32_t position, uint32_t n, float p_min) {
    std::vector<int32_t> drafts;
    const uint32_t n_before = n_cells(sequence);
    std::vector<float> hidden(pending(sequence), pending(sequence) + s_.hcn());
    logits_.resize(n_vocab_);
    try {
        for (uint32_t i = 0; i < n; ++i) {
            QwenUbatch ubatch;
            ubatch.outputs = {0};
            ubatch.wants_hidden = true;
            add(ubatch, sequence, last, position + static_cast<int32_t>(i), hidden.data());
            evaluator_->evaluate(ubatch);
            ggml_backend_tensor_get(evaluator_->graph().logits, logits_.data(), 0, n_vocab_ * sizeof(float));
            const auto best = std::max_element(logits_.begin(), logits_.end());
            if (p_min > 0.0F) {
                double sum = 0.0;
                for (const float logit : logits_) sum += std::exp(static_cast<double>(logit) - *best);
                if (1.0 / sum < p_min) break;
            }
            last = static_cast<int32_t>(best - logits_.begin());
            drafts.push_back(last);
            ggml_backend_tensor_get(evaluator_->graph().hidden, hidden.data(), 0, hidden.size() * sizeof(float));
        }
    } catch (...) {
        cache_->forget_run(sequence, n_before);
        throw;
    }
    // Rows of drafts were made from the block's own residuals; the accepted ones come again with the trunk's.
    cache_->truncate(sequence, n_before);
    return drafts;
}

void Draft::rollback(uint32_t sequence, uint32_t n, int32_t position) {
    Residuals& own = residuals_[sequence];
    own.erase(own.begin(), own.begin() + std::min<ptrdiff_t>(n, static_cast<ptrdiff_t>(own.size())));
    const auto& order = cache_->cells.order(sequence);
    const auto first = std::partition_point(
        order.begin(), order.end(), [&](uint32_t cell) { return cache_->cells.at(sequence, cell).t < position; });
    cache_->truncate(sequence, static_cast<uint32_t>(first - order.begin()));
}

void Draft::drop(uint32_t sequence) {
    cache_->truncate(sequence, 0);
    residuals_[sequence].clear();
}

void Draft::copy(uint32_t source, uint32_t target) {
    cache_->copy(source, target);
    residuals_[target] = residuals_[source];
}

void Draft::revert(uint32_t sequence, uint32_t n_cells, Residuals residuals) {
    cache_->forget_run(sequence, n_cells);
    residuals_[sequence] = std::move(residuals);
}

}  // namespace assay
