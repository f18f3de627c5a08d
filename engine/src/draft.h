// The draft block of qwen4exp: its own cache of text cells, and for every sequence the trunk's newest residuals.
//
// Each draft row pairs a token with the trunk residual of the token before it, zeros at the beginning of a sequence.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "qwen_evaluator.h"

namespace assay {

class Draft {
public:
    using Residual = std::shared_ptr<const std::vector<float>>;
    // Newest first; as many as the sequence can take tokens back, and one.
    using Residuals = std::vector<Residual>;

    // Throws Failure, ASSAY_UNSUPPORTED where the model has no draft block.
    Draft(const Model& model, const assay_session_settings& settings, uint32_t n_ubatch, assay_work& work);

    IndexedCache& cache() { return *cache_; }
    const IndexedCache& cache() const { return *cache_; }
    uint64_t bytes() const;
    uint64_t compute_bytes() const { return evaluator_->executor().compute_bytes(); }
    const Residuals& residuals(uint32_t sequence) const { return residuals_[sequence]; }
    void set_residuals(uint32_t sequence, Residuals residuals) { residuals_[sequence] = std::move(residuals); }

    // Logits and residuals of rows that the trunk has shown, as draft.logits and draft.residual.
    void capture_into(Capture* capture) { capture_ = capture; }

    // Text rows of a trunk ubatch, and the residuals of all of its rows ([hcn] each, in the order of the ubatch).
    struct Seen {
        uint32_t sequence = 0;
        std::vector<qsa::Row> rows;
        std::vector<int32_t> tokens;  // -1: an image row, which the draft block does not see
        const float* residuals = nullptr;
    };
    void catch_up(const std::vector<Seen>& runs);

    // Greedy drafts after the token `last`, which would stand at `position`. Stops below the probability p_min.
    std::vector<int32_t> propose(uint32_t sequence, int32_t last, int32_t position, uint32_t n, float p_min);

    // Removes the last n tokens of the trunk, whose cells begin at `position`.
    void rollback(uint32_t sequence, uint32_t n, int32_t position);
    void drop(uint32_t sequence);
    void copy(uint32_t source, uint32_t target);
    uint32_t n_cells(uint32_t sequence) const { return static_cast<uint32_t>(cache_->cells.order(sequence).size()); }
    void revert(uint32_t sequence, uint32_t n_cells, Residuals residuals);

private:
    void make_shortlist(const Model& model, uint32_t n_rows);
    const float* pending(uint32_t sequence) const;
    void add(QwenUbatch& ubatch, uint32_t sequence, int32_t token, int32_t position, const float* hidden);

    const QwenShape& s_;
    uint32_t n_residuals_;
    uint32_t n_vocab_;  // rows of the head
    std::unique_ptr<IndexedCache> cache_;
    ContextHandle shortlist_context_;
    BufferHandle shortlist_buffer_;
    ggml_tensor* shortlist_ = nullptr;
    std::unique_ptr<QwenEvaluator> evaluator_;
    std::vector<Residuals> residuals_;  // of each sequence
    Capture* capture_ = nullptr;
    std::vector<float> zeros_;
    std::vector<float> logits_;
};

}  // namespace assay
