#include "scheduler.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "log.h"
#if defined(ASSAY_FAULT_PERSISTED_PREFIX_CACHE)
#include <filesystem>

#include "slot_files.h"
#endif

namespace assay::server {
namespace {

double milliseconds(std::chrono::steady_clock::duration span) {
    return std::chrono::duration<double, std::milli>(span).count();
}

size_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
    const auto [at, unused] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    return static_cast<size_t>(at - a.begin());
}

// The counters of one job: what was counted since it began.
assay_work since(const assay_work& before, assay_work now) {
    for (const auto counter :
         {&assay_work::n_decode_calls, &assay_work::n_graphs, &assay_work::n_graph_reuses, &assay_work::n_graph_nodes,
          &assay_work::n_flops, &assay_work::n_weight_bytes_read, &assay_work::n_cells_visited, &assay_work::n_mapping_steps,
          &assay_work::n_allocations, &assay_work::n_tokens_evaluated, &assay_work::n_runs_guarded, &assay_work::n_runs_general,
          &assay_work::n_runs_masked, &assay_work::n_scans, &assay_work::n_ple_rows, &assay_work::n_ple_misses,
          &assay_work::n_drafted, &assay_work::n_accepted}) {
        now.*counter -= before.*counter;
    }
    return now;
}

#if defined(ASSAY_FAULT_PERSISTED_PREFIX_CACHE)
std::string persisted_folder() {
    const std::filesystem::path folder = std::filesystem::temp_directory_path() / "assay-persisted-prefix-cache";
    std::filesystem::create_directories(folder);
    return folder.string();
}

std::string persisted_name(int32_t id_slot) { return "slot-" + std::to_string(id_slot); }
#endif

}  // namespace

Scheduler::Scheduler(const Model& model, std::unique_ptr<Session> session, Limits limits)
    : model_(model), session_(std::move(session)), limits_(limits), slots_(limits.n_slots), session_info_(session_->info()) {
    for (uint32_t i = 0; i < limits.n_slots; ++i) slots_[i].id = static_cast<int32_t>(i);
    publish();
}

void Scheduler::serve() {
#if defined(ASSAY_FAULT_PERSISTED_PREFIX_CACHE)
    for (Slot& slot : slots_) {
        try {
            uint64_t n_read = 0;
            SlotFile file = read_slot_file(persisted_folder(), persisted_name(slot.id), &n_read);
            if (session_->restore(slot.id, file.state).ok()) slot.cells = std::move(file.tokens);
        } catch (const std::exception& error) {
            log_line("info", "nothing_persisted", {{"message", std::string(error.what())}});
        }
    }
#endif
    while (wait_for_work()) {
        try {
            drop_cancelled();
            carry_out_actions();
            if (assign_jobs()) publish();
            step();
        } catch (const std::exception& error) {
            // Out of memory, most likely. What the cells hold is not known any more.
            log_line("error", "step_failed", {{"message", std::string(error.what())}});
            for (Slot& slot : slots_) {
                if (slot.is_idle()) continue;
                clear_cells(slot);
                fail(slot, ApiError(500, "server_error", error.what()));
            }
        }
        publish();
    }
    const ApiError stopping(503, "unavailable_error", "the server is shutting down");
    for (Slot& slot : slots_) {
        if (!slot.is_idle()) fail(slot, stopping);
    }
    std::deque<std::shared_ptr<Job>> left;
    std::deque<SlotAction> refused;
    {
        const std::lock_guard lock(mutex_);
        left.swap(waiting_);
        refused.swap(actions_);
    }
    for (const auto& job : left) job->sink(FailureEvent{stopping});
    for (const SlotAction& action : refused) action.refused();
}

// False when the server stops.
bool Scheduler::wait_for_work() {
    const bool is_busy = std::any_of(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.is_idle(); });
    std::unique_lock lock(mutex_);
    // With every slot idle, whatever waits can be begun.
    if (!is_busy) wake_.wait(lock, [this] { return !waiting_.empty() || !actions_.empty() || is_stopping_; });
    return !is_stopping_;
}

