// Greedy speculative decoding: propose with the draft block, verify with the trunk, keep what agrees.
#include <algorithm>
#include <cmath>

#include "draft.h"
#include "failure.h"
#include "qwen_session.h"

namespace assay {
namespace {

uint32_t best_of(const float* logits, uint32_t n) {
    return static_cast<uint32_t>(std::max_element(logits, logits + n) - logits);
}

}  // namespace

Draft& QwenSession::need_draft() const {
    if (!draft_) throw Failure(ASSAY_INVALID, "the session has no drafts; open it with n_draft");
    return *draft_;
}

std::vector<int32_t> QwenSession::propose(int32_t sequence, int32_t last, uint32_t n, float p_min) {
    const uint32_t id = check_sequence(sequence);
    Draft& draft = need_draft();
    check_entry(0, last, sequence);
    if (held_) throw Failure(ASSAY_INVALID, "a verification waits for draft_accept");
    // The verification needs a cell for each draft and one for `last`.
    const uint32_t n_free = cache_->cells.n_free(id);
    n = std::min({n, settings_.n_draft, n_free > 0 ? n_free - 1 : 0});
    const std::vector<int32_t> drafts = draft.propose(id, last, next_position(id), n, p_min);
    work_.n_drafted += drafts.size();
    return drafts;
}

int32_t QwenSession::next_position(uint32_t sequence) const {
    if (!cache_->cells.has(sequence)) return 0;
    // After an image the text goes on beyond its rows and columns.
    const Cells& cells = cache_->cells;
    const std::vector<uint32_t>& order = cells.order(sequence);
    int32_t next = 0;
    for (size_t i = order.size(); i-- > 0;) {
        const Coordinates at = cells.at(sequence, order[i]);
        if (at.t != cells.last(sequence).t) break;
        next = std::max({next, at.t + 1, at.y + 1, at.x + 1});
    }
    return next;
}

void QwenSession::verify(int32_t sequence, const int32_t* tokens, uint32_t n, const volatile int* cancel) {
    const uint32_t id = check_sequence(sequence);
    need_draft();
    if (held_) throw Failure(ASSAY_INVALID, "a verification waits for draft_accept");
    if (n == 0 || n > settings_.n_draft + 1 || n > settings_.n_ubatch) {
        throw Failure(ASSAY_INVALID, "a verification of " + std::to_string(n) + " tokens, 1 to " +
                                         std::to_string(std::min(settings_.n_draft + 1, settings_.n_ubatch)) +
                                         " are allowed");
    }
    std::vector<Row> rows(n);
    int32_t p = next_position(id);
    for (uint32_t i = 0; i < n; ++i, ++p) {
        check_entry(i, tokens[i], sequence);
        rows[i] = {tokens[i], nullptr, {p, p, p}, id, true, 0};
    }
    holds_catch_up_ = true;
    try {
        run(rows, cancel);
    } catch (...) {
        holds_catch_up_ = false;
        throw;
    }
    holds_catch_up_ = false;
#if defined(ASSAY_FAULT_SHORTLIST_IN_TARGET)
    const uint32_t n_target = settings_.n_draft_vocab > 0 ? settings_.n_draft_vocab : model_.hyper().n_vocab;
    for (uint32_t i = 0; i < n; ++i) {
        auto* row = const_cast<float*>(logits(i));
        std::fill(row + n_target, row + model_.hyper().n_vocab, -INFINITY);
    }
#endif
}

void QwenSession::accept(int32_t sequence, uint32_t n_keep) {
    const uint32_t id = check_sequence(sequence);
    Draft& draft = need_draft();
    if (!held_ || held_->sequence != id) throw Failure(ASSAY_INVALID, "there is no verification to accept");
    Draft::Seen seen = std::move(*held_);
    const auto n = static_cast<uint32_t>(seen.rows.size());
    if (n_keep == 0 || n_keep > n) {
        held_ = std::move(seen);
        throw Failure(ASSAY_INVALID, std::to_string(n_keep) + " of " + std::to_string(n) +
                                         " tokens cannot be kept, 1 or more are needed");
    }
    held_.reset();
    if (n_keep < n) {
        recurrent_->rollback(id, n - n_keep);
        cache_->truncate(id, n_cells_of(id) - (n - n_keep));
    }
    seen.rows.resize(n_keep);
    seen.tokens.resize(n_keep);
    seen.residuals = hidden_.data();
    work_.n_accepted += n_keep - 1;
    const uint32_t n_before = draft.n_cells(id);
    const Draft::Residuals residuals = draft.residuals(id);
    try {
        draft.catch_up({seen});
    } catch (...) {
        // Without its rows the draft block could only guess: nothing of the sequence is kept.
        draft.revert(id, n_before, residuals);
        drop(id);
        throw;
    }
}

QwenSession::Round QwenSession::draft_round(int32_t sequence, int32_t last, uint32_t n_left, uint32_t depth,
                                            float p_min, const volatile int* cancel) {
    if (n_left == 0) throw Failure(ASSAY_INVALID, "n_left is 0, a round emits one token at least");
    Round round;
    round.drafts = propose(sequence, last, std::min(depth, n_left - 1), p_min);
    std::vector<int32_t> batch = {last};
    batch.insert(batch.end(), round.drafts.begin(), round.drafts.end());
    verify(sequence, batch.data(), static_cast<uint32_t>(batch.size()), cancel);
    const auto best = [&](uint32_t row) { return static_cast<int32_t>(best_of(logits(row), model_.hyper().n_vocab)); };
    uint32_t n_accepted = 0;
    while (n_accepted < round.drafts.size()) {
        bool agrees = best(n_accepted) == round.drafts[n_accepted];
#if defined(ASSAY_FAULT_DRAFT_ACCEPTS_WRONG)
        agrees = agrees || n_accepted == 0;
#endif
        if (!agrees) break;
        ++n_accepted;
    }
    round.n_accepted = n_accepted;
    round.tokens.assign(round.drafts.begin(), round.drafts.begin() + n_accepted);
    round.tokens.push_back(best(n_accepted));
    accept(sequence, n_accepted + 1);
    return round;
}

}  // namespace assay
