#include "qsa/prefix.h"

#include <utility>

namespace assay::qsa {
namespace {

template <class Value>
uint32_t first_difference(const std::vector<Value>& a, const std::vector<Value>& b) {
    const size_t n = std::min(a.size(), b.size());
    return static_cast<uint32_t>(std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin());
}

uint32_t first_other_block(const Tables& a, const Tables& b, uint32_t ratio) {
    return std::min(first_difference(a.block_cells, b.block_cells) / ratio,
                    first_difference(a.block_at, b.block_at));
}

}  // namespace

bool Prefix::apply(std::span<const Row> rows) {
    const auto place = [](const Row& row) { return Place{row.at, row.cell}; };
    for (size_t i = 1; i < rows.size(); ++i) {
        if (!precedes(place(rows[i - 1]), place(rows[i])) || rows[i - 1].at == rows[i].at) return false;
    }
    const uint32_t n_before = tables_.n_own();
    const auto place_of = [&](uint32_t rank) {
        return Place{tables_.at[rank], static_cast<uint32_t>(tables_.own[rank])};
    };
    size_t n_repeated = 0;
    if (n_before > 0 && !rows.empty() && !precedes(place_of(n_before - 1), place(rows[0]))) {
        uint32_t start = tables_.n_own_before(rows[0].at.t);
        while (precedes(place_of(start), place(rows[0]))) ++start;
        n_repeated = std::min<size_t>(rows.size(), n_before - start);
        for (size_t i = 0; i < n_repeated; ++i) {
            if (tables_.at[start + i] != rows[i].at) return false;
            if (tables_.own[start + i] != static_cast<int32_t>(rows[i].cell)) return false;
        }
        kept_.n_blocks = std::min(kept_.n_blocks, tables_.n_blocks_before(start, ratio_));
        n_steps_ += n_before - start;
    }
    for (const Row& row : rows.subspan(n_repeated)) {
        if (!tables_.at.empty() && tables_.at.back() == row.at) return false;
        if (row.cell < holds_.size() && holds_[row.cell]) return false;
#if defined(ASSAY_FAULT_HOLES_INVALIDATE_PREFIX)
        if (tables_.n_own() > 0 && is_hole(tables_.at.back(), row.at)) return false;
#endif
        append(row);
    }
    return true;
}

void Prefix::append(const Row& row) {
    const uint32_t rank = tables_.n_own();
    const bool was_ranked = is_ranked();
    tables_.own.push_back(static_cast<int32_t>(row.cell));
    tables_.at.push_back(row.at);
    if (row.cell >= holds_.size()) holds_.resize(std::max<size_t>(row.cell + 1, holds_.size() * 2));
    holds_[row.cell] = true;
    cell_bound_ = std::max(cell_bound_, row.cell + 1);
    if (first_equal_ == kNone && rank > 0 && tables_.at[rank - 1].t == row.at.t) first_equal_ = rank;
    if (n_identity_ == rank && row.at.t == static_cast<int32_t>(rank)) ++n_identity_;
    ++n_steps_;
    if (!are_blocks_own_) return;
    if (is_ranked() == was_ranked)
        close(rank);
    else
        remake_blocks();
}

// Closes the block that the cell of this rank completes, if it does.
void Prefix::close(uint32_t rank) {
    const int32_t ratio = static_cast<int32_t>(ratio_);
    if (is_ranked()) {
        if (rank % ratio_ != ratio_ - 1) return;
        const uint32_t first = rank - ratio_ + 1;
        tables_.close_block(first, ratio_, static_cast<int32_t>(first), tables_.at[first]);
    } else {
        const int32_t t = tables_.at[rank].t;
        if (t % ratio != ratio - 1 || rank < ratio_ - 1) return;
        const uint32_t first = rank - ratio_ + 1;
        const int32_t start = t - ratio + 1;
        if (tables_.at[first].t != start) return;  // a hole: never a block
        tables_.close_block(first, ratio_, start, {start, start, start});
    }
    n_steps_ += ratio_;
}

void Prefix::remake_blocks() {
    Tables old;
    std::swap(old.block_cells, tables_.block_cells);
    std::swap(old.block_at, tables_.block_at);
    tables_.clear_blocks();
    for (uint32_t rank = 0; rank < tables_.n_own(); ++rank) close(rank);
    n_steps_ += tables_.n_own();
    are_blocks_own_ = true;
    kept_.n_blocks = std::min(kept_.n_blocks, first_other_block(old, tables_, ratio_));
}

void Prefix::own_blocks() {
    if (!are_blocks_own_) remake_blocks();
}

void Prefix::truncate(int32_t t) {
    const uint32_t n = tables_.n_own_before(t);
    const bool was_ranked = is_ranked();
    n_steps_ += tables_.n_own() - n;
    for (uint32_t rank = n; rank < tables_.n_own(); ++rank) holds_[tables_.own[rank]] = false;
    tables_.own.resize(n);
    tables_.at.resize(n);
    if (first_equal_ != kNone && first_equal_ >= n) first_equal_ = kNone;
    n_identity_ = std::min(n_identity_, n);
    // Blocks that a scan of several sequences made need not be neighbouring ranks.
    tables_.resize_blocks(are_blocks_own_ ? tables_.n_blocks_before(n, ratio_) : 0, ratio_);
    if (are_blocks_own_ && is_ranked() != was_ranked) remake_blocks();
#if !defined(ASSAY_FAULT_STALE_PREFIX_AFTER_ROLLBACK)
    kept_.n_own = std::min(kept_.n_own, n);
    kept_.n_blocks = std::min(kept_.n_blocks, tables_.n_blocks());
#endif
}

void Prefix::adopt(Tables& fresh, bool are_blocks_own) {
    const uint32_t n_same = std::min(first_difference(fresh.own, tables_.own), first_difference(fresh.at, tables_.at));
    const bool is_same = n_same == fresh.n_own() && n_same == tables_.n_own();
    kept_.n_own = std::min(kept_.n_own, n_same);
    kept_.n_blocks = std::min(kept_.n_blocks, first_other_block(fresh, tables_, ratio_));
    n_steps_ += fresh.own.size() + fresh.block_cells.size();
    std::swap(tables_, fresh);
    are_blocks_own_ = are_blocks_own;
    cell_bound_ = 0;
    for (int32_t cell : tables_.own) cell_bound_ = std::max(cell_bound_, static_cast<uint32_t>(cell) + 1);
    if (is_same) return;
    holds_.assign(std::max<size_t>(cell_bound_, holds_.size()), false);
    first_equal_ = kNone;
    n_identity_ = 0;
    for (uint32_t rank = 0; rank < tables_.n_own(); ++rank) {
        holds_[tables_.own[rank]] = true;
        if (first_equal_ == kNone && rank > 0 && tables_.at[rank - 1].t == tables_.at[rank].t) first_equal_ = rank;
        if (n_identity_ == rank && tables_.at[rank].t == static_cast<int32_t>(rank)) ++n_identity_;
    }
}

Prefix::Query Prefix::query(uint32_t rank) const {
    if (is_ranked()) {
        const uint32_t n_blocks = (rank + 1) / ratio_;
        return {n_blocks, n_blocks * ratio_};
    }
    const int32_t ratio = static_cast<int32_t>(ratio_);
    const int32_t start = (tables_.at[rank].t + 1) / ratio * ratio;
    uint32_t first = rank + 1;
    while (first > 0 && tables_.at[first - 1].t >= start) --first;  // fewer than `ratio` steps: positions differ
    const auto it = std::lower_bound(tables_.block_start.begin(), tables_.block_start.end(), start);
    return {static_cast<uint32_t>(it - tables_.block_start.begin()), first};
}

bool Prefix::equals(const Prefix& whole) const {
    if (first_equal_ != whole.first_equal_ || n_identity_ != whole.n_identity_) return false;
    for (size_t cell = 0; cell < std::max(holds_.size(), whole.holds_.size()); ++cell) {
        const bool mine = cell < holds_.size() && holds_[cell];
        if (mine != (cell < whole.holds_.size() && whole.holds_[cell])) return false;
    }
    if (are_blocks_own_) return tables_ == whole.tables_;
    return tables_.own == whole.tables_.own && tables_.at == whole.tables_.at;
}

Prefix::Kept Prefix::take_kept() { return std::exchange(kept_, {kNone, kNone}); }

uint64_t Prefix::take_steps() { return std::exchange(n_steps_, 0); }

}  // namespace assay::qsa
