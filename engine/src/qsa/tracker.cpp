#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "qsa/masks.h"
#include "qsa/prefix.h"
#include "qsa/scan.h"

namespace assay::qsa {
namespace {

Reason reason_of(Change what) {
    switch (what) {
        case Change::Copied: return Reason::Copied;
        case Change::Restored: return Reason::Restored;
        case Change::Removed: return Reason::Removed;
        case Change::Failed: break;
    }
    return Reason::Failed;
}

[[noreturn]] void refuse(uint32_t cell, const char* problem) {
    throw std::invalid_argument("cell " + std::to_string(cell) + " of a run " + problem);
}

}  // namespace

struct Tracker::State {
    State(uint32_t sequence, uint32_t ratio, Policy policy)
        : sequence(sequence), ratio(ratio), policy(policy), prefix(ratio, policy) {}

    void check(const Cells& cells, std::span<const Row> rows) const;
    bool is_alone(const Cells& cells) const { return cells.n_used == prefix.tables().n_own(); }
    // Why a run whose rows the prefix took cannot use it, or Tracked.
    Reason obstacle(const Cells& cells, std::span<const Row> rows) const;
    void guarded(std::span<const Row> rows);
    void general(const Cells& cells, std::span<const Row> rows, Reason obstacle);
    // Why only masks are exact, or Tracked.
    Reason masking(const Cells& cells, std::span<const Row> rows) const;
    void keep();
    void finish(Route route, Reason reason, size_t n_queries);
    void start_queries(size_t n_queries);

    uint32_t sequence;
    uint32_t ratio;
    Policy policy;
    Prefix prefix;
    Scan scanned;
    Reason untracked = Reason::Tracked;  // why the prefix is not tracked

    // What the graphs hold since the last computed run.
    uint32_t n_own_held = 0;
    uint32_t n_blocks_held = 0;
    uint32_t n_pooled = 0;

