#include "recurrent_rows.h"

#include <algorithm>
#include <map>

#include "failure.h"

namespace assay {

RecurrentRows::RecurrentRows(const Model& model, uint32_t n_sequences, uint32_t n_rollback)
    : n_rollback_(n_rollback), n_rows_(1 + n_sequences * (n_rollback + 2)) {
    const QwenShape& shape = model.qwen()->shape();
    // The zero row, the present and the past of each sequence, and one row of each that a decode may fall back to.
    const int64_t n_rows = n_rows_;
    references_.assign(n_rows_, 0);
    references_[kZero] = 1;
    histories_.resize(n_sequences);
    std::map<ggml_backend_dev_t, ggml_context*> by_device;
    const auto context = [&](uint32_t layer) {
        ggml_context*& found = by_device[model.layer_device(layer)];
        if (found == nullptr) {
            contexts_.push_back(make_description_context(2 * shape.n_layer + 2));
            found = contexts_.back().get();
        }
        return found;
    };
    for (uint32_t layer = 0; layer < shape.n_layer; ++layer) {
        if (!shape.is_linear[layer]) continue;
        states_.push_back(ggml_new_tensor_2d(context(layer), GGML_TYPE_F32, int64_t{shape.state_size} * shape.state_size,
                                             n_rows * shape.n_value_heads));
        convs_.push_back(ggml_new_tensor_2d(context(layer), GGML_TYPE_F32,
                                            shape.conv_width(),
                                            (shape.conv_kernel - 1) * n_rows));
    }
    if (shape.ple.exists()) {
        ple_ = ggml_new_tensor_2d(context(static_cast<uint32_t>(shape.ple.layer)), GGML_TYPE_F32,
                                  shape.hcn(), shape.ple.history() * n_rows);
    }
    for (const auto& [device, tensors] : by_device) {
        buffers_.emplace_back(allocate_tensors(tensors, ggml_backend_dev_buffer_type(device), model.memory_plan()));
        if (!buffers_.back()) {
            throw Failure(ASSAY_MEMORY, "cannot allocate " + std::to_string(n_rows) +
                                            " rows of recurrent state; lower n_seq or n_rollback: " +
                                            take_ggml_error());
        }
        ggml_backend_buffer_clear(buffers_.back().get(), 0);
    }
}

uint64_t RecurrentRows::bytes() const {
    uint64_t total = 0;
    for (const BufferHandle& buffer : buffers_) total += ggml_backend_buffer_get_size(buffer.get());
    return total;
}

int32_t RecurrentRows::take() {
    const auto free = std::find(references_.begin(), references_.end(), 0U);
    if (free == references_.end()) throw Failure(ASSAY_INTERNAL, "no recurrent row is free");
    *free = 1;
    return static_cast<int32_t>(free - references_.begin());
}

void RecurrentRows::release(int32_t row) {
    if (row != kZero) references_[static_cast<size_t>(row)] -= 1;
}

int32_t RecurrentRows::retain(uint32_t sequence) {
    const int32_t row = current(sequence);
    if (row != kZero) references_[static_cast<size_t>(row)] += 1;
    return row;
}

RecurrentRows::Plan RecurrentRows::advance(uint32_t sequence, uint32_t n_tokens) {
    Plan plan;
    plan.from = current(sequence);
    std::vector<int32_t>& history = histories_[sequence];
    const uint32_t n_new = n_written(n_tokens);
    // The oldest rows make room first. The one that is read may be among them: a graph reads before it writes.
    while (history.size() > n_rollback_ + 1 - n_new) {
        release(history.back());
        history.pop_back();
    }
    for (uint32_t i = 0; i < n_new; ++i) {
        plan.to.push_back(take());
        history.insert(history.begin(), plan.to.back());
    }
    return plan;
}

void RecurrentRows::rollback(uint32_t sequence, uint32_t n_tokens) {
    std::vector<int32_t>& history = histories_[sequence];
    const int32_t kept = history[n_tokens];
    for (const int32_t row : history) {
        if (row != kept) release(row);
    }
    history.assign(1, kept);
}

void RecurrentRows::drop(uint32_t sequence) {
    for (const int32_t row : histories_[sequence]) release(row);
    histories_[sequence].clear();
}

void RecurrentRows::copy(uint32_t source, uint32_t target) {
    drop(target);
    if (histories_[source].empty()) return;
    histories_[target].assign(1, retain(source));
}

void RecurrentRows::revert(uint32_t sequence, int32_t row) {
    if (row != kZero) references_[static_cast<size_t>(row)] += 1;
    drop(sequence);
    if (row != kZero) histories_[sequence].assign(1, row);
}

template <class Action>
void RecurrentRows::for_each_tensor(Action action) const {
    const auto visit = [&](ggml_tensor* tensor) { action(tensor, ggml_nbytes(tensor) / n_rows_); };
    for (ggml_tensor* state : states_) visit(state);
    for (ggml_tensor* conv : convs_) visit(conv);
    if (ple_ != nullptr) visit(ple_);
}

size_t RecurrentRows::row_bytes() const {
    size_t total = 0;
    for_each_tensor([&](ggml_tensor*, size_t bytes) { total += bytes; });
    return total;
}

void RecurrentRows::read(int32_t row, uint8_t* out) const {
    for_each_tensor([&](ggml_tensor* tensor, size_t bytes) {
        ggml_backend_tensor_get(tensor, out, static_cast<size_t>(row) * bytes, bytes);
        out += bytes;
    });
}

void RecurrentRows::write(uint32_t sequence, const uint8_t* in) {
    drop(sequence);
    const int32_t row = take();
    histories_[sequence].assign(1, row);
    for_each_tensor([&](ggml_tensor* tensor, size_t bytes) {
        ggml_backend_tensor_set(tensor, in, static_cast<size_t>(row) * bytes, bytes);
        in += bytes;
    });
}

}  // namespace assay
