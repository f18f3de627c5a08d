// Sessions of qwen4exp: cells with coordinates, recurrent rows, sparse attention, drafts.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "draft.h"
#include "qwen_evaluator.h"
#include "session.h"

namespace assay {

class QwenSession final : public Session {
public:
    // Allocates the caches and the compute buffers for the largest ubatch. Throws Failure.
    QwenSession(const Model& model, const assay_session_settings& settings);
    ~QwenSession() override;

    void decode(const assay_batch& batch, const volatile int* cancel) override;
    void decode_rows(const assay_rows& rows, const volatile int* cancel) override;
    const float* logits(uint32_t i) const override;

    // qwen_edit.cpp
    void remove(int32_t sequence, int32_t p0, int32_t p1) override;
    void copy(int32_t source, int32_t target, int32_t p0, int32_t p1) override;
    void keep(int32_t sequence) override;
    void shift(int32_t sequence, int32_t p0, int32_t p1, int32_t delta) override;
    void fill_zero(int32_t sequence, uint32_t n) override;
    int32_t last_position(uint32_t sequence) const override;
    uint32_t n_cells_of(uint32_t sequence) const override;

    // qwen_state.cpp
    size_t state_size(int32_t sequence) const override;
    size_t save_state(int32_t sequence, uint8_t* data, size_t size) const override;
    void restore_state(int32_t sequence, const uint8_t* data, size_t size) override;

    Capture& capture() override { return capture_; }
    std::string info() const override;
    uint64_t cache_bytes() const override;
    uint64_t compute_bytes() const override;

    // qwen_draft.cpp
    std::vector<int32_t> propose(int32_t sequence, int32_t last, uint32_t n, float p_min) override;
    void verify(int32_t sequence, const int32_t* tokens, uint32_t n, const volatile int* cancel) override;
    void accept(int32_t sequence, uint32_t n_keep) override;
    Round draft_round(int32_t sequence, int32_t last, uint32_t n_left, uint32_t depth, float p_min,
                      const volatile int* cancel) override;

private:
    // One token, or one row of an image.
    struct Row {
        int32_t token = -1;  // -1: `embedding` stands for it
        const float* embedding = nullptr;
        Coordinates at;
        uint32_t sequence = 0;
        bool wants_logits = false;
        int32_t fourth = 0;
    };
    // The rows of one graph evaluation, grouped by sequence.
    struct Placed {
        QwenUbatch ubatch;
        std::vector<uint32_t> order;  // indices into the batch
    };
    // What a sequence falls back to when a decode fails.
    struct Start {
        uint32_t sequence;
        uint32_t n_cells;
        int32_t recurrent_row;
        uint32_t n_draft_cells;
        Draft::Residuals residuals;
    };

    void run(const std::vector<Row>& rows, const volatile int* cancel);
    void check_entry(uint32_t i, int32_t token, int32_t sequence) const;
    void check(const std::vector<Row>& rows) const;
    void check_room(const std::vector<Row>& rows) const;
    void make_room_for_logits(const std::vector<Row>& rows);
    std::vector<Start> begin(const std::vector<Row>& rows);
    void end(const std::vector<Start>& starts);
    void undo(const std::vector<Start>& starts);
    Placed place(const std::vector<Row>& rows, uint32_t first, uint32_t last);
    void keep_logits(const Placed& placed);
    void keep_residuals(const Placed& placed);
    Draft& need_draft() const;
    int32_t next_position(uint32_t sequence) const;
    void drop(uint32_t sequence);

    std::unique_ptr<IndexedCache> cache_;
    std::unique_ptr<RecurrentRows> recurrent_;
    std::unique_ptr<PleTable> ple_;
    std::unique_ptr<QwenEvaluator> evaluator_;
    std::unique_ptr<Draft> draft_;
    std::vector<float> hidden_;        // residuals of the last ubatch
    bool holds_catch_up_ = false;      // the draft block waits for what is accepted
    std::optional<Draft::Seen> held_;  // what it will be shown then

    std::unique_ptr<float[]> logits_;
    size_t logits_capacity_ = 0;
    size_t n_logit_rows_ = 0;
    std::vector<int32_t> logit_rows_;  // of each batch entry, -1 without logits
};

}  // namespace assay