    std::vector<int32_t> visible_cells, visible_blocks, tail_cells;
    uint32_t n_window = 0;
    Selection selection;
    MaskTables masks;
    Counters counters;
};

void Tracker::State::check(const Cells& cells, std::span<const Row> rows) const {
    for (const Row& row : rows) {
        if (row.cell >= cells.n_cells || row.cell >= cells.end) refuse(row.cell, "lies outside the stream");
        if (cells.t[row.cell] == kFree) refuse(row.cell, "is free");
        const Coordinates at{cells.t[row.cell], cells.y[row.cell], cells.x[row.cell]};
        if (at != row.at) refuse(row.cell, "stands at other coordinates");
        if (row.at.t < 0) refuse(row.cell, "has a negative position");
        if (!cells.sequences[row.cell].test(sequence)) refuse(row.cell, "belongs to other sequences only");
    }
}

Reason Tracker::State::obstacle([[maybe_unused]] const Cells& cells, std::span<const Row> rows) const {
    for (const Row& row : rows) {
        if (!is_text(row)) return Reason::ImageRows;
    }
    if (untracked != Reason::Tracked) return untracked;
    for (size_t i = 1; i < rows.size(); ++i) {
        if (rows[i].at.t != rows[i - 1].at.t + 1) return Reason::GapInRun;
    }
    if (prefix.cell_bound() > cells.n_cells) return Reason::OutsideWindow;
    const bool is_regular = policy == Policy::Rank || (!prefix.has_image() && prefix.is_identity());
    if (!is_regular && !is_alone(cells)) return Reason::NotAlone;
#if defined(ASSAY_FAULT_POSITION_ONLY_BLOCKS) || defined(ASSAY_FAULT_BIAS_BY_BLOCK_NUMBER)
    if (!is_alone(cells)) return Reason::NotAlone;
#endif
#if defined(ASSAY_FAULT_IMAGE_ONE_BLOCK) || defined(ASSAY_FAULT_IMAGE_DISABLES_PREFIX)
    if (prefix.has_image()) return Reason::QueryAtImage;
#endif
#if defined(ASSAY_FAULT_BOUND_262140)
    if (cells.n_cells > 262140 && rows.size() > 512) return Reason::OutsideWindow;
#endif
#if defined(ASSAY_PATH_GENERAL_ONLY)
    return Reason::GeneralOnly;
#endif
    return Reason::Tracked;
}

Reason Tracker::State::masking([[maybe_unused]] const Cells& cells, std::span<const Row> rows) const {
#if defined(ASSAY_FAULT_IMAGE_DISABLES_PREFIX)
    if (scanned.has_image) return Reason::QueryAtImage;
#endif
#if defined(ASSAY_FAULT_BOUND_262140)
    if (cells.n_cells > 262140 && rows.size() > 512) return Reason::OutsideWindow;
#endif
    if (policy == Policy::Rank) return Reason::Tracked;
    for (const Row& row : rows) {
        if (!is_text(row)) return Reason::QueryAtImage;
    }
    if (scanned.has_image && !scanned.is_alone) return Reason::ImageBesideOthers;
    if (scanned.is_split) return Reason::SplitBlock;
    return Reason::Tracked;
}

void Tracker::State::start_queries(size_t n_queries) {
    visible_cells.resize(n_queries);
    visible_blocks.resize(n_queries);
    tail_cells.assign(n_queries * (ratio - 1), -1);
    counters.n_mapping_steps += n_queries * (ratio + 1);
}

// Entries that changed below the ends of the tables no longer count as held.
void Tracker::State::keep() {
    const Prefix::Kept kept = prefix.take_kept();
    n_own_held = std::min(n_own_held, kept.n_own);
    n_blocks_held = std::min(n_blocks_held, kept.n_blocks);
    n_pooled = std::min(n_pooled, kept.n_blocks);
    counters.n_mapping_steps += prefix.take_steps();
}

void Tracker::State::guarded(std::span<const Row> rows) {
    prefix.own_blocks();
    const Tables& tables = prefix.tables();
    start_queries(rows.size());
    if (rows.empty()) return;
    // Rows that repeat ranks may end before the last one.
    const uint32_t first = tables.n_own_before(rows[0].at.t);
    uint32_t rank = first;
    while (tables.at[rank] != rows[0].at) ++rank;
    for (size_t i = 0; i < rows.size(); ++i, ++rank) {
        const Prefix::Query query = prefix.query(rank);
        visible_cells[i] = static_cast<int32_t>(rank + 1);
        visible_blocks[i] = static_cast<int32_t>(query.n_visible_blocks);
        int32_t* tail = tail_cells.data() + i * (ratio - 1);
        for (uint32_t member = query.tail_start; member < tail_end(rank + 1); ++member) {
            const uint32_t slot = prefix.is_ranked() ? member - query.tail_start : tables.at[member].t % ratio;
            tail[slot] = tables.own[member];
        }
    }
}

void Tracker::State::general(const Cells& cells, std::span<const Row> rows, Reason obstacle) {
    scan(cells, sequence, ratio, policy, scanned);
    counters.n_scans += 1;
    counters.n_cells_visited += scanned.n_cells_visited;
    counters.n_mapping_steps += scanned.n_cells_visited;
    prefix.adopt(scanned.tables, scanned.are_blocks_own);
    const bool was_tracked = untracked == Reason::Tracked;
    if (scanned.is_shared)
        untracked = Reason::SharedCells;
    else if (scanned.has_equal)
        untracked = Reason::EqualCoordinates;
    else
        untracked = Reason::Tracked;
#if defined(ASSAY_FAULT_HOLES_INVALIDATE_PREFIX)
    const std::vector<Coordinates>& at = prefix.tables().at;
    if (std::adjacent_find(at.begin(), at.end(), is_hole) != at.end()) {
        untracked = Reason::OutOfOrder;
        n_pooled = 0;
    }
#endif
    if (untracked == Reason::Tracked && !was_tracked) counters.n_recoveries += 1;
    const bool is_change = obstacle >= Reason::Copied && obstacle <= Reason::Failed;
    if ((is_change || obstacle == Reason::OutOfOrder) && untracked != Reason::Tracked) obstacle = untracked;

    const Tables& tables = prefix.tables();
    start_queries(rows.size());
    uint32_t lowest = tables.n_own();
    for (size_t i = 0; i < rows.size(); ++i) {
        const Found found = find(tables, scanned.is_ranked, ratio, rows[i]);
        lowest = std::min(lowest, found.n_visible - 1);
        visible_cells[i] = static_cast<int32_t>(found.n_visible);
        visible_blocks[i] = static_cast<int32_t>(found.n_visible_blocks);
        int32_t* tail = tail_cells.data() + i * (ratio - 1);
        for (uint32_t rank = tail_end(found.n_visible); rank-- > 0;) {
            const int32_t place = scanned.is_ranked ? static_cast<int32_t>(rank) : tables.at[rank].t;
            if (place < found.tail_start) break;
            int32_t& slot = tail[(place - found.tail_start) % static_cast<int32_t>(ratio)];
            if (slot < 0) slot = tables.own[rank];
        }
    }
    // The rows of this run have new keys; a block whose members are not neighbouring ranks could be any.
    while (lowest > 0 && lowest < tables.n_own() && tables.at[lowest - 1] == tables.at[lowest]) --lowest;
    const bool is_regular = !scanned.is_collapsed && !scanned.is_split;
    n_pooled = std::min(n_pooled, is_regular ? tables.n_blocks_before(lowest, ratio) : 0);
    const Reason reason = masking(cells, rows);
    if (reason == Reason::Tracked)
        finish(Route::General, obstacle, rows.size());
    else
        finish(Route::Masked, reason, rows.size());
}

void Tracker::State::finish(Route route, Reason reason, size_t n_queries) {
    keep();
    counters.runs[static_cast<size_t>(route)] += 1;
    counters.reasons[static_cast<size_t>(reason)] += 1;
    const Tables& tables = prefix.tables();
    selection.route = route;
    selection.reason = reason;
    selection.n_queries = static_cast<uint32_t>(n_queries);
    selection.n_own = tables.n_own();
    selection.n_blocks = tables.n_blocks();
    selection.ratio = ratio;
    selection.own_cells = tables.own;
    selection.block_cells = tables.block_cells;
    selection.block_at = tables.block_at;
    selection.first_new_own = std::min(n_own_held, selection.n_own);
    selection.first_new_block = std::min(n_blocks_held, selection.n_blocks);
    selection.first_stale_block = std::min(n_pooled, selection.n_blocks);
    selection.visible_cells = visible_cells;
    selection.visible_blocks = visible_blocks;
    selection.tail_cells = tail_cells;
}

Tracker::Tracker(uint32_t sequence, uint32_t ratio, Policy policy) {
    if (sequence >= kMaxSequences) throw std::invalid_argument("a sequence id is below 256");
    if (ratio < 2) throw std::invalid_argument("a block has at least two cells");
    state_ = std::make_unique<State>(sequence, ratio, policy);
}
Tracker::Tracker(Tracker&&) noexcept = default;
Tracker& Tracker::operator=(Tracker&&) noexcept = default;
Tracker::~Tracker() = default;

void Tracker::truncate(int32_t t) {
    state_->prefix.truncate(t);
    state_->keep();
}

void Tracker::changed(Change what, int32_t stale_from) {
    State& state = *state_;
    state.untracked = reason_of(what);
    const Tables& tables = state.prefix.tables();
    const uint32_t n_blocks = tables.n_blocks_before(tables.n_own_before(stale_from), state.ratio);
    state.n_pooled = std::min(state.n_pooled, state.prefix.are_blocks_own() ? n_blocks : 0);
}

const Selection& Tracker::select(const Cells& cells, std::span<const Row> rows) {
    State& state = *state_;
    state.check(cells, rows);
    state.n_window = window(cells);
    if (state.untracked == Reason::Tracked && !state.prefix.apply(rows)) state.untracked = Reason::OutOfOrder;
    const Reason obstacle = state.obstacle(cells, rows);
    if (obstacle == Reason::Tracked) {
        state.guarded(rows);
        state.finish(Route::Guarded, Reason::Tracked, rows.size());
    } else {
        state.general(cells, rows, obstacle);
    }
    return state.selection;
}
const Selection& Tracker::selection() const { return state_->selection; }

void Tracker::computed() {
    State& state = *state_;
    state.keep();
    state.n_own_held = state.prefix.tables().n_own();
    state.n_blocks_held = state.n_pooled = state.prefix.tables().n_blocks();
}

Masks Tracker::masks() {
    State& state = *state_;
    const bool is_scanned = state.selection.route != Route::Guarded;
    const std::vector<int32_t> none;
    fill_masks(state.selection, state.prefix.tables(), is_scanned ? state.scanned.block_of_rank : none, state.n_window,
               state.masks);
    state.counters.n_mapping_steps += state.masks.block_bias.size() + state.masks.cell_mask.size() + state.n_window;
    return {state.masks.n_columns, state.n_window, state.masks.block_bias, state.masks.block_of_cell,
            state.masks.cell_mask};
}

uint32_t Tracker::sequence() const { return state_->sequence; }
Policy Tracker::policy() const { return state_->policy; }
bool Tracker::is_tracked() const { return state_->untracked == Reason::Tracked; }

bool Tracker::equals_rebuilt(const Cells& cells) const {
    const State& state = *state_;
    Scan found;
    scan(cells, state.sequence, state.ratio, state.policy, found);
    std::vector<Row> rows(found.tables.own.size());
    for (size_t rank = 0; rank < rows.size(); ++rank) {
        rows[rank] = {static_cast<uint32_t>(found.tables.own[rank]), found.tables.at[rank], false, 0};
    }
    Prefix rebuilt(state.ratio, state.policy);
    return rebuilt.apply(rows) && state.prefix.equals(rebuilt);
}

const Counters& Tracker::counters() const { return state_->counters; }
void Tracker::reset_counters() { state_->counters = {}; }

}  // namespace assay::qsa
