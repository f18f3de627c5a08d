// Continuous batching: one inference thread owns the session and steps through the work of all slots.
//
// A step takes the next token of every generating slot and then prompt tokens of the slots in prefill,
// oldest job first, up to the ubatch size, in one graph evaluation. So a long prefill never stops the
// generation of other slots, and several prompts share a batch. With drafts there is one slot, and its
// generation steps verify several tokens at once.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "generation.h"
#include "loaded_model.h"
#include "text_output.h"

namespace assay::server {

// What others may know of a slot: counts and settings, never text or token ids.
struct SlotView {
    int32_t id = 0;
    std::shared_ptr<const Job> job;  // the present job, or the last one
    bool is_processing = false;
    bool is_generating = false;
    bool has_new_line = false;
    int32_t n_cells = 0;
    int32_t n_prompt = 0;
    int32_t n_prompt_done = 0;
    int32_t n_prompt_cached = 0;
    int32_t n_predicted = 0;
    int32_t n_remaining = 0;
    uint32_t seed = 0;
};

struct Totals {
    uint64_t n_prompt_tokens = 0;  // evaluated, without the cached ones
    uint64_t n_prompt_cached = 0;
    double prompt_s = 0;
    uint64_t n_predicted_tokens = 0;
    double predicted_s = 0;
    uint64_t n_drafted = 0;
    uint64_t n_accepted = 0;
    uint64_t n_decode = 0;
    uint64_t n_busy_slots = 0;  // summed over decodes
    uint64_t n_tokens_max = 0;
    uint64_t n_jobs_done = 0;
    uint64_t n_jobs_cancelled = 0;
    uint64_t n_jobs_failed = 0;
};

struct SchedulerState {
    std::vector<SlotView> slots;
    Totals totals;
    size_t n_waiting = 0;
    size_t n_processing = 0;
    assay_work work{};
    std::string session_info;  // JSON of the engine, as of the last job that ended
};

class Scheduler {
public:
    struct Limits {
        uint32_t n_slots = 1;
        uint32_t n_ctx = 0;  // cells of one slot when split, of all together when unified
        uint32_t n_ubatch = 512;
        bool kv_unified = false;
        uint32_t n_draft = 0;  // most tokens drafted at a time; needs a session with drafts, and one slot
        uint32_t n_embd = 0;   // numbers of a row of an image
        size_t n_waiting = 512;  // most jobs without a slot; more are refused with 503
    };

    // The cells of one idle slot, handed to an action on the inference thread.
    struct IdleSlot {
        Session& session;
        int32_t id;
        std::vector<int32_t>& cells;
    };

    Scheduler(const Model& model, std::unique_ptr<Session> session, Limits limits);

    // Steps until stop(); jobs that are left then end with a FailureEvent. Called on the inference thread.
    void serve();

    // The rest may be called from any thread.
    void stop();
    // Throws ApiError when too many jobs wait or the server stops.
    void submit(const std::shared_ptr<Job>& job);
    // The slot is free within one step; a step that serves only cancelled jobs is broken off.
    void cancel(const std::shared_ptr<Job>& job);
    // Before jobs that still wait, as soon as the slot has none. `refused` is called when the server stops.
    void when_idle(int32_t id_slot, std::function<void(IdleSlot&)> action, std::function<void()> refused);
    SchedulerState state() const;
    const Limits& limits() const { return limits_; }

private:
    using Clock = std::chrono::steady_clock;

    struct Slot {
        int32_t id = 0;
        std::vector<int32_t> cells;  // token ids whose cells the session holds, in order; -1: a row of an image
        uint64_t last_used = 0;
        std::shared_ptr<Job> job;
        std::shared_ptr<Job> last_job;
        std::optional<Sampler> sampler;
        std::optional<TextOutput> output;
        bool is_generating = false;
        int32_t next_token = -1;  // sampled, not yet evaluated
        int32_t n_cached = 0;
        int32_t n_predicted = 0;
        int32_t n_drafted = 0;
        int32_t n_accepted = 0;   // of these, those that the job's own sampling chose too
        int32_t n_most = 0;       // tokens that the job may generate
        Clock::time_point started, first_token, last_token;
        assay_work work_before{};

        bool is_idle() const { return job == nullptr; }
        bool is_prefilling() const { return job != nullptr && !is_generating; }
    };

    struct SlotAction {
        int32_t id_slot;
        std::function<void(IdleSlot&)> action;
        std::function<void()> refused;
    };

    // The part of a batch that belongs to one slot.
    struct Share {
        Slot* slot;
        uint32_t first;
        uint32_t count;
        bool wants_logits;  // of its last token
    };

    bool wait_for_work();
    void drop_cancelled();
    void carry_out_actions();
    bool assign_jobs();
    Slot* choose_slot(const Job& job);
    bool is_reserved(int32_t id_slot) const;
    bool fits_now(const Job& job) const;
    void start(Slot& slot, std::shared_ptr<Job> job);
    void publish();

    // step.cpp
    void step();
    Session::Outcome evaluate(const std::vector<std::shared_ptr<Job>>& jobs, const std::function<Session::Outcome()>& work);
    uint32_t n_drafts(const Slot& slot) const;
    void draft(Slot& slot);
    void give_up(Slot& slot, const Session::Outcome& outcome);
    void gather();
    void add_token(Slot& slot, int32_t token, bool wants_logits);
    Session::Outcome decode_batch();
    bool make_room(size_t n_tokens);
    bool free_something();
    std::optional<StopType> choose_token(Slot& slot, const float* logits);

    void end(Slot& slot, StopType stop_type);
    void fail(Slot& slot, const ApiError& error);
    void release(Slot& slot);
    void clear_cells(Slot& slot);
    Timings timings(const Slot& slot) const;

    const Model& model_;
    std::unique_ptr<Session> session_;
    const Limits limits_;

    // Inference thread only.
    std::vector<Slot> slots_;
    std::vector<int32_t> batch_tokens_, batch_seqs_;
    std::vector<Place> batch_places_;
    std::vector<uint8_t> batch_logits_;
    std::vector<Share> shares_;
    std::vector<float> biased_logits_;
    Totals totals_;
    std::string session_info_;
    uint64_t use_count_ = 0;

    // Shared, under mutex_.
    mutable std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::shared_ptr<Job>> waiting_;
    std::deque<SlotAction> actions_;
    std::vector<std::shared_ptr<Job>> in_batch_;
    SchedulerState published_;
    uint64_t n_jobs_ = 0;
    bool is_stopping_ = false;
    // Read by the engine during a decode, while any thread may set it.
    void set_cancel(int value) { __atomic_store_n(&cancel_, value, __ATOMIC_RELAXED); }
    volatile int cancel_ = 0;
};

}  // namespace assay::server