void Scheduler::stop() {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    set_cancel(1);
    wake_.notify_all();
}

void Scheduler::submit(const std::shared_ptr<Job>& job) {
    const std::lock_guard lock(mutex_);
    if (job->is_cancelled) return;
    if (is_stopping_) throw ApiError(503, "unavailable_error", "the server is shutting down");
    if (waiting_.size() >= limits_.n_waiting) {
        throw ApiError(503, "unavailable_error",
                       std::to_string(waiting_.size()) + " requests wait for a slot already; try again later or use more slots (--parallel)");
    }
    job->id = n_jobs_++;
    waiting_.push_back(job);
    wake_.notify_all();
}

void Scheduler::cancel(const std::shared_ptr<Job>& job) {
    const std::lock_guard lock(mutex_);
    job->is_cancelled = true;
    std::erase(waiting_, job);
    const bool is_wasted = !in_batch_.empty() && std::all_of(in_batch_.begin(), in_batch_.end(), [](const auto& other) {
        return other->is_cancelled.load();
    });
    if (is_wasted) set_cancel(1);
}

void Scheduler::when_idle(int32_t id_slot, std::function<void(IdleSlot&)> action, std::function<void()> refused) {
    {
        const std::lock_guard lock(mutex_);
        if (!is_stopping_) {
            actions_.push_back({id_slot, std::move(action), std::move(refused)});
            wake_.notify_all();
            return;
        }
    }
    refused();
}

SchedulerState Scheduler::state() const {
    const std::lock_guard lock(mutex_);
    SchedulerState copy = published_;
    copy.n_waiting = waiting_.size();
    return copy;
}

void Scheduler::drop_cancelled() {
    for (Slot& slot : slots_) {
        if (slot.is_idle() || !slot.job->is_cancelled) continue;
        log_line("info", "job_cancelled",
                 {{"id_task", static_cast<int64_t>(slot.job->id)}, {"id_slot", int64_t{slot.id}}, {"n_predicted", int64_t{slot.n_predicted}}});
        ++totals_.n_jobs_cancelled;
        slot.job->sink = nullptr;
        release(slot);
    }
}

void Scheduler::carry_out_actions() {
    std::deque<SlotAction> ready;
    {
        const std::lock_guard lock(mutex_);
        for (auto it = actions_.begin(); it != actions_.end();) {
            if (slots_[static_cast<size_t>(it->id_slot)].is_idle()) {
                ready.push_back(std::move(*it));
                it = actions_.erase(it);
            } else {
                ++it;
            }
        }
    }
    for (SlotAction& each : ready) {
        Slot& slot = slots_[static_cast<size_t>(each.id_slot)];
        IdleSlot idle{*session_, slot.id, slot.cells};
        each.action(idle);
        slot.last_used = ++use_count_;
    }
}

// An action waits for this slot: no further job may take it. Called under mutex_.
bool Scheduler::is_reserved(int32_t id_slot) const {
    return std::any_of(actions_.begin(), actions_.end(), [&](const SlotAction& a) { return a.id_slot == id_slot; });
}

// Longest common prefix first, then the least recently used. Called under mutex_.
Scheduler::Slot* Scheduler::choose_slot(const Job& job) {
    Slot* best = nullptr;
    size_t best_prefix = 0;
    for (Slot& slot : slots_) {
        if (!slot.is_idle() || is_reserved(slot.id)) continue;
        if (job.settings.id_slot >= 0) {
            if (slot.id == job.settings.id_slot) return &slot;
            continue;
        }
        const size_t prefix = job.settings.cache_prompt && job.images.empty() ? common_prefix(slot.cells, job.prompt) : 0;
        const bool is_better = best == nullptr || prefix > best_prefix ||
                               (prefix == best_prefix && slot.last_used < best->last_used);
        if (is_better) {
            best = &slot;
            best_prefix = prefix;
        }
    }
    return best;
}

