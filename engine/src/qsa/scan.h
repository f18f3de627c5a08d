// The general path: the tables of a sequence from every cell of its stream, and its queries by search.
#pragma once

#include "qsa/tables.h"

namespace assay::qsa {

struct Scan {
    Tables tables;  // taken over by the prefix
    // Rank -> ordinal of the block that stands for the cell, or n_blocks. Empty where blocks are ranks.
    std::vector<int32_t> block_of_rank;
    bool is_alone = true;        // no other sequence in the stream
    bool is_shared = false;      // a cell belongs to another sequence too
    bool has_equal = false;      // two cells have the same coordinates
    bool has_image = false;      // a position repeats
    bool is_ranked = true;       // blocks are ranks
    bool is_split = false;       // the cells of a bucket belong to different sequence sets
    bool is_collapsed = false;   // several cells fell into one slot of a block
    bool are_blocks_own = true;  // a prefix that was kept from the start would hold the same blocks
    uint64_t n_cells_visited = 0;

    std::vector<Place> places;  // scratch, kept for its capacity
};

// Fills `out` anew. O(cells), O(n log n) where the cells are not in rank order.
void scan(const Cells& cells, uint32_t sequence, uint32_t ratio, Policy policy, Scan& out);

struct Found {
    uint32_t n_visible;  // ranks [0, n_visible) are visible
    uint32_t n_visible_blocks;
    int32_t tail_start;  // rank, or position where blocks are not ranked
};
Found find(const Tables& tables, bool is_ranked, uint32_t ratio, const Row& query);

}  // namespace assay::qsa
