// Operations on whole sequences of qwen4exp. Recurrent state decides what is possible; what is refused changes nothing.
#include <algorithm>

#include "failure.h"
#include "qwen_session.h"

namespace assay {

int32_t QwenSession::last_position(uint32_t sequence) const {
    return cache_->cells.has(sequence) ? cache_->cells.last(sequence).t : -1;
}

uint32_t QwenSession::n_cells_of(uint32_t sequence) const {
    return static_cast<uint32_t>(cache_->cells.order(sequence).size());
}

void QwenSession::drop(uint32_t sequence) {
    cache_->truncate(sequence, 0);
#if defined(ASSAY_FAULT_SLOT_LEAKS_CACHE)
    const int32_t left_over = recurrent_->retain(sequence);
#endif
    recurrent_->drop(sequence);
#if defined(ASSAY_FAULT_SLOT_LEAKS_CACHE)
    recurrent_->revert(sequence, left_over);
    recurrent_->release(left_over);
#endif
    if (draft_) draft_->drop(sequence);
    if (held_ && held_->sequence == sequence) held_.reset();
}

void QwenSession::remove(int32_t sequence, int32_t p0, int32_t p1) {
    const uint32_t id = check_sequence(sequence);
    const int32_t from = std::max(p0, 0);
    const int32_t to = p1 < 0 ? INT32_MAX : p1;
    if (from > to) {
        throw Failure(ASSAY_INVALID,
                      "the positions " + std::to_string(p0) + " to " + std::to_string(p1) + " are no range");
    }
    const Cells& cells = cache_->cells;
    const std::vector<uint32_t>& order = cells.order(id);
    // Ranks rise with positions.
    const auto rank_of = [&](int32_t t) {
        const auto found = std::partition_point(order.begin(), order.end(),
                                                [&](uint32_t cell) { return cells.at(id, cell).t < t; });
        return static_cast<uint32_t>(found - order.begin());
    };
    const uint32_t first = rank_of(from);
    const uint32_t last = rank_of(to);
    if (first == last) return;
    if (last < order.size()) {
        throw Failure(ASSAY_UNSUPPORTED, "sequence " + std::to_string(sequence) + " goes on after position " +
                                             std::to_string(to - 1) +
                                             ": a recurrent state cannot forget tokens in the middle");
    }
    if (first == 0) {
        drop(id);
        return;
    }
    if (held_ && held_->sequence == id) throw Failure(ASSAY_INVALID, "a verification waits for draft_accept");
    const uint32_t n = last - first;
    if (n > recurrent_->n_past(id)) {
        throw Failure(ASSAY_UNSUPPORTED, std::to_string(n) + " tokens of sequence " + std::to_string(sequence) +
                                             " cannot be taken back, the recurrent state goes back " +
                                             std::to_string(recurrent_->n_past(id)) +
                                             "; raise n_rollback, or remove the whole sequence");
    }
    const int32_t begin = cells.at(id, order[first]).t;
    recurrent_->rollback(id, n);
    if (draft_) draft_->rollback(id, n, begin);
    cache_->truncate(id, first);
}

void QwenSession::copy(int32_t source, int32_t target, int32_t p0, int32_t p1) {
    const uint32_t from = check_sequence(source);
    const uint32_t to = check_sequence(target);
    if (from == to || !cache_->cells.has(from)) return;
    if (held_) throw Failure(ASSAY_INVALID, "a verification waits for draft_accept");
    const Cells& cells = cache_->cells;
    const int32_t first = cells.at(from, cells.order(from).front()).t;
    if (std::max(p0, 0) > first || (p1 >= 0 && p1 <= cells.last(from).t)) {
        throw Failure(ASSAY_UNSUPPORTED, "only whole sequences of this model can be copied: a recurrent state has no part");
    }
    if (cells.has(to)) {
        throw Failure(ASSAY_INVALID, "sequence " + std::to_string(target) + " is not empty; remove it first");
    }
    if (!cells.is_unified() && n_cells_of(from) > cells.n_free(to)) {
        throw Failure(ASSAY_FULL, "sequence " + std::to_string(target) + " needs " + std::to_string(n_cells_of(from)) +
                                      " cells, " + std::to_string(cells.n_free(to)) + " are free");
    }
    cache_->copy(from, to);
    recurrent_->copy(from, to);
    if (draft_) draft_->copy(from, to);
}

void QwenSession::keep(int32_t sequence) {
    const uint32_t id = check_sequence(sequence);
    for (uint32_t other = 0; other < settings_.n_seq; ++other) {
        if (other != id) drop(other);
    }
}

void QwenSession::shift(int32_t sequence, int32_t, int32_t, int32_t) {
    check_sequence(sequence);
    throw Failure(ASSAY_UNSUPPORTED, "positions of this model cannot be shifted: its keys turn with three axes");
}

void QwenSession::fill_zero(int32_t sequence, uint32_t n) {
    const uint32_t id = check_sequence(sequence);
    if (cache_->cells.has(id)) {
        throw Failure(ASSAY_INVALID,
                      "sequence " + std::to_string(sequence) + " is not empty; remove it before filling it");
    }
    if (n > cache_->cells.n_free(id)) {
        throw Failure(ASSAY_FULL, "sequence " + std::to_string(sequence) + " needs " + std::to_string(n) +
                                      " cells, " + std::to_string(cache_->cells.n_free(id)) + " are free");
    }
    const int32_t token = std::max(model_.qwen()->shape().ple.eos, 0);
    for (uint32_t i = 0; i < n; ++i) {
        const auto p = static_cast<int32_t>(i);
        cache_->cells.add(id, {p, p, p}, token);
    }
    const std::vector<uint8_t> zeros(cache_->cell_bytes() * n);
    cache_->write(id, zeros.data());
    if (!draft_) return;
    IndexedCache& drafts = draft_->cache();
    for (uint32_t i = 0; i < n; ++i) {
        const auto p = static_cast<int32_t>(i);
        drafts.cells.add(id, {p, p, p}, token);
    }
    drafts.write(id, std::vector<uint8_t>(drafts.cell_bytes() * n).data());
}

}  // namespace assay