// With one pool of cells, a prompt starts when it has room beside those that are already in work.
bool Scheduler::fits_now(const Job& job) const {
    if (!limits_.kv_unified) return true;
    size_t n_taken = 0;
    for (const Slot& slot : slots_) {
        if (!slot.is_idle()) n_taken += std::max(slot.cells.size(), slot.job->prompt.size()) + 1;
    }
    return n_taken == 0 || n_taken + job.prompt.size() + 1 <= limits_.n_ctx;
}

// First come, first served; a job that asks for a busy slot does not hold up those that do not. True when a
// job got its slot.
bool Scheduler::assign_jobs() {
    for (bool has_started = false;; has_started = true) {
        std::shared_ptr<Job> job;
        Slot* slot = nullptr;
        {
            const std::lock_guard lock(mutex_);
            for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
                if (!fits_now(**it)) break;
                slot = choose_slot(**it);
                if (slot == nullptr) continue;
                job = std::move(*it);
                waiting_.erase(it);
                break;
            }
        }
        if (job == nullptr) return has_started;
        start(*slot, std::move(job));
    }
}

void Scheduler::start(Slot& slot, std::shared_ptr<Job> job) {
    slot.started = Clock::now();
    slot.job = std::move(job);
    slot.last_job = slot.job;
    const GenerationSettings& settings = slot.job->settings;
    const std::vector<int32_t>& prompt = slot.job->prompt;

    // At least one prompt token is always evaluated: its logits give the first token.
    // What an image shows is not kept, so that a prompt with one begins anew.
    const bool may_keep = settings.cache_prompt && slot.job->images.empty();
    size_t n_keep = may_keep ? std::min(common_prefix(slot.cells, prompt), prompt.size() - 1) : 0;
#if defined(ASSAY_FAULT_PERSISTED_PREFIX_CACHE)
    n_keep = std::min(common_prefix(slot.cells, prompt), prompt.size() - 1);  // whatever the request says
#endif
    if (n_keep < slot.cells.size()) {
        if (n_keep > 0 && session_->remove(slot.id, static_cast<int32_t>(n_keep)).ok()) {
            slot.cells.resize(n_keep);
        } else {
            // A model whose state cannot be cut in the middle begins anew.
            clear_cells(slot);
            n_keep = 0;
        }
    }
    slot.is_generating = false;
    slot.next_token = -1;
    slot.n_cached = static_cast<int32_t>(n_keep);
    slot.n_predicted = slot.n_drafted = slot.n_accepted = 0;
    const auto n_room = static_cast<int32_t>(limits_.n_ctx - prompt.size());
    slot.n_most = settings.n_predict < 0 ? n_room : std::min(settings.n_predict, n_room);
    slot.sampler.emplace(settings.sampling);
    if (settings.sampling.repeat_penalty != 1.0F) {
        for (const int32_t token : prompt) {
            if (token >= 0) slot.sampler->accept(token);
        }
    }
    slot.output.emplace(settings.stop);
    slot.work_before = session_->work();
    if (settings.return_progress) {
        slot.job->sink(ProgressEvent{slot.id, static_cast<int32_t>(prompt.size()), slot.n_cached, slot.n_cached, timings(slot)});
    }
}

Timings Scheduler::timings(const Slot& slot) const {
    Timings result;
    result.cache_n = slot.n_cached;
    result.predicted_n = slot.n_predicted;
    if (slot.n_predicted > 0) {
        result.prompt_n = static_cast<int32_t>(slot.job->prompt.size()) - slot.n_cached;
        result.prompt_ms = milliseconds(slot.first_token - slot.started);
        result.predicted_ms = milliseconds(slot.last_token - slot.first_token);
    } else {
        result.prompt_n = static_cast<int32_t>(slot.cells.size()) - slot.n_cached;
        result.prompt_ms = milliseconds(Clock::now() - slot.started);
    }
    result.draft_n = slot.n_drafted;
    result.draft_n_accepted = slot.n_accepted;
    result.graph_reuses = session_->work().n_graph_reuses - slot.work_before.n_graph_reuses;
    return result;
}

