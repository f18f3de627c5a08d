// Who stands in each cell of an indexed cache, as which token and at which coordinates.
//
// Cells are grouped into streams. Split: each sequence has its own stream. Unified: one stream for all, where a cell can
// belong to several sequences (a common prefix). Tokens of a sequence arrive in rank order, so that its cells in the
// order of their arrival are its cells in rank order.
#pragma once

#include <cstdint>
#include <vector>

#include "engine.h"
#include "qsa/qsa.h"

namespace assay {

using qsa::Coordinates;

class Cells {
public:
    struct Layout {
        uint32_t n_sequences = 1;
        uint32_t n_cells = 0;  // of a stream
        bool is_unified = false;
        // Unified: each sequence takes cells of its own stretch only, so that its layout depends on nobody else.
        bool is_reserved = false;
    };
    Cells(const Layout& layout, assay_work& work);

    uint32_t n_streams() const { return static_cast<uint32_t>(streams_.size()); }
    uint32_t n_cells() const { return layout_.n_cells; }
    bool is_unified() const { return layout_.is_unified; }
    uint32_t stream_of(uint32_t sequence) const { return layout_.is_unified ? 0 : sequence; }
    // Where the cell stands when the rows of all streams lie one after the other.
    int64_t row(uint32_t sequence, uint32_t cell) const { return int64_t{stream_of(sequence)} * n_cells() + cell; }
    // Free cells that the sequence may take.
    uint32_t n_free(uint32_t sequence) const;
    // Cells that nobody else would keep if the sequence went.
    uint32_t n_own_alone(uint32_t sequence) const;

    // Cells of the sequence in rank order.
    const std::vector<uint32_t>& order(uint32_t sequence) const { return orders_[sequence]; }
    Coordinates at(uint32_t sequence, uint32_t cell) const;
    int32_t token(uint32_t sequence, uint32_t cell) const { return streams_[stream_of(sequence)].tokens[cell]; }
    bool has(uint32_t sequence) const { return !orders_[sequence].empty(); }
    Coordinates last(uint32_t sequence) const { return at(sequence, orders_[sequence].back()); }
    // Whether another sequence stands in one of the cells from rank `first` on.
    bool is_shared(uint32_t sequence, uint32_t first = 0) const;
    qsa::Cells view(uint32_t sequence) const;

    // Takes the first free cell; the caller has checked that there is one and that `at` follows the last cell.
    uint32_t add(uint32_t sequence, const Coordinates& at, int32_t token);
    // Keeps the first n ranks.
    void truncate(uint32_t sequence, uint32_t n_keep);
    // Lets `target`, which is empty, stand in every cell of `source` too (unified).
    void share(uint32_t source, uint32_t target);

private:
    struct Stream {
        std::vector<int32_t> t, y, x, tokens;
        std::vector<qsa::Sequences> sequences;
        uint32_t n_used = 0;
        uint32_t end = 0;  // one past the last used cell
    };
    struct Stretch {
        uint32_t begin;
        uint32_t end;
        uint32_t first_free;  // no free cell of the stretch below it
        uint32_t n_used;
    };
    uint32_t stretch_of(uint32_t sequence) const;
    uint32_t stretch_at(uint32_t stream, uint32_t cell) const;

    Layout layout_;
    assay_work& work_;
    std::vector<Stream> streams_;
    std::vector<Stretch> stretches_;  // one a stream, or one a sequence where they are reserved
    std::vector<std::vector<uint32_t>> orders_;
};

}  // namespace assay
