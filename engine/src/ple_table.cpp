#include "ple_table.h"

#include <algorithm>
#include <cstring>

#include "failure.h"

namespace assay {

PleTable::PleTable(const Model& model, uint64_t cache_bytes)
    : shape_(model.qwen()->shape().ple),
      data_(model.file().mapping().data()),
      table_(*model.qwen()->ple().table) {
    const uint64_t page_bytes = shape_.row_width * sizeof(float);
    const uint64_t n_pages = std::min<uint64_t>(cache_bytes / page_bytes, static_cast<uint64_t>(table_.ne[1]));
    if (n_pages < shape_.n_heads()) {
        throw Failure(ASSAY_INVALID, "ple_cache_bytes is " + std::to_string(cache_bytes) + ", at least " +
                                         std::to_string(shape_.n_heads() * page_bytes) + " are needed");
    }
    n_pages_max_ = static_cast<uint32_t>(std::min<uint64_t>(n_pages, UINT32_MAX));
    use_.n_bytes_max = n_pages_max_ * page_bytes;
}

void PleTable::hash(std::span<const int32_t> context, std::vector<uint64_t>& rows) const {
    const PleShape& p = shape_;
    uint64_t mixed = static_cast<uint64_t>(context[0]) * p.multipliers[0];
    bool is_cut = false;
    for (uint32_t g = 1; g < p.n_gram; ++g) {
        // What is missing or ends a text, and everything older, counts as the end of a text. The token itself never cuts.
        is_cut = is_cut || g >= context.size() || context[g] < 0 || context[g] == p.eos;
        const auto id = static_cast<uint64_t>(is_cut ? p.eos : context[g]);
        mixed ^= id * p.multipliers[g];
        for (uint32_t j = 0; j < p.heads_per_gram; ++j) {
            const uint32_t head = (g - 1) * p.heads_per_gram + j;
            rows.push_back(mixed % p.sizes[head] + p.offsets[head]);
        }
    }
}

void PleTable::decode(uint64_t row, float* out) const {
    const uint8_t* source = data_ + table_.offset + row * ggml_row_size(table_.type, table_.ne[0]);
    if (table_.type == GGML_TYPE_F32)
        std::memcpy(out, source, shape_.row_width * sizeof(float));
    else
        ggml_get_type_traits(table_.type)->to_float(source, out, shape_.row_width);
}

const float* PleTable::page(uint64_t row) {
    ++use_.n_rows;
    const auto known = page_of_row_.find(row);
    if (known != page_of_row_.end()) {
        was_used_[known->second] = 1;
        return pages_.data() + size_t{known->second} * shape_.row_width;
    }
    ++use_.n_misses;
    uint32_t index = static_cast<uint32_t>(row_of_page_.size());
    if (index < n_pages_max_) {
        row_of_page_.push_back(row);
        was_used_.push_back(0);
        pages_.resize(pages_.size() + shape_.row_width);
    } else {
        while (was_used_[hand_] != 0) {
            was_used_[hand_] = 0;
            hand_ = (hand_ + 1) % n_pages_max_;
        }
        index = hand_;
        hand_ = (hand_ + 1) % n_pages_max_;
        page_of_row_.erase(row_of_page_[index]);
        row_of_page_[index] = row;
    }
    page_of_row_[row] = index;
    float* values = pages_.data() + size_t{index} * shape_.row_width;
    decode(row, values);
    return values;
}

void PleTable::gather(std::span<const uint64_t> rows, float* out) {
    for (const uint64_t row : rows) {
        std::memcpy(out, page(row), shape_.row_width * sizeof(float));
        out += shape_.row_width;
    }
}

PleTable::Use PleTable::use() const {
    Use use = use_;
    use.n_bytes = row_of_page_.size() * shape_.row_width * sizeof(float);
    return use;
}

void PleTable::reset_use() { use_.n_rows = use_.n_misses = 0; }

}  // namespace assay
