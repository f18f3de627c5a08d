// The key-value cache: one row of keys and one of values per cell and layer, and who stands in each cell.
//
// Cells are grouped into streams. Split: each sequence has its own stream of n_ctx cells. Unified: one stream
// that all sequences share, where a cell can belong to several sequences (a common prefix).
#pragma once

#include <bitset>
#include <cstdint>
#include <vector>

#include "devices.h"
#include "engine.h"
#include "executor.h"
#include "model.h"

namespace assay {

// The type of the rows for a value of enum assay_kv_type. Throws Failure for another value.
ggml_type cache_row_type(int32_t kv_type);

class Cache {
public:
    // Position of a free cell. Larger than every position, so that a mask needs one comparison a cell.
    static constexpr int32_t kFree = INT32_MAX;
    using Sequences = std::bitset<kMaxSequences>;

    struct Cell {
        uint32_t stream;
        uint32_t index;
    };

    // Allocates and clears the rows. Throws Failure.
    Cache(const Model& model, const assay_session_settings& settings, assay_work& work);

    uint32_t n_streams() const { return static_cast<uint32_t>(streams_.size()); }
    uint32_t n_cells() const { return n_cells_; }  // usable cells of a stream
    uint32_t n_rows() const { return n_rows_; }    // allocated rows of a stream (cells, padded)
    uint32_t n_sequences() const { return n_sequences_; }
    bool is_unified() const { return is_unified_; }
    uint32_t stream_of(uint32_t sequence) const { return is_unified_ ? 0 : sequence; }
    ggml_type type() const { return type_; }
    uint64_t bytes() const;
    ggml_tensor* keys(uint32_t layer) const { return keys_[layer]; }      // [n_embd_k, n_rows * n_streams]
    ggml_tensor* values(uint32_t layer) const { return values_[layer]; }  // [n_embd_v, n_rows * n_streams]
    uint32_t n_layers() const { return static_cast<uint32_t>(keys_.size()); }
    int64_t row(Cell cell) const { return static_cast<int64_t>(cell.stream) * n_rows_ + cell.index; }

    uint32_t n_free(uint32_t stream) const { return n_cells_ - streams_[stream].n_used; }
    // One past the last used cell: how far attention has to look.
    uint32_t end(uint32_t stream) const { return streams_[stream].end; }
    const std::vector<int32_t>& positions(uint32_t stream) const { return streams_[stream].positions; }
    const Sequences& sequences(Cell cell) const { return streams_[cell.stream].sequences[cell.index]; }
    int32_t position(Cell cell) const { return streams_[cell.stream].positions[cell.index]; }
    int32_t last_position(uint32_t sequence) const { return tails_[sequence].last; }
    uint32_t n_cells_of(uint32_t sequence) const { return tails_[sequence].n; }

    // Takes the first free cell of the sequence's stream; the caller has checked that there is one.
    Cell add(uint32_t sequence, int32_t position);
    void join(Cell cell, uint32_t sequence);
    // Takes the sequence out of the cell; the cell is free when nobody is left in it.
    void leave(Cell cell, uint32_t sequence);
    void move(Cell cell, int32_t position);  // the tails are brought up to date by refresh
    void refresh(uint32_t sequence);
    // The cells of the sequence with p0 <= position < p1, ordered by position.
    std::vector<Cell> find(uint32_t sequence, int32_t p0, int32_t p1) const;
    // Positions of one stream as the sequence sees them: kFree where it has no cell.
    const int32_t* view(uint32_t sequence, uint32_t n, std::vector<int32_t>& scratch) const;

    // Bytes of the rows of some cells of one stream, one after the other.
    void read_rows(ggml_tensor* tensor, const std::vector<Cell>& cells, uint8_t* out) const;
    void write_rows(ggml_tensor* tensor, const std::vector<Cell>& cells, const uint8_t* in);
    void clear_rows(const std::vector<Cell>& cells);

private:
    struct Stream {
        std::vector<int32_t> positions;
        std::vector<Sequences> sequences;
        uint32_t n_used = 0;
        uint32_t end = 0;
        uint32_t first_free = 0;  // no free cell below it
    };
    struct Tail {
        int32_t last = -1;
        uint32_t n = 0;
    };

    void release(Stream& stream, uint32_t index);
    template <class Action>
    void for_each_run(const std::vector<Cell>& cells, Action action) const;

    bool is_unified_;
    uint32_t n_cells_;
    uint32_t n_rows_;
    uint32_t n_sequences_;
    ggml_type type_;
    assay_work& work_;
    std::vector<Stream> streams_;
    std::vector<Tail> tails_;
    std::vector<ContextHandle> contexts_;
    std::vector<BufferHandle> buffers_;
    std::vector<ggml_tensor*> keys_;
    std::vector<ggml_tensor*> values_;
};

}  // namespace assay
