// The tracked prefix of one sequence: its tables in rank order, extended and cut instead of made anew.
#pragma once

#include <span>

#include "qsa/tables.h"

namespace assay::qsa {

class Prefix {
public:
    Prefix(uint32_t ratio, Policy policy) : ratio_(ratio), policy_(policy) {}

    const Tables& tables() const { return tables_; }
    // A position repeats: under the bucket policy too, blocks are ranks while the sequence is alone.
    bool has_image() const { return first_equal_ != kNone; }
    bool is_ranked() const { return policy_ == Policy::Rank || has_image(); }
    // Positions are 0, 1, 2, ...
    bool is_identity() const { return n_identity_ == tables_.n_own(); }
    bool are_blocks_own() const { return are_blocks_own_; }
    uint32_t cell_bound() const { return cell_bound_; }  // no cell of the prefix is at or past it

    // Takes rows that are strictly increasing, begin after the last rank or repeat ranks with the same cells, and hold
    // no cell twice. False: they do neither, and the tables are worth nothing until adopt().
    bool apply(std::span<const Row> rows);
    // Drops the ranks with position >= t and the blocks that lose a member.
    void truncate(int32_t t);
    // Takes tables that a scan made. `are_blocks_own`: they are the blocks that the prefix would have closed itself.
    // `fresh` gets the old ones.
    void adopt(Tables& fresh, bool are_blocks_own);
    // Makes the blocks of the prefix again after a scan put others in their place.
    void own_blocks();

    // The query at this rank, in closed form.
    struct Query {
        uint32_t n_visible_blocks;
        uint32_t tail_start;  // rank of the tail's first cell
    };
    Query query(uint32_t rank) const;

    // What changed below the ends of the tables since the last call: ranks and blocks before these are as they were.
    struct Kept {
        uint32_t n_own;
        uint32_t n_blocks;
    };
    Kept take_kept();
    uint64_t take_steps();
    // Whether every field equals that of a prefix that holds its own blocks.
    bool equals(const Prefix& whole) const;

private:
    static constexpr uint32_t kNone = UINT32_MAX;
    void append(const Row& row);
    void close(uint32_t rank);
    void remake_blocks();

    uint32_t ratio_;
    Policy policy_;
    Tables tables_;
    std::vector<bool> holds_;       // by cell
    uint32_t first_equal_ = kNone;  // first rank with the position of the rank before it
    uint32_t n_identity_ = 0;       // leading ranks whose position is the rank
    uint32_t cell_bound_ = 0;
    bool are_blocks_own_ = true;
    Kept kept_{kNone, kNone};
    uint64_t n_steps_ = 0;
};

}  // namespace assay::qsa
