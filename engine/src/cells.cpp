#include "cells.h"

#include <algorithm>

namespace assay {

Cells::Cells(const Layout& layout, assay_work& work) : layout_(layout), work_(work) {
    streams_.resize(layout.is_unified ? 1 : layout.n_sequences);
    for (Stream& stream : streams_) {
        stream.t.assign(layout.n_cells, qsa::kFree);
        stream.y.resize(layout.n_cells);
        stream.x.resize(layout.n_cells);
        stream.tokens.resize(layout.n_cells);
        stream.sequences.resize(layout.n_cells);
    }
    orders_.resize(layout.n_sequences);
    if (layout.is_unified && layout.is_reserved) {
        const uint32_t share = layout.n_cells / layout.n_sequences;
        for (uint32_t i = 0; i < layout.n_sequences; ++i) {
            stretches_.push_back({i * share, (i + 1) * share, i * share, 0});
        }
    } else {
        for (uint32_t i = 0; i < n_streams(); ++i) stretches_.push_back({0, layout.n_cells, 0, 0});
    }
}

uint32_t Cells::stretch_of(uint32_t sequence) const {
    return layout_.is_unified && !layout_.is_reserved ? 0 : sequence;
}

uint32_t Cells::stretch_at(uint32_t stream, uint32_t cell) const {
    return layout_.is_unified && layout_.is_reserved ? cell / stretches_[0].end : stream;
}

uint32_t Cells::n_free(uint32_t sequence) const {
    const Stretch& stretch = stretches_[stretch_of(sequence)];
    return stretch.end - stretch.begin - stretch.n_used;
}

uint32_t Cells::n_own_alone(uint32_t sequence) const {
    const Stream& stream = streams_[stream_of(sequence)];
    const auto& order = orders_[sequence];
    return static_cast<uint32_t>(
        std::count_if(order.begin(), order.end(), [&](uint32_t cell) { return stream.sequences[cell].count() == 1; }));
}

Coordinates Cells::at(uint32_t sequence, uint32_t cell) const {
    const Stream& stream = streams_[stream_of(sequence)];
    return {stream.t[cell], stream.y[cell], stream.x[cell]};
}

bool Cells::is_shared(uint32_t sequence, uint32_t first) const {
    const Stream& stream = streams_[stream_of(sequence)];
    const auto& order = orders_[sequence];
    return first < order.size() && std::any_of(order.begin() + first, order.end(), [&](uint32_t cell) {
               return stream.sequences[cell].count() > 1;
           });
}

qsa::Cells Cells::view(uint32_t sequence) const {
    const Stream& stream = streams_[stream_of(sequence)];
    return {layout_.n_cells,     stream.n_used,           stream.t.data(), stream.y.data(),
            stream.x.data(), stream.sequences.data(), stream.end};
}

uint32_t Cells::add(uint32_t sequence, const Coordinates& at, int32_t token) {
    Stream& stream = streams_[stream_of(sequence)];
    Stretch& stretch = stretches_[stretch_of(sequence)];
    uint32_t cell = stretch.first_free;
    while (stream.t[cell] != qsa::kFree) ++cell;
    work_.n_cells_visited += cell - stretch.first_free + 1;
    stretch.first_free = cell + 1;
    stretch.n_used += 1;
    stream.n_used += 1;
    stream.end = std::max(stream.end, cell + 1);
    stream.t[cell] = at.t;
    stream.y[cell] = at.y;
    stream.x[cell] = at.x;
    stream.tokens[cell] = token;
    stream.sequences[cell].set(sequence);
    orders_[sequence].push_back(cell);
    return cell;
}

void Cells::truncate(uint32_t sequence, uint32_t n_keep) {
    const uint32_t index = stream_of(sequence);
    Stream& stream = streams_[index];
    auto& order = orders_[sequence];
    while (order.size() > n_keep) {
        const uint32_t cell = order.back();
        order.pop_back();
        stream.sequences[cell].reset(sequence);
        if (stream.sequences[cell].any()) continue;
        stream.t[cell] = qsa::kFree;
        stream.n_used -= 1;
        Stretch& stretch = stretches_[stretch_at(index, cell)];
        stretch.n_used -= 1;
        stretch.first_free = std::min(stretch.first_free, cell);
    }
    while (stream.end > 0 && stream.t[stream.end - 1] == qsa::kFree) {
        --stream.end;
        ++work_.n_cells_visited;
    }
}

void Cells::share(uint32_t source, uint32_t target) {
    Stream& stream = streams_[stream_of(source)];
    orders_[target] = orders_[source];
    for (const uint32_t cell : orders_[target]) stream.sequences[cell].set(target);
    work_.n_cells_visited += orders_[target].size();
}

}  // namespace assay
