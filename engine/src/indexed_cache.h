// The cache of sparse attention: for every layer the rows of keys, values and raw indexer keys of each cell, the pooled
// keys of each block, and for every sequence the tables that lead from ranks and blocks to cells.
//
// Raw indexer keys have the cell of their token: one placement, one copy, one saved state. Pooled keys stand in rows of
// (sequence, ordinal): nobody else writes them.
#pragma once

#include <array>
#include <vector>

#include "cells.h"
#include "devices.h"
#include "model.h"

namespace assay {

// Calls action(first cell, n) for each stretch of neighbouring cells.
template <class Action>
void for_each_stretch(const std::vector<uint32_t>& cells, Action action) {
    for (size_t first = 0; first < cells.size();) {
        size_t last = first + 1;
        while (last < cells.size() && cells[last] == cells[last - 1] + 1) ++last;
        action(cells[first], last - first);
        first = last;
    }
}

class IndexedCache {
public:
    struct Kind {
        std::vector<uint32_t> layers;  // blocks of the model
        int32_t kv_type = ASSAY_KV_F16;
        qsa::Policy policy = qsa::Policy::Rank;
        bool is_reserved = false;
    };
    // Allocates and clears the rows. Throws Failure.
    IndexedCache(const Model& model, const assay_session_settings& settings, const Kind& kind, assay_work& work);

    Cells cells;
    std::array<uint64_t, static_cast<size_t>(qsa::Reason::Count_)> reasons{};  // of the routes of all runs

    uint32_t n_layers() const { return static_cast<uint32_t>(keys_.size()); }
    uint32_t block_of(uint32_t layer) const { return kind_.layers[layer]; }
    uint32_t index_of(uint32_t block) const;
    ggml_type type() const { return type_; }
    uint64_t bytes() const;
    ggml_tensor* keys(uint32_t i) const { return keys_[i]; }      // [kv heads * head size, rows]
    ggml_tensor* values(uint32_t i) const { return values_[i]; }  // [kv heads * head size, rows]
    ggml_tensor* raw(uint32_t i) const { return raw_[i]; }        // [index size, rows], f32 or f16
    ggml_tensor* pooled(uint32_t i) const { return pooled_[i]; }  // f32 [index size, n_blocks_max * sequences + some]
    ggml_tensor* own_table() const { return own_table_; }         // i32 [n_own_max, sequences]: rank -> row
    ggml_tensor* block_table() const { return block_table_; }     // i32 [ratio, n_blocks_max * sequences]
    uint32_t n_own_max() const { return n_own_max_; }             // padded, so that views may be rounded up
    uint32_t n_blocks_max() const { return n_blocks_max_; }
    // A row of `pooled` that no selection looks at.
    int64_t spare_block() const { return int64_t{n_blocks_max_} * n_sequences_; }

    qsa::Tracker& tracker(uint32_t sequence) { return trackers_[sequence]; }
    const qsa::Tracker& tracker(uint32_t sequence) const { return trackers_[sequence]; }
    // Writes what a selection changed into the tables. Returns the number of entries.
    uint64_t write_tables(uint32_t sequence, const qsa::Selection& selection);

    // Keeps the first n ranks of the sequence and tells every tracker that it concerns.
    void truncate(uint32_t sequence, uint32_t n_keep);
    // After a run that was not computed: what it may have written is made anew.
    void forget_run(uint32_t sequence, uint32_t n_keep);
    // Gives `target`, which is empty, the cells of `source`; the caller has checked the room.
    void copy(uint32_t source, uint32_t target);

    size_t cell_bytes() const;  // of all rows of one cell
    // Rows of the sequence's cells in rank order, layer by layer: keys, values, raw keys.
    void read(uint32_t sequence, uint8_t* out) const;
    void write(uint32_t sequence, const uint8_t* in);

private:
    std::vector<ggml_tensor*> rows_of_layers() const;

    Kind kind_;
    uint32_t n_sequences_;
    uint32_t ratio_;
    ggml_type type_;
    uint32_t n_own_max_;
    uint32_t n_blocks_max_;
    std::vector<qsa::Tracker> trackers_;
    std::vector<ContextHandle> contexts_;
    std::vector<BufferHandle> buffers_;
    std::vector<ggml_tensor*> keys_;
    std::vector<ggml_tensor*> values_;
    std::vector<ggml_tensor*> raw_;
    std::vector<ggml_tensor*> pooled_;
    ggml_tensor* own_table_ = nullptr;
    ggml_tensor* block_table_ = nullptr;
    std::vector<int32_t> numbers_;
};

}  // namespace assay
