// The tracked prefix alone: what it takes, what it refuses, what it gives up, and what it costs.
#include "qsa/prefix.h"

#include "core_check.h"
#include "qsa/scan.h"

namespace {

using namespace assay::qsa;

Row text(uint32_t cell, int32_t t) { return {cell, {t, t, t}}; }

std::vector<Row> texts(std::initializer_list<int32_t> positions) {
    std::vector<Row> rows;
    for (int32_t t : positions) rows.push_back(text(static_cast<uint32_t>(rows.size()) + 10, t));
    return rows;
}

Prefix made(Policy policy, std::initializer_list<int32_t> positions) {
    Prefix prefix(4, policy);
    CHECK(prefix.apply(texts(positions)));
    return prefix;
}

void rows_must_go_on_in_rank_order() {
    const std::vector<Row> again{text(1, 0), text(1, 1)};
    CHECK(!Prefix(4, Policy::Rank).apply(again));  // one cell twice
    const std::vector<Row> twins{text(1, 0), text(2, 0)};
    CHECK(!Prefix(4, Policy::Rank).apply(twins));  // one place twice
    const std::vector<Row> backwards{{1, {0, 0, 1}}, {2, {0, 0, 0}}};
    CHECK(!Prefix(4, Policy::Rank).apply(backwards));
    Prefix prefix = made(Policy::Rank, {0, 1, 2});
    const Row other_cell = text(30, 1);
    CHECK(!prefix.apply({&other_cell, 1}));
    prefix = made(Policy::Rank, {0, 1, 2});
    const Row taken = text(10, 3);
    CHECK(!prefix.apply({&taken, 1}));
    CHECK(Prefix(4, Policy::Rank).apply({}));
}

void rows_may_repeat_the_end_and_go_past_it() {
    Prefix prefix = made(Policy::Rank, {0, 1, 2, 3, 4, 5, 6, 7});
    prefix.take_kept();
    const std::vector<Row> rows{text(15, 5), text(16, 6), text(17, 7), text(18, 8)};
    CHECK(prefix.apply(rows));
    CHECK_EQUAL(prefix.tables().n_own(), 9U);
    CHECK_EQUAL(prefix.take_kept().n_blocks, 1U);  // the second block has members that were written again
}

void blocks_are_ranks_or_whole_buckets() {
    const Prefix by_rank = made(Policy::Rank, {0, 1, 2, 5, 8, 9, 10, 11});
    CHECK(by_rank.tables().block_start == (std::vector<int32_t>{0, 4}));
    CHECK(by_rank.tables().block_cells == (std::vector<int32_t>{10, 11, 12, 13, 14, 15, 16, 17}));
    const Prefix by_bucket = made(Policy::Bucket, {0, 1, 2, 5, 8, 9, 10, 11});
    CHECK(by_bucket.tables().block_start == (std::vector<int32_t>{8}));
    CHECK(by_bucket.tables().block_first == (std::vector<uint32_t>{4}));
    CHECK_EQUAL(by_bucket.query(7).n_visible_blocks, 1U);
    CHECK_EQUAL(by_bucket.query(7).tail_start, 8U);
    CHECK_EQUAL(by_bucket.query(6).n_visible_blocks, 0U);
    CHECK_EQUAL(by_bucket.query(6).tail_start, 4U);
    CHECK_EQUAL(by_bucket.query(3).tail_start, 3U);  // position 5 of an unfinished bucket: a tail of one
}

void an_image_turns_buckets_into_ranks_and_its_removal_turns_them_back() {
    Prefix prefix = made(Policy::Bucket, {1, 2, 3, 4, 5, 6, 7});
    CHECK(prefix.tables().block_start == (std::vector<int32_t>{4}));
    prefix.take_kept();
    const std::vector<Row> image{{30, {8, 8, 8}, true}, {31, {8, 8, 9}, true}};
    CHECK(prefix.apply(image));
    CHECK(prefix.has_image() && prefix.is_ranked());
    CHECK(prefix.tables().block_start == (std::vector<int32_t>{0, 4}));
    CHECK_EQUAL(prefix.take_kept().n_blocks, 0U);  // the numbering changed under the only block
    prefix.truncate(8);
    CHECK(!prefix.has_image());
    CHECK(prefix.tables().block_start == (std::vector<int32_t>{4}));
    CHECK_EQUAL(prefix.take_kept().n_blocks, 0U);
    CHECK(prefix.equals(made(Policy::Bucket, {1, 2, 3, 4, 5, 6, 7})));
}

void a_rollback_keeps_what_lies_before_it() {
    Prefix prefix = made(Policy::Rank, {0, 1, 2, 3, 4, 5, 6, 7, 8});
    prefix.take_kept();
    prefix.truncate(6);
    CHECK_EQUAL(prefix.tables().n_own(), 6U);
    CHECK_EQUAL(prefix.tables().n_blocks(), 1U);
    const Prefix::Kept kept = prefix.take_kept();
    CHECK_EQUAL(kept.n_own, 6U);
    CHECK_EQUAL(kept.n_blocks, 1U);
    const Row reused = text(16, 6);  // its cell is free again
    CHECK(prefix.apply({&reused, 1}));
    CHECK(prefix.equals(made(Policy::Rank, {0, 1, 2, 3, 4, 5, 6})));
    prefix.truncate(0);
    CHECK(prefix.equals(Prefix(4, Policy::Rank)));
}

void a_million_ranks_cost_as_much_each_as_the_first() {
    Prefix prefix(4, Policy::Rank);
    constexpr uint32_t kCells = 1U << 20;
    uint64_t first = 0;
    for (uint32_t cell = 0; cell < kCells; cell += 4) {
        std::vector<Row> rows;
        for (uint32_t i = cell; i < cell + 4; ++i) rows.push_back(text(i, static_cast<int32_t>(i)));
        if (!prefix.apply(rows)) CHECK(false);
        const uint64_t steps = prefix.take_steps();
        if (cell == 0) first = steps;
        if (steps != first) CHECK_EQUAL(steps, first);
    }
    CHECK_EQUAL(first, 8U);  // four ranks, and the four members of a block
    CHECK_EQUAL(prefix.tables().n_blocks(), kCells / 4);
    CHECK_EQUAL(prefix.query(kCells - 1).n_visible_blocks, kCells / 4);
    CHECK_EQUAL(static_cast<uint32_t>(prefix.tables().block_cells.back()), kCells - 1);
}

void a_scan_of_cells_in_any_order_gives_the_tables_of_the_prefix() {
    constexpr uint32_t kCells = 97;
    std::vector<int32_t> t(kCells, kFree);
    std::vector<Sequences> sets(kCells);
    std::vector<Row> rows;
    for (uint32_t i = 0; i < 60; ++i) {
        rows.push_back(text((7 + 31 * i) % kCells, static_cast<int32_t>(i)));
        t[rows.back().cell] = static_cast<int32_t>(i);
        sets[rows.back().cell].set(5);
    }
    const Cells cells{kCells, 60, t.data(), t.data(), t.data(), sets.data()};
    for (Policy policy : {Policy::Rank, Policy::Bucket}) {
        Prefix prefix(4, policy);
        CHECK(prefix.apply(rows));
        Scan found;
        scan(cells, 5, 4, policy, found);
        CHECK(found.tables == prefix.tables());
        CHECK(found.is_alone && !found.is_shared && found.are_blocks_own);
        Prefix adopted(4, policy);
        adopted.adopt(found.tables, true);
        CHECK(adopted.equals(prefix));
    }
}

}  // namespace

int main() {
    rows_must_go_on_in_rank_order();
    rows_may_repeat_the_end_and_go_past_it();
    blocks_are_ranks_or_whole_buckets();
    an_image_turns_buckets_into_ranks_and_its_removal_turns_them_back();
    a_rollback_keeps_what_lies_before_it();
    a_million_ranks_cost_as_much_each_as_the_first();
    a_scan_of_cells_in_any_order_gives_the_tables_of_the_prefix();
    return core::finish("qsa_prefix");
}
