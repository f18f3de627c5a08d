// The state that linear layers and the PLE convolution keep for each sequence, and its recent past.
//
// A row holds everything of one moment: for each linear layer the matrix S of every value head and the last inputs of
// the convolution, and the last inputs of the PLE convolution. Rows are never changed in place: each run writes new ones.
// Hence a copy of a sequence is a reference, a rollback takes an older row, and a failed run leaves its start untouched.
#pragma once

#include <cstdint>
#include <vector>

#include "devices.h"
#include "engine.h"
#include "model.h"

namespace assay {

class RecurrentRows {
public:
    static constexpr int32_t kZero = 0;  // the state before the first token

    // n_rollback: tokens that can be taken back. Throws Failure.
    RecurrentRows(const Model& model, uint32_t n_sequences, uint32_t n_rollback);

    uint32_t n_linear() const { return static_cast<uint32_t>(states_.size()); }
    ggml_tensor* states(uint32_t i) const { return states_[i]; }  // f32 [d * d, value heads * n_rows]
    ggml_tensor* convs(uint32_t i) const { return convs_[i]; }    // f32 [width, (K - 1) * n_rows], oldest input first
    ggml_tensor* ple() const { return ple_; }                     // f32 [hcn, history * n_rows]; nullptr without PLE
    uint64_t bytes() const;

    // What a run of n tokens reads and writes. The rows become the sequence's newest.
    struct Plan {
        int32_t from = kZero;
        std::vector<int32_t> to;  // after each of the last tokens, oldest first
    };
    Plan advance(uint32_t sequence, uint32_t n_tokens);
    // Rows that advance() writes for n tokens.
    uint32_t n_written(uint32_t n_tokens) const { return std::min(n_tokens, n_rollback_ + 1); }

    int32_t current(uint32_t sequence) const {
        return histories_[sequence].empty() ? kZero : histories_[sequence].front();
    }
    // Tokens that rollback() can take back now. A rollback uses the past up until there are new tokens.
    uint32_t n_past(uint32_t sequence) const {
        return histories_[sequence].empty() ? 0 : static_cast<uint32_t>(histories_[sequence].size()) - 1;
    }
    void rollback(uint32_t sequence, uint32_t n_tokens);
    void drop(uint32_t sequence);
    void copy(uint32_t source, uint32_t target);

    // Keeps a row alive beyond what happens to the sequences; release() ends that.
    int32_t retain(uint32_t sequence);
    void release(int32_t row);
    // Makes a retained row the only one of the sequence.
    void revert(uint32_t sequence, int32_t row);

    size_t row_bytes() const;
    void read(int32_t row, uint8_t* out) const;
    // Gives the sequence a new row with these bytes.
    void write(uint32_t sequence, const uint8_t* in);

private:
    int32_t take();
    // Calls action(tensor, bytes of one recurrent row in it) for every tensor.
    template <class Action>
    void for_each_tensor(Action action) const;

    uint32_t n_rollback_;
    uint32_t n_rows_;
    std::vector<uint32_t> references_;
    std::vector<std::vector<int32_t>> histories_;  // newest first
    std::vector<ContextHandle> contexts_;
    std::vector<BufferHandle> buffers_;
    std::vector<ggml_tensor*> states_;
    std::vector<ggml_tensor*> convs_;
    ggml_tensor* ple_ = nullptr;
};

}  // namespace assay
