// One mutable set of sequences over a model, whatever its family: cells, positions, logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "capture.h"
#include "engine.h"
#include "failure.h"
#include "model.h"
#include "work.h"

namespace assay {

class Session {
public:
    virtual ~Session() = default;
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // All or nothing: on any Failure the cells that the call added are gone again.
    virtual void decode(const assay_batch& batch, const volatile int* cancel) = 0;
    virtual void decode_rows(const assay_rows& rows, const volatile int* cancel) = 0;
    // Row i of the last batch, nullptr where it was not asked for.
    virtual const float* logits(uint32_t i) const = 0;

    virtual void remove(int32_t sequence, int32_t p0, int32_t p1) = 0;
    virtual void copy(int32_t source, int32_t target, int32_t p0, int32_t p1) = 0;
    virtual void keep(int32_t sequence) = 0;
    virtual void shift(int32_t sequence, int32_t p0, int32_t p1, int32_t delta) = 0;
    virtual void fill_zero(int32_t sequence, uint32_t n) = 0;
    virtual int32_t last_position(uint32_t sequence) const = 0;
    virtual uint32_t n_cells_of(uint32_t sequence) const = 0;

    virtual size_t state_size(int32_t sequence) const = 0;
    virtual size_t save_state(int32_t sequence, uint8_t* data, size_t size) const = 0;
    virtual void restore_state(int32_t sequence, const uint8_t* data, size_t size) = 0;

    // Drafts: of models with a draft block only.
    struct Round {
        std::vector<int32_t> drafts;
        uint32_t n_accepted = 0;
        std::vector<int32_t> tokens;  // the accepted drafts and the trunk's own next token
    };
    virtual std::vector<int32_t> propose(int32_t sequence, int32_t last, uint32_t n, float p_min);
    virtual void verify(int32_t sequence, const int32_t* tokens, uint32_t n, const volatile int* cancel);
    virtual void accept(int32_t sequence, uint32_t n_keep);
    virtual Round draft_round(int32_t sequence, int32_t last, uint32_t n_left, uint32_t depth, float p_min,
                              const volatile int* cancel);

    // Throws Failure where the family has no such tensors.
    virtual Capture& capture();
    const Capture& captured() const { return capture_; }
    // One line of JSON.
    virtual std::string info() const;

    virtual uint64_t cache_bytes() const = 0;
    virtual uint64_t compute_bytes() const = 0;

    const assay_work& work() const { return work_; }
    void reset_work() { work_ = empty_work(); }
    uint32_t check_sequence(int32_t sequence) const {
        if (sequence < 0 || static_cast<uint32_t>(sequence) >= settings_.n_seq) {
            throw Failure(ASSAY_INVALID, "sequence " + std::to_string(sequence) +
                                             " does not exist, the session has 0 to " +
                                             std::to_string(settings_.n_seq - 1));
        }
        return static_cast<uint32_t>(sequence);
    }

protected:
    Session(const Model& model, const assay_session_settings& settings)
        : model_(model), settings_(settings), work_(empty_work()) {}

    const Model& model_;
    assay_session_settings settings_;
    assay_work work_;
    Capture capture_;
};

// Allocates the cache and the compute buffers for the largest ubatch. Throws Failure.
std::unique_ptr<Session> make_session(const Model& model, const assay_session_settings& settings);

}  // namespace assay
