// The tables of one sequence, and the two rules that every path obeys: rank order, and where a tail ends.
#pragma once

#include <algorithm>
#include <vector>

#include "qsa/qsa.h"

namespace assay::qsa {

struct Tables {
    std::vector<int32_t> own;           // rank -> cell
    std::vector<Coordinates> at;        // rank -> coordinates
    std::vector<int32_t> block_cells;   // [n_blocks, ratio]
    std::vector<Coordinates> block_at;  // rope position of the pooled key
    std::vector<int32_t> block_start;   // rank or position, whichever a query's tail start is
    std::vector<uint32_t> block_first;  // rank of the first member

    bool operator==(const Tables&) const = default;
    uint32_t n_own() const { return static_cast<uint32_t>(own.size()); }
    uint32_t n_blocks() const { return static_cast<uint32_t>(block_start.size()); }

    void clear_blocks() {
        block_cells.clear();
        block_at.clear();
        block_start.clear();
        block_first.clear();
    }
    void resize_blocks(uint32_t n, uint32_t ratio) {
        block_cells.resize(static_cast<size_t>(n) * ratio);
        block_at.resize(n);
        block_start.resize(n);
        block_first.resize(n);
    }
    // Appends the block whose members are the ranks [first, first + ratio).
    void close_block(uint32_t first, uint32_t ratio, int32_t start, Coordinates rope) {
        block_cells.insert(block_cells.end(), own.begin() + first, own.begin() + first + ratio);
        block_at.push_back(rope);
        block_start.push_back(start);
        block_first.push_back(first);
    }
    // Blocks whose members all come before the rank.
    uint32_t n_blocks_before(uint32_t rank, uint32_t ratio) const {
        const auto it = std::partition_point(block_first.begin(), block_first.end(),
                                             [&](uint32_t first) { return first + ratio <= rank; });
        return static_cast<uint32_t>(it - block_first.begin());
    }
    // Cells with a position below t.
    uint32_t n_own_before(int32_t t) const {
        const auto it = std::partition_point(at.begin(), at.end(), [&](Coordinates key) { return key.t < t; });
        return static_cast<uint32_t>(it - at.begin());
    }
};

struct Place {
    Coordinates at;
    uint32_t cell;
};

// Rank order. Cells with the same coordinates, which no sound caller makes, come in the order of their indices.
inline bool precedes(const Place& a, const Place& b) {
#if defined(ASSAY_FAULT_RANK_ORDER_IGNORED)
    if (a.at.t != b.at.t) return a.at.t < b.at.t;
    return a.cell < b.cell;
#endif
    if (a.at != b.at) return a.at < b.at;
    return a.cell < b.cell;
}

// The tail of a query that sees the ranks [0, n_visible) ends before this rank.
inline uint32_t tail_end(uint32_t n_visible) {
#if defined(ASSAY_FAULT_TAIL_OFF_BY_ONE)
    return n_visible - 1;
#endif
    return n_visible;
}

#if defined(ASSAY_FAULT_HOLES_INVALIDATE_PREFIX)
// Whether positions are left out between two neighbouring ranks; an image reaches as far as its last cell.
inline bool is_hole(const Coordinates& before, const Coordinates& after) {
    return after.t > std::max({before.t, before.y, before.x}) + 1;
}
#endif

inline bool is_text(const Row& row) {
#if defined(ASSAY_FAULT_TEXT_AXIS3_REQUIRED)
    if (row.fourth != row.at.t) return false;
#endif
    return !row.is_image && row.at.y == row.at.t && row.at.x == row.at.t;
}

}  // namespace assay::qsa
