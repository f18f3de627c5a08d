#include "qsa/scan.h"

#include <numeric>

namespace assay::qsa {
namespace {

void collect(const Cells& cells, uint32_t sequence, Scan& out) {
    const uint32_t end = std::min(cells.end, cells.n_cells);
    std::vector<Place>& places = out.places;
    places.clear();
    bool is_sorted = true;
    uint32_t n_used = 0;
    for (uint32_t cell = 0; cell < end; ++cell) {
        if (cells.t[cell] == kFree) continue;
        ++n_used;
        if (!cells.sequences[cell].test(sequence)) continue;
        const Place place{{cells.t[cell], cells.y[cell], cells.x[cell]}, cell};
        is_sorted = is_sorted && (places.empty() || precedes(places.back(), place));
        places.push_back(place);
        out.is_shared = out.is_shared || cells.sequences[cell].count() > 1;
    }
    out.n_cells_visited = end;
    if (!is_sorted) std::sort(places.begin(), places.end(), precedes);
    out.is_alone = !out.is_shared && n_used == places.size();
    out.tables.own.resize(places.size());
    out.tables.at.resize(places.size());
    for (size_t rank = 0; rank < places.size(); ++rank) {
        out.tables.own[rank] = static_cast<int32_t>(places[rank].cell);
        out.tables.at[rank] = places[rank].at;
        if (rank == 0) continue;
        out.has_image = out.has_image || places[rank - 1].at.t == places[rank].at.t;
        out.has_equal = out.has_equal || places[rank - 1].at == places[rank].at;
    }
}

void make_rank_blocks(Tables& tables, uint32_t ratio) {
    const uint32_t n_blocks = tables.n_own() / ratio;
    tables.resize_blocks(n_blocks, ratio);
    std::copy_n(tables.own.begin(), tables.block_cells.size(), tables.block_cells.begin());
    for (uint32_t block = 0; block < n_blocks; ++block) {
        const uint32_t first = block * ratio;
        tables.block_at[block] = tables.at[first];
        tables.block_start[block] = static_cast<int32_t>(first);
        tables.block_first[block] = first;
    }
}

// The cells of one bucket that have one sequence set.
struct Group {
    Sequences set;
    std::vector<int32_t> slots;  // rank by t mod ratio; the last one stays where several have one position
};

// Groups the ranks by (bucket, sequence set). A group is a block when each of its slots is filled.
void make_bucket_blocks([[maybe_unused]] const Cells& cells, uint32_t ratio, Scan& out) {
    Tables& tables = out.tables;
    const auto width = static_cast<int32_t>(ratio);
    out.block_of_rank.assign(tables.n_own(), -1);
    std::vector<Group> groups;
    std::vector<uint32_t> group_of;
    for (uint32_t begin = 0, end = 0; begin < tables.n_own(); begin = end) {
        const int32_t bucket = tables.at[begin].t / width;
        groups.clear();
        group_of.clear();
        for (end = begin; end < tables.n_own() && tables.at[end].t / width == bucket; ++end) {
#if defined(ASSAY_FAULT_POSITION_ONLY_BLOCKS)
            const Sequences set;
#else
            const Sequences& set = cells.sequences[tables.own[end]];
#endif
            const auto same = [&](const Group& group) { return group.set == set; };
            auto group = std::find_if(groups.begin(), groups.end(), same);
            if (group == groups.end()) group = groups.insert(groups.end(), {set, std::vector<int32_t>(ratio, -1)});
            int32_t& slot = group->slots[tables.at[end].t % width];
            out.is_collapsed = out.is_collapsed || slot >= 0;
            slot = static_cast<int32_t>(end);
            group_of.push_back(static_cast<uint32_t>(group - groups.begin()));
        }
        out.is_split = out.is_split || groups.size() > 1;
        for (uint32_t number = 0; number < groups.size(); ++number) {
            const std::vector<int32_t>& slots = groups[number].slots;
            if (std::find(slots.begin(), slots.end(), -1) != slots.end()) continue;
            const auto block = static_cast<int32_t>(tables.n_blocks());
            const int32_t start = bucket * width;
            for (int32_t rank : slots) tables.block_cells.push_back(tables.own[rank]);
            tables.block_at.push_back({start, start, start});
            tables.block_start.push_back(start);
            tables.block_first.push_back(static_cast<uint32_t>(slots[0]));
            for (uint32_t rank = begin; rank < end; ++rank) {
                if (group_of[rank - begin] == number) out.block_of_rank[rank] = block;
            }
        }
    }
    for (int32_t& block : out.block_of_rank) {
        if (block < 0) block = static_cast<int32_t>(tables.n_blocks());
    }
    out.are_blocks_own = !out.is_split && !out.is_collapsed;
}

#if defined(ASSAY_FAULT_POSITION_ONLY_BLOCKS)
// Pools by position alone: of all sequences' cells at a position, the one in the last cell is taken.
void take_last_written(const Cells& cells, uint32_t ratio, Tables& tables) {
    const uint32_t end = std::min(cells.end, cells.n_cells);
    for (uint32_t cell = 0; cell < end; ++cell) {
        if (cells.t[cell] == kFree) continue;
        const int32_t slot = cells.t[cell] % static_cast<int32_t>(ratio);
        const int32_t start = cells.t[cell] - slot;
        const auto at = std::lower_bound(tables.block_start.begin(), tables.block_start.end(), start);
        if (at == tables.block_start.end() || *at != start) continue;
        tables.block_cells[(at - tables.block_start.begin()) * ratio + slot] = static_cast<int32_t>(cell);
    }
}
#endif

#if defined(ASSAY_FAULT_BIAS_BY_BLOCK_NUMBER)
// Blocks of all sequences of the stream are numbered together, and the number is taken for the bucket.
void number_through_the_stream(const Cells& cells, uint32_t sequence, uint32_t ratio, Tables& tables) {
    const uint32_t end = std::min(cells.end, cells.n_cells);
    std::vector<int32_t> foreign;  // starts of the other sequences' groups, by their last position
    const auto width = static_cast<int32_t>(ratio);
    for (uint32_t cell = 0; cell < end; ++cell) {
        if (cells.t[cell] == kFree || cells.sequences[cell].test(sequence)) continue;
        if (cells.t[cell] % width == width - 1) foreign.push_back(cells.t[cell] - width + 1);
    }
    std::sort(foreign.begin(), foreign.end());
    for (uint32_t block = 0; block < tables.n_blocks(); ++block) {
        const auto before = std::upper_bound(foreign.begin(), foreign.end(), tables.block_at[block].t);
        const auto number = static_cast<int32_t>(block + (before - foreign.begin()));
        if (!foreign.empty()) tables.block_start[block] = width * number;
    }
}
#endif

}  // namespace

void scan(const Cells& cells, uint32_t sequence, uint32_t ratio, Policy policy, Scan& out) {
    out.tables.clear_blocks();
    out.block_of_rank.clear();
    out.is_shared = out.has_equal = out.has_image = out.is_split = out.is_collapsed = false;
    out.are_blocks_own = true;
    collect(cells, sequence, out);
    // The image rule: ranks stand in for positions while one sequence has the stream to itself.
    out.is_ranked = policy == Policy::Rank || (out.has_image && out.is_alone);
#if defined(ASSAY_FAULT_IMAGE_ONE_BLOCK)
    if (out.has_image) out.is_ranked = false;
#endif
#if defined(ASSAY_FAULT_POSITION_ONLY_BLOCKS)
    out.is_ranked = false;
#endif
    if (out.is_ranked)
        make_rank_blocks(out.tables, ratio);
    else
        make_bucket_blocks(cells, ratio, out);
#if defined(ASSAY_FAULT_POSITION_ONLY_BLOCKS)
    take_last_written(cells, ratio, out.tables);
    out.are_blocks_own = false;
#endif
#if defined(ASSAY_FAULT_IMAGE_ONE_BLOCK)
    if (!out.is_ranked) out.are_blocks_own = false;
#endif
#if defined(ASSAY_FAULT_BIAS_BY_BLOCK_NUMBER)
    number_through_the_stream(cells, sequence, ratio, out.tables);
    out.are_blocks_own = false;
#endif
}

Found find(const Tables& tables, bool is_ranked, uint32_t ratio, const Row& query) {
    const auto is_visible = [&](uint32_t rank) {
        return !precedes({query.at, query.cell}, {tables.at[rank], static_cast<uint32_t>(tables.own[rank])});
    };
    uint32_t low = 0, high = tables.n_own();
    while (low < high) {
        const uint32_t middle = std::midpoint(low, high);
        if (is_visible(middle))
            low = middle + 1;
        else
            high = middle;
    }
    while (low < tables.n_own() && tables.at[low] == query.at) ++low;  // cells at its own coordinates are visible too
    const auto width = static_cast<int32_t>(ratio);
    const int32_t past = is_ranked ? static_cast<int32_t>(low) : query.at.t + 1;
    const int32_t start = past / width * width;
    const auto it = std::lower_bound(tables.block_start.begin(), tables.block_start.end(), start);
    return {low, static_cast<uint32_t>(it - tables.block_start.begin()), start};
}

}  // namespace assay::qsa
