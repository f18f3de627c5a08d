// The hashed n-gram table of qwen4exp: which rows a token takes, and their values.
//
// The table may be far larger than memory. Rows are read from the mapping of the file and kept decoded in a cache of
// pages with a fixed number of bytes; hashing scatters the rows, so a page is one row.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "model.h"

namespace assay {

class PleTable {
public:
    // cache_bytes: of decoded pages. Throws Failure where not even one token's rows fit.
    PleTable(const Model& model, uint64_t cache_bytes);

    // Rows of the token context[0] after its predecessors context[1], context[2], ...; a shorter context means that the
    // sequence starts there. Appends n_heads rows.
    void hash(std::span<const int32_t> context, std::vector<uint64_t>& rows) const;
    // Decodes rows into out, one after the other: [rows, row width].
    void gather(std::span<const uint64_t> rows, float* out);

    struct Use {
        uint64_t n_rows = 0;    // asked for
        uint64_t n_misses = 0;  // read from the file
        uint64_t n_bytes = 0;   // decoded pages now in memory
        uint64_t n_bytes_max = 0;
    };
    Use use() const;
    void reset_use();

private:
    const float* page(uint64_t row);
    void decode(uint64_t row, float* out) const;

    const PleShape& shape_;
    const uint8_t* data_;
    const GgufTensor& table_;
    uint32_t n_pages_max_;
    std::vector<float> pages_;
    std::vector<uint64_t> row_of_page_;
    std::vector<uint8_t> was_used_;  // second chance: set when a page is used, taken away as the hand passes
    std::unordered_map<uint64_t, uint32_t> page_of_row_;
    uint32_t hand_ = 0;
    Use use_;
};

}  // namespace assay
