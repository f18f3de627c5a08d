#include "indexed_cache.h"

#include <algorithm>
#include <map>

#include "cache.h"
#include "failure.h"

namespace assay {
namespace {

// Graphs widen their views in these steps, so that the graph of one step serves the next ones.
constexpr uint32_t kViewStep = 256;

uint32_t round_up(uint32_t value) { return (value + kViewStep - 1) / kViewStep * kViewStep; }

Cells::Layout layout_of(const assay_session_settings& settings, bool is_reserved) {
    return {settings.n_seq, settings.n_ctx, settings.kv_unified, is_reserved};
}

}  // namespace

IndexedCache::IndexedCache(const Model& model, const assay_session_settings& settings, const Kind& kind,
                           assay_work& work)
    : cells(layout_of(settings, kind.is_reserved), work),
      kind_(kind),
      n_sequences_(settings.n_seq),
      ratio_(model.qwen()->shape().ratio),
      type_(cache_row_type(kind.kv_type)),
      n_own_max_(round_up(settings.n_ctx)),
      // A graph over no block at all has no shape, so a context smaller than a block has room for one that is never full.
      n_blocks_max_(round_up(std::max(1U, settings.n_ctx / ratio_))) {
    const QwenShape& shape = model.qwen()->shape();
    if (shape.head_size % ggml_blck_size(type_) != 0) {
        throw Failure(ASSAY_UNSUPPORTED, "heads of " + std::to_string(shape.head_size) +
                                             " elements do not divide into blocks of " + ggml_type_name(type_) +
                                             "; use kv_type f16 or f32");
    }
    for (uint32_t i = 0; i < n_sequences_; ++i) trackers_.emplace_back(i, ratio_, kind.policy);
    // Quantised indexer keys would select other blocks.
    const ggml_type raw_type = type_ == GGML_TYPE_F32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
    const int64_t n_rows = int64_t{settings.n_ctx} * cells.n_streams();
    std::map<ggml_backend_dev_t, ggml_context*> by_device;
    for (const uint32_t block : kind.layers) {
        ggml_context*& context = by_device[model.layer_device(block)];
        if (context == nullptr) {
            contexts_.push_back(make_description_context(4 * kind.layers.size() + 2));
            context = contexts_.back().get();
        }
        keys_.push_back(ggml_new_tensor_2d(context, type_, shape.n_embd_kv(), n_rows));
        values_.push_back(ggml_new_tensor_2d(context, type_, shape.n_embd_kv(), n_rows));
        raw_.push_back(ggml_new_tensor_2d(context, raw_type, shape.index_size, n_rows));
        pooled_.push_back(ggml_new_tensor_2d(context, GGML_TYPE_F32, shape.index_size, spare_block() + qsa::kBiasPadding));
    }
    ggml_context* tables = by_device[model.layer_device(kind.layers.back())];
    own_table_ = ggml_new_tensor_2d(tables, GGML_TYPE_I32, n_own_max_, n_sequences_);
    block_table_ = ggml_new_tensor_2d(tables, GGML_TYPE_I32, ratio_, int64_t{n_blocks_max_} * n_sequences_);
    for (const auto& [device, context] : by_device) {
        buffers_.emplace_back(allocate_tensors(context, ggml_backend_dev_buffer_type(device), model.memory_plan()));
        if (!buffers_.back()) {
            throw Failure(ASSAY_MEMORY, "cannot allocate the cache of " + std::to_string(settings.n_ctx) +
                                            " cells in " + std::to_string(cells.n_streams()) +
                                            " streams; lower n_ctx or n_seq: " + take_ggml_error());
        }
        // Attention multiplies rows of free cells by zero: they must not hold NaN. Tables lead to row 0 at first.
        ggml_backend_buffer_clear(buffers_.back().get(), 0);
    }
}

uint32_t IndexedCache::index_of(uint32_t block) const {
    return static_cast<uint32_t>(std::find(kind_.layers.begin(), kind_.layers.end(), block) - kind_.layers.begin());
}

uint64_t IndexedCache::bytes() const {
    uint64_t total = 0;
    for (const BufferHandle& buffer : buffers_) total += ggml_backend_buffer_get_size(buffer.get());
    return total;
}

uint64_t IndexedCache::write_tables(uint32_t sequence, const qsa::Selection& selection) {
    const auto base = static_cast<int32_t>(cells.row(sequence, 0));
    const auto send = [&](ggml_tensor* table, std::span<const int32_t> entries, size_t first, size_t at) {
        if (first >= entries.size()) return;
        numbers_.assign(entries.begin() + static_cast<ptrdiff_t>(first), entries.end());
        for (int32_t& number : numbers_) number += base;
        ggml_backend_tensor_set(table, numbers_.data(), (at + first) * sizeof(int32_t),
                                numbers_.size() * sizeof(int32_t));
    };
    send(own_table_, selection.own_cells, selection.first_new_own, size_t{sequence} * n_own_max_);
    send(block_table_, selection.block_cells, size_t{selection.first_new_block} * ratio_,
         size_t{sequence} * n_blocks_max_ * ratio_);
    return selection.n_own - std::min(selection.first_new_own, selection.n_own) +
           uint64_t{selection.n_blocks - std::min(selection.first_new_block, selection.n_blocks)} * ratio_;
}

void IndexedCache::truncate(uint32_t sequence, uint32_t n_keep) {
    const auto& order = cells.order(sequence);
    if (n_keep >= order.size()) return;
    const int32_t t = cells.at(sequence, order[n_keep]).t;
    const bool was_shared = cells.is_shared(sequence, n_keep);
    cells.truncate(sequence, n_keep);
    trackers_[sequence].truncate(n_keep == 0 ? 0 : t);
    if (!was_shared) return;
    // Those who stood in the same cells may be alone in them now.
    for (uint32_t other = 0; other < n_sequences_; ++other) {
        if (other != sequence && cells.has(other)) trackers_[other].changed(qsa::Change::Copied, INT32_MAX);
    }
}

void IndexedCache::forget_run(uint32_t sequence, uint32_t n_keep) {
    trackers_[sequence].changed(qsa::Change::Failed, 0);
    truncate(sequence, n_keep);
}

std::vector<ggml_tensor*> IndexedCache::rows_of_layers() const {
    std::vector<ggml_tensor*> tensors;
    for (uint32_t i = 0; i < n_layers(); ++i) tensors.insert(tensors.end(), {keys_[i], values_[i], raw_[i]});
    return tensors;
}

size_t IndexedCache::cell_bytes() const {
    size_t total = 0;
    for (const ggml_tensor* tensor : rows_of_layers()) total += tensor->nb[1];
    return total;
}

void IndexedCache::read(uint32_t sequence, uint8_t* out) const {
    for (ggml_tensor* tensor : rows_of_layers()) {
        for_each_stretch(cells.order(sequence), [&](uint32_t cell, size_t n) {
            const size_t bytes = n * tensor->nb[1];
            ggml_backend_tensor_get(tensor, out, static_cast<size_t>(cells.row(sequence, cell)) * tensor->nb[1], bytes);
            out += bytes;
        });
    }
}

void IndexedCache::write(uint32_t sequence, const uint8_t* in) {
    for (ggml_tensor* tensor : rows_of_layers()) {
        for_each_stretch(cells.order(sequence), [&](uint32_t cell, size_t n) {
            const size_t bytes = n * tensor->nb[1];
            ggml_backend_tensor_set(tensor, in, static_cast<size_t>(cells.row(sequence, cell)) * tensor->nb[1], bytes);
            in += bytes;
        });
    }
    trackers_[sequence].changed(qsa::Change::Restored, 0);
}

void IndexedCache::copy(uint32_t source, uint32_t target) {
    if (cells.is_unified()) {
        cells.share(source, target);
    } else {
        std::vector<uint8_t> rows(cell_bytes() * cells.order(source).size());
        read(source, rows.data());
        for (const uint32_t cell : cells.order(source))
            cells.add(target, cells.at(source, cell), cells.token(source, cell));
        write(target, rows.data());
#if defined(ASSAY_FAULT_COPY_LOSES_INDEX_KEYS)
        for (ggml_tensor* tensor : raw_) {
            for (const uint32_t cell : cells.order(target)) {
                ggml_backend_tensor_memset(tensor, 0, static_cast<size_t>(cells.row(target, cell)) * tensor->nb[1],
                                           tensor->nb[1]);
            }
        }
#endif
    }
    trackers_[target].changed(qsa::Change::Copied, 0);
    trackers_[source].changed(qsa::Change::Copied, INT32_MAX);
}

}  // namespace assay
