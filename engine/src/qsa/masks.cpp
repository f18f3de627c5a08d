#include "qsa/masks.h"

#include <limits>

namespace assay::qsa {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

uint32_t padded(uint32_t n, uint32_t step) { return (n + step - 1) / step * step; }

}  // namespace

uint32_t window(const Cells& cells) {
    const uint32_t end = std::min(cells.end, cells.n_cells);
    return std::min(cells.n_cells, std::max(kWindowPadding, padded(end, kWindowPadding)));
}

void fill_masks(const Selection& selection, const Tables& tables, const std::vector<int32_t>& block_of_rank,
                uint32_t n_window, MaskTables& out) {
    const uint32_t n_own = selection.n_own;
    const uint32_t spare = selection.n_blocks;
    out.n_columns = padded(spare + 1, kBiasPadding);
    out.block_of_cell.assign(n_window, -1);
    std::vector<uint32_t> lowest(spare + 1, n_own);  // lowest rank that the block stands for
    const auto assign = [&](uint32_t rank, uint32_t block) {
        out.block_of_cell[tables.own[rank]] = static_cast<int32_t>(block);
        lowest[block] = std::min(lowest[block], rank);
    };
    if (block_of_rank.empty()) {
        uint32_t rank = 0;
        for (uint32_t block = 0; block < spare; ++block) {
            for (; rank < tables.block_first[block]; ++rank) assign(rank, spare);
            for (uint32_t i = 0; i < selection.ratio; ++i) assign(rank++, block);
        }
        for (; rank < n_own; ++rank) assign(rank, spare);
    } else {
        for (uint32_t rank = 0; rank < n_own; ++rank) assign(rank, static_cast<uint32_t>(block_of_rank[rank]));
    }

    out.block_bias.assign(static_cast<size_t>(selection.n_queries) * out.n_columns, kNever);
    out.cell_mask.assign(static_cast<size_t>(selection.n_queries) * n_window, kNever);
    for (uint32_t query = 0; query < selection.n_queries; ++query) {
        float* bias = out.block_bias.data() + static_cast<size_t>(query) * out.n_columns;
        const auto n_visible = static_cast<uint32_t>(selection.visible_cells[query]);
        const auto n_competing = static_cast<uint32_t>(selection.visible_blocks[query]);
        std::fill_n(bias, n_competing, 0.0F);
        // A block that ends after the query is its tail; cells in no block are always visible, whatever their age.
        for (uint32_t block = n_competing; block <= spare; ++block) {
            if (lowest[block] < n_visible) bias[block] = kAlways;
        }
        float* mask = out.cell_mask.data() + static_cast<size_t>(query) * n_window;
        for (uint32_t rank = 0; rank < n_visible; ++rank) mask[tables.own[rank]] = 0.0F;
    }
}

}  // namespace assay::qsa
