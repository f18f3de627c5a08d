// Operations on whole sequences: remove, copy, keep, shift, fill.
#include <algorithm>

#include "failure.h"
#include "llama_graph.h"
#include "llama_session.h"

namespace assay {
namespace {

struct Range {
    int32_t p0;
    int32_t p1;
};

Range checked_range(int32_t p0, int32_t p1) {
    const Range range{std::max(p0, 0), p1 < 0 ? INT32_MAX : p1};
    if (range.p0 > range.p1) {
        throw Failure(ASSAY_INVALID,
                      "the positions " + std::to_string(p0) + " to " + std::to_string(p1) + " are no range");
    }
    return range;
}

}  // namespace

void LlamaSession::remove(int32_t sequence, int32_t p0, int32_t p1) {
    const uint32_t id = check_sequence(sequence);
    const Range range = checked_range(p0, p1);
    const std::vector<Cache::Cell> cells = cache_->find(id, range.p0, range.p1);
    for (const Cache::Cell cell : cells) cache_->leave(cell, id);
    if (!cells.empty()) cache_->refresh(id);
}

std::vector<Cache::Cell> LlamaSession::take_cells(uint32_t sequence, const std::vector<int32_t>& positions) {
    const uint32_t n_free = cache_->n_free(cache_->stream_of(sequence));
    if (positions.size() > n_free) {
        throw Failure(ASSAY_FULL, "sequence " + std::to_string(sequence) + " needs " +
                                      std::to_string(positions.size()) + " cells, " + std::to_string(n_free) +
                                      " are free");
    }
    std::vector<Cache::Cell> cells;
    cells.reserve(positions.size());
    for (const int32_t position : positions) cells.push_back(cache_->add(sequence, position));
    return cells;
}

void LlamaSession::copy(int32_t source, int32_t target, int32_t p0, int32_t p1) {
    const uint32_t from = check_sequence(source);
    const uint32_t to = check_sequence(target);
    const Range range = checked_range(p0, p1);
    if (from == to) return;
    const std::vector<Cache::Cell> cells = cache_->find(from, range.p0, range.p1);
    if (cells.empty()) return;
    if (!cache_->find(to, cache_->position(cells.front()), cache_->position(cells.back()) + 1).empty()) {
        throw Failure(ASSAY_INVALID, "sequence " + std::to_string(target) + " already has positions from " +
                                         std::to_string(cache_->position(cells.front())) + " to " +
                                         std::to_string(cache_->position(cells.back())) + "; remove them first");
    }
    if (cache_->is_unified()) {
        for (const Cache::Cell cell : cells) cache_->join(cell, to);
        return;
    }
    std::vector<int32_t> positions;
    for (const Cache::Cell cell : cells) positions.push_back(cache_->position(cell));
    std::vector<uint8_t> rows(cells.size() * std::max(cache_->keys(0)->nb[1], cache_->values(0)->nb[1]));
    const std::vector<Cache::Cell> copies = take_cells(to, positions);
    for (uint32_t layer = 0; layer < cache_->n_layers(); ++layer) {
        for (ggml_tensor* tensor : {cache_->keys(layer), cache_->values(layer)}) {
            cache_->read_rows(tensor, cells, rows.data());
            cache_->write_rows(tensor, copies, rows.data());
        }
    }
}

void LlamaSession::keep(int32_t sequence) {
    const uint32_t id = check_sequence(sequence);
    for (uint32_t other = 0; other < settings_.n_seq; ++other) {
        if (other != id) remove(static_cast<int32_t>(other), 0, -1);
    }
}

void LlamaSession::shift(int32_t sequence, int32_t p0, int32_t p1, int32_t delta) {
    const uint32_t id = check_sequence(sequence);
    const Range range = checked_range(p0, p1);
    const std::vector<Cache::Cell> cells = cache_->find(id, range.p0, range.p1);
    if (cells.empty() || delta == 0) return;
    const int64_t first = int64_t{cache_->position(cells.front())} + delta;
    const int64_t last = int64_t{cache_->position(cells.back())} + delta;
    if (first < 0 || last >= INT32_MAX - 1) {
        throw Failure(ASSAY_INVALID, "a shift by " + std::to_string(delta) + " moves positions to " +
                                         std::to_string(first) + " to " + std::to_string(last));
    }
    // Order and uniqueness of positions must survive: what stays must lie outside the moved stretch.
    for (const Cache::Cell cell : cache_->find(id, static_cast<int32_t>(first), static_cast<int32_t>(last) + 1)) {
        const int32_t position = cache_->position(cell);
        if (position < range.p0 || position >= range.p1) {
            throw Failure(ASSAY_INVALID, "a shift by " + std::to_string(delta) + " moves over position " +
                                             std::to_string(position) + " of sequence " + std::to_string(sequence) +
                                             "; remove it first");
        }
    }
    for (const Cache::Cell cell : cells) {
        if (cache_->sequences(cell).count() > 1) {
            throw Failure(ASSAY_UNSUPPORTED, "position " + std::to_string(cache_->position(cell)) + " of sequence " +
                                                 std::to_string(sequence) +
                                                 " is shared with another sequence and cannot be shifted");
        }
    }
    Graph graph;
    for (size_t begin = 0; begin < cells.size();) {
        const size_t n = std::min<size_t>(settings_.n_ubatch, cells.size() - begin);
        graph = build_llama_shift(model_, *cache_, static_cast<uint32_t>(n));
        run_once(graph);
        std::vector<int64_t> rows(n);
        for (size_t i = 0; i < n; ++i) rows[i] = cache_->row(cells[begin + i]);
        const std::vector<int32_t> rows32(rows.begin(), rows.end());
        const std::vector<int32_t> deltas(n, delta);
        ggml_backend_tensor_set(graph.rows, rows.data(), 0, n * sizeof(int64_t));
        ggml_backend_tensor_set(graph.outputs, rows32.data(), 0, n * sizeof(int32_t));
        ggml_backend_tensor_set(graph.positions, deltas.data(), 0, n * sizeof(int32_t));
        executor_->compute(graph.nodes, false);
        work_.n_graphs += 1;
        work_.n_graph_nodes += graph.cost.n_nodes;
        work_.n_mapping_steps += 3 * n;
        begin += n;
    }
    for (const Cache::Cell cell : cells) cache_->move(cell, cache_->position(cell) + delta);
    cache_->refresh(id);
}

void LlamaSession::fill_zero(int32_t sequence, uint32_t n) {
    const uint32_t id = check_sequence(sequence);
    if (cache_->n_cells_of(id) > 0) {
        throw Failure(ASSAY_INVALID,
                      "sequence " + std::to_string(sequence) + " is not empty; remove it before filling it");
    }
    if (n > cache_->n_cells()) {
        throw Failure(ASSAY_FULL, "sequence " + std::to_string(sequence) + " needs " + std::to_string(n) +
                                      " cells of " + std::to_string(cache_->n_cells()));
    }
    std::vector<int32_t> positions(n);
    for (uint32_t i = 0; i < n; ++i) positions[i] = static_cast<int32_t>(i);
    cache_->clear_rows(take_cells(id, positions));
}

}  // namespace assay