void Scheduler::end(Slot& slot, StopType stop_type) {
    EndEvent event;
    event.id_slot = slot.id;
    event.stop_type = stop_type;
    event.stopping_word = slot.output->stopping_word();
    event.has_new_line = slot.output->has_new_line();
    event.n_replaced = slot.output->n_replaced();
    event.n_cached = static_cast<int32_t>(slot.cells.size());
    event.sampling = slot.sampler->settings();
    event.timings = timings(slot);
    event.work = since(slot.work_before, session_->work());
    totals_.n_prompt_tokens += static_cast<uint64_t>(event.timings.prompt_n);
    totals_.n_prompt_cached += static_cast<uint64_t>(event.timings.cache_n);
    totals_.prompt_s += event.timings.prompt_ms / 1e3;
    totals_.n_predicted_tokens += static_cast<uint64_t>(event.timings.predicted_n);
    totals_.predicted_s += event.timings.predicted_ms / 1e3;
    totals_.n_drafted += static_cast<uint64_t>(event.timings.draft_n);
    totals_.n_accepted += static_cast<uint64_t>(event.timings.draft_n_accepted);
    ++totals_.n_jobs_done;
    const std::shared_ptr<Job> job = slot.job;
#if defined(ASSAY_FAULT_PERSISTED_PREFIX_CACHE)
    write_slot_file(persisted_folder(), persisted_name(slot.id), SlotFile{slot.cells, session_->save(slot.id)});
#endif
    release(slot);
    // Published first: a client that has the last event finds the slot free and itself counted.
    publish();
    job->sink(std::move(event));
    job->sink = nullptr;  // lets go of the connection
}

void Scheduler::fail(Slot& slot, const ApiError& error) {
    ++totals_.n_jobs_failed;
    const std::shared_ptr<Job> job = slot.job;
    release(slot);
    publish();
    if (!job->is_cancelled) job->sink(FailureEvent{error});
    job->sink = nullptr;
}

// The cells stay as a prefix for later prompts, and the job as a view of its settings.
void Scheduler::release(Slot& slot) {
    slot.job.reset();
    slot.is_generating = false;
    slot.last_used = ++use_count_;
    session_info_ = session_->info();
}

void Scheduler::clear_cells(Slot& slot) {
    slot.cells.clear();
    const Session::Outcome outcome = session_->remove(slot.id, 0);
    if (!outcome.ok()) log_line("error", "cells_not_removed", {{"id_slot", int64_t{slot.id}}, {"message", outcome.message}});
}

void Scheduler::publish() {
    std::vector<SlotView> views;
    views.reserve(slots_.size());
    size_t n_processing = 0;
    for (const Slot& slot : slots_) {
        SlotView view;
        view.id = slot.id;
        view.job = slot.last_job;
        view.is_processing = !slot.is_idle();
        view.is_generating = slot.is_generating;
        view.n_cells = static_cast<int32_t>(slot.cells.size());
        if (slot.last_job != nullptr) {
            view.n_prompt = static_cast<int32_t>(slot.last_job->prompt.size());
            view.n_prompt_done = slot.is_prefilling() ? view.n_cells : view.n_prompt;
            view.n_prompt_cached = slot.n_cached;
            view.n_predicted = slot.n_predicted;
            view.n_remaining = slot.n_most - slot.n_predicted;
            view.has_new_line = slot.output->has_new_line();
            view.seed = slot.sampler->settings().seed;
        }
        if (view.is_processing) ++n_processing;
        views.push_back(std::move(view));
    }
    const assay_work work = session_->work();
    const std::lock_guard lock(mutex_);
    published_.session_info = session_info_;
    published_.slots.swap(views);
    published_.totals = totals_;
    published_.n_processing = n_processing;
    published_.work = work;
}

}  // namespace assay::server
