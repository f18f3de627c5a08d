#include "cache.h"

#include <algorithm>
#include <map>

#include "failure.h"

namespace assay {
namespace {

// Rows are padded to the largest step in which graphs widen their view of the cache, so that a view never
// ends past the rows.
constexpr uint32_t kRowPadding = 256;

}  // namespace

ggml_type cache_row_type(int32_t kv_type) {
    switch (kv_type) {
        case ASSAY_KV_F32: return GGML_TYPE_F32;
        case ASSAY_KV_F16: return GGML_TYPE_F16;
        case ASSAY_KV_Q8_0: return GGML_TYPE_Q8_0;
        default:
            throw Failure(ASSAY_INVALID,
                          "kv_type is " + std::to_string(kv_type) + "; 0 (f32), 1 (f16) or 8 (q8_0) is needed");
    }
}

Cache::Cache(const Model& model, const assay_session_settings& settings, assay_work& work)
    : is_unified_(settings.kv_unified),
      n_cells_(settings.n_ctx),
      n_rows_((settings.n_ctx + kRowPadding - 1) / kRowPadding * kRowPadding),
      n_sequences_(settings.n_seq),
      type_(cache_row_type(settings.kv_type)),
      work_(work) {
    const Hyperparameters& hyper = model.hyper();
    const int64_t block = ggml_blck_size(type_);
    if (hyper.n_head_size_k % block != 0 || hyper.n_head_size_v % block != 0) {
        throw Failure(ASSAY_UNSUPPORTED, std::string("heads of ") + std::to_string(hyper.n_head_size_k) +
                                             " elements do not divide into blocks of " + ggml_type_name(type_) + " (" +
                                             std::to_string(block) + "); use kv_type f16 or f32");
    }
    streams_.resize(is_unified_ ? 1 : n_sequences_);
    for (Stream& stream : streams_) {
        stream.positions.assign(n_rows_, kFree);
        stream.sequences.resize(n_rows_);
    }
    tails_.resize(n_sequences_);

    std::map<ggml_backend_dev_t, ggml_context*> by_device;
    for (uint32_t layer = 0; layer < hyper.n_layer; ++layer) {
        ggml_context*& context = by_device[model.layer_device(layer)];
        if (context == nullptr) {
            contexts_.push_back(make_description_context(2 * hyper.n_layer));
            context = contexts_.back().get();
        }
        const int64_t n_rows = static_cast<int64_t>(n_rows_) * n_streams();
        keys_.push_back(ggml_new_tensor_2d(context, type_, hyper.n_embd_k(), n_rows));
        values_.push_back(ggml_new_tensor_2d(context, type_, hyper.n_embd_v(), n_rows));
        ggml_format_name(keys_.back(), "cache_k.%u", layer);
        ggml_format_name(values_.back(), "cache_v.%u", layer);
    }
    for (const auto& [device, context] : by_device) {
        buffers_.emplace_back(allocate_tensors(context, ggml_backend_dev_buffer_type(device), model.memory_plan()));
        if (!buffers_.back()) {
            throw Failure(ASSAY_MEMORY, "cannot allocate the cache of " + std::to_string(n_rows_) + " cells in " +
                                            std::to_string(n_streams()) + " streams: " + take_ggml_error());
        }
        // Attention multiplies rows of free cells by zero: they must not hold NaN.
        ggml_backend_buffer_clear(buffers_.back().get(), 0);
    }
}

uint64_t Cache::bytes() const {
    uint64_t total = 0;
    for (const BufferHandle& buffer : buffers_) total += ggml_backend_buffer_get_size(buffer.get());
    return total;
}

Cache::Cell Cache::add(uint32_t sequence, int32_t position) {
    const uint32_t index_of_stream = stream_of(sequence);
    Stream& stream = streams_[index_of_stream];
    uint32_t index = stream.first_free;
    while (stream.positions[index] != kFree) ++index;
    work_.n_cells_visited += index - stream.first_free + 1;
    stream.first_free = index + 1;
    stream.positions[index] = position;
    stream.n_used += 1;
    stream.end = std::max(stream.end, index + 1);
    const Cell cell{index_of_stream, index};
    join(cell, sequence);
    return cell;
}

void Cache::join(Cell cell, uint32_t sequence) {
    streams_[cell.stream].sequences[cell.index].set(sequence);
    Tail& tail = tails_[sequence];
    tail.n += 1;
    tail.last = std::max(tail.last, position(cell));
}

void Cache::leave(Cell cell, uint32_t sequence) {
    Stream& stream = streams_[cell.stream];
    Sequences& members = stream.sequences[cell.index];
    members.reset(sequence);
    tails_[sequence].n -= 1;
    if (members.none()) release(stream, cell.index);
}

void Cache::release(Stream& stream, uint32_t index) {
    stream.positions[index] = kFree;
    stream.n_used -= 1;
    stream.first_free = std::min(stream.first_free, index);
    while (stream.end > 0 && stream.positions[stream.end - 1] == kFree) {
        --stream.end;
        ++work_.n_cells_visited;
    }
}

void Cache::move(Cell cell, int32_t position) { streams_[cell.stream].positions[cell.index] = position; }

void Cache::refresh(uint32_t sequence) {
    const uint32_t index_of_stream = stream_of(sequence);
    const Stream& stream = streams_[index_of_stream];
    Tail tail;
    for (uint32_t i = 0; i < stream.end; ++i) {
        if (!stream.sequences[i].test(sequence)) continue;
        tail.n += 1;
        tail.last = std::max(tail.last, stream.positions[i]);
    }
    work_.n_cells_visited += stream.end;
    tails_[sequence] = tail;
}

std::vector<Cache::Cell> Cache::find(uint32_t sequence, int32_t p0, int32_t p1) const {
    const uint32_t index_of_stream = stream_of(sequence);
    const Stream& stream = streams_[index_of_stream];
    std::vector<Cell> cells;
    for (uint32_t i = 0; i < stream.end; ++i) {
        if (!stream.sequences[i].test(sequence)) continue;
        if (stream.positions[i] >= p0 && stream.positions[i] < p1) cells.push_back({index_of_stream, i});
    }
    work_.n_cells_visited += stream.end;
    std::sort(cells.begin(), cells.end(), [&](Cell a, Cell b) { return position(a) < position(b); });
    return cells;
}

const int32_t* Cache::view(uint32_t sequence, uint32_t n, std::vector<int32_t>& scratch) const {
    const Stream& stream = streams_[stream_of(sequence)];
    // In a stream of its own the sequence owns every used cell.
    if (!is_unified_) return stream.positions.data();
    scratch.resize(n);
    for (uint32_t i = 0; i < n; ++i) scratch[i] = stream.sequences[i].test(sequence) ? stream.positions[i] : kFree;
    work_.n_cells_visited += n;
    return scratch.data();
}

// Calls action(first cell, number of cells, number of cells before) for each stretch of neighbouring cells.
template <class Action>
void Cache::for_each_run(const std::vector<Cell>& cells, Action action) const {
    for (size_t first = 0; first < cells.size();) {
        size_t last = first + 1;
        while (last < cells.size() && cells[last].stream == cells[first].stream &&
               cells[last].index == cells[last - 1].index + 1)
            ++last;
        action(cells[first], last - first, first);
        first = last;
    }
}

void Cache::read_rows(ggml_tensor* tensor, const std::vector<Cell>& cells, uint8_t* out) const {
    const size_t row_bytes = tensor->nb[1];
    for_each_run(cells, [&](Cell cell, size_t n, size_t before) {
        ggml_backend_tensor_get(tensor, out + before * row_bytes, static_cast<size_t>(row(cell)) * row_bytes,
                                n * row_bytes);
    });
}

void Cache::write_rows(ggml_tensor* tensor, const std::vector<Cell>& cells, const uint8_t* in) {
    const size_t row_bytes = tensor->nb[1];
    for_each_run(cells, [&](Cell cell, size_t n, size_t before) {
        ggml_backend_tensor_set(tensor, in + before * row_bytes, static_cast<size_t>(row(cell)) * row_bytes,
                                n * row_bytes);
    });
}

void Cache::clear_rows(const std::vector<Cell>& cells) {
    for (uint32_t layer = 0; layer < n_layers(); ++layer) {
        for (ggml_tensor* tensor : {keys_[layer], values_[layer]}) {
            const size_t row_bytes = tensor->nb[1];
            for_each_run(cells, [&](Cell cell, size_t n, size_t) {
                ggml_backend_tensor_memset(tensor, 0, static_cast<size_t>(row(cell)) * row_bytes, n * row_bytes);
            });
        }
    }
}

}  // namespace assay
