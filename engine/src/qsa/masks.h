// A selection in bias form "mask".
#pragma once

#include "qsa/tables.h"

namespace assay::qsa {

struct MaskTables {
    uint32_t n_columns = 0;
    std::vector<float> block_bias;
    std::vector<int32_t> block_of_cell;
    std::vector<float> cell_mask;
};

// Columns of a mask over the cells of a stream.
uint32_t window(const Cells& cells);

// `block_of_rank` as a scan gives it; empty: blocks are neighbouring ranks.
void fill_masks(const Selection& selection, const Tables& tables, const std::vector<int32_t>& block_of_rank,
                uint32_t n_window, MaskTables& out);

}  // namespace assay::qsa
