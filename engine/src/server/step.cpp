// One evaluation of the inference thread: what goes into it, and what comes of its logits.
#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <utility>

#include "log.h"
#include "scheduler.h"

namespace assay::server {
namespace {

TokenChance chance_of(const float* logits, int32_t n_vocab, int32_t token, int32_t n_probs) {
    TokenChance chance;
    chance.token = token;
    chance.top = Sampler::top(logits, n_vocab, n_probs);
    // The best of the list anchors the normalisation, so that a token outside the list has its value too.
    const TokenProbability& best = chance.top.front();
    chance.logprob = best.logprob + (logits[token] - logits[best.token]);
    return chance;
}

#if defined(ASSAY_FAULT_DRAFT_ACCEPTS_WRONG)
int32_t accepted_anyway = -1;  // the first draft, whatever the model chooses
#endif

}  // namespace

void Scheduler::add_token(Slot& slot, int32_t token, bool wants_logits) {
    Share* share = shares_.empty() ? nullptr : &shares_.back();
    if (share == nullptr || share->slot != &slot) {
        shares_.push_back({&slot, static_cast<uint32_t>(batch_tokens_.size()), 0, false});
        share = &shares_.back();
    }
    batch_tokens_.push_back(token);
    batch_places_.push_back(place_of(slot.job->images, slot.cells.size() + share->count));
    batch_seqs_.push_back(slot.id);
    batch_logits_.push_back(wants_logits ? 1 : 0);
    share->wants_logits = wants_logits;
    ++share->count;
}

// The batch of the next step; empty when no slot has work.
void Scheduler::gather() {
    batch_tokens_.clear();
    batch_places_.clear();
    batch_seqs_.clear();
    batch_logits_.clear();
    shares_.clear();
    std::vector<Slot*> prefilling;
    for (Slot& slot : slots_) {
        if (slot.is_prefilling()) prefilling.push_back(&slot);
        else if (slot.is_generating) add_token(slot, slot.next_token, true);
    }
    std::sort(prefilling.begin(), prefilling.end(), [](const Slot* a, const Slot* b) { return a->job->id < b->job->id; });
    for (Slot* slot : prefilling) {
        const std::vector<int32_t>& prompt = slot->job->prompt;
        // At least one prompt token a step, even where the generating slots fill the ubatch.
        const size_t n_room = limits_.n_ubatch > batch_tokens_.size() ? limits_.n_ubatch - batch_tokens_.size() : 0;
        const bool is_first = slot == prefilling.front();
        const size_t n_left = prompt.size() - slot->cells.size();
        const size_t n_take = std::min(n_left, is_first ? std::max<size_t>(n_room, 1) : n_room);
        const size_t from = slot->cells.size();
        for (size_t i = 0; i < n_take; ++i) {
            const bool is_last = from + i + 1 == prompt.size();
            add_token(*slot, prompt[from + i], is_last && slot->n_most > 0);
        }
    }
}

Session::Outcome Scheduler::evaluate(const std::vector<std::shared_ptr<Job>>& jobs, const std::function<Session::Outcome()>& work) {
    {
        const std::lock_guard lock(mutex_);
        in_batch_ = jobs;
        set_cancel(is_stopping_ ? 1 : 0);
    }
    Session::Outcome outcome = work();
    const std::lock_guard lock(mutex_);
    in_batch_.clear();
    return outcome;
}

Session::Outcome Scheduler::decode_batch() {
    const auto n = static_cast<uint32_t>(batch_tokens_.size());
    const bool has_image = std::any_of(batch_tokens_.begin(), batch_tokens_.end(), [](int32_t token) { return token < 0; });
    std::vector<int32_t> positions;
    for (const Place& place : batch_places_) positions.push_back(place.t);
    if (!has_image) {
        return session_->decode({n, batch_tokens_.data(), positions.data(), batch_seqs_.data(), batch_logits_.data()}, &cancel_);
    }
    std::vector<float> embeddings;
    for (const Place& place : batch_places_) positions.push_back(place.y);
    for (const Place& place : batch_places_) positions.push_back(place.x);
    for (const Place& place : batch_places_) {
        if (place.embedding != nullptr) embeddings.insert(embeddings.end(), place.embedding, place.embedding + limits_.n_embd);
    }
    return session_->decode({sizeof(assay_rows), n, 3, batch_tokens_.data(), embeddings.data(), positions.data(), batch_seqs_.data(),
                             batch_logits_.data()},
                            &cancel_);
}

void Scheduler::step() {
    for (Slot& slot : slots_) {
        if (slot.is_generating && n_drafts(slot) > 0) return draft(slot);
    }
    gather();
    while (!shares_.empty() && !make_room(batch_tokens_.size())) gather();
    if (shares_.empty()) return;

    std::vector<std::shared_ptr<Job>> jobs;
    for (const Share& share : shares_) jobs.push_back(share.slot->job);
    const Session::Outcome outcome = evaluate(jobs, [&] { return decode_batch(); });
    if (outcome.status == ASSAY_CANCELLED) return;
    if (outcome.status == ASSAY_FULL && free_something()) return;
    if (!outcome.ok()) {
        for (const Share& share : shares_) give_up(*share.slot, outcome);
        return;
    }

    ++totals_.n_decode;
    totals_.n_busy_slots += shares_.size();
    for (const Share& share : shares_) {
        Slot& slot = *share.slot;
        const auto first = batch_tokens_.begin() + share.first;
        slot.cells.insert(slot.cells.end(), first, first + share.count);
        totals_.n_tokens_max = std::max<uint64_t>(totals_.n_tokens_max, slot.cells.size());
        if (!slot.is_generating && slot.job->settings.return_progress) {
            const auto total = static_cast<int32_t>(slot.job->prompt.size());
            slot.job->sink(ProgressEvent{slot.id, total, slot.n_cached, static_cast<int32_t>(slot.cells.size()), timings(slot)});
        }
        if (share.wants_logits) {
            const std::optional<StopType> stop_type = choose_token(slot, session_->logits(share.first + share.count - 1));
            if (stop_type && *stop_type != StopType::none) end(slot, *stop_type);
        } else if (slot.cells.size() == slot.job->prompt.size()) {
            end(slot, StopType::limit);  // n_predict is 0: the prompt is in the cache, nothing more was asked
        }
    }
}

// How many tokens may be drafted now: the last one that the job may generate is never evaluated.
uint32_t Scheduler::n_drafts(const Slot& slot) const {
    return std::min(limits_.n_draft, static_cast<uint32_t>(std::max(0, slot.n_most - slot.n_predicted - 1)));
}

// Drafts are kept while they are what the job's own sampling chooses from the model's logits, one after the other: the
// tokens are those of a run without drafts at every temperature.
void Scheduler::draft(Slot& slot) {
    std::vector<int32_t> tokens{slot.next_token};
    const Session::Outcome outcome = evaluate({slot.job}, [&] {
        const Session::Outcome proposed = session_->propose(slot.id, slot.next_token, n_drafts(slot), tokens);
        return proposed.ok() ? session_->verify(slot.id, tokens, &cancel_) : proposed;
    });
    if (outcome.status == ASSAY_CANCELLED) return;
    if (!outcome.ok()) return give_up(slot, outcome);
    ++totals_.n_decode;
    ++totals_.n_busy_slots;
    slot.n_drafted += static_cast<int32_t>(tokens.size()) - 1;

#if defined(ASSAY_FAULT_DRAFT_ACCEPTS_WRONG)
    if (tokens.size() > 1) accepted_anyway = tokens[1];
#endif
    uint32_t n_kept = 0;
    std::optional<StopType> stop_type;
    for (bool agrees = true; agrees;) {
        stop_type = choose_token(slot, session_->logits(n_kept++));
        if (!stop_type) return;  // it failed, and its cells are gone
        agrees = *stop_type == StopType::none && n_kept < tokens.size() && tokens[n_kept] == slot.next_token;
        if (agrees) ++slot.n_accepted;
    }
    if (const Session::Outcome accepted = session_->accept(slot.id, n_kept); !accepted.ok()) return give_up(slot, accepted);
    slot.cells.insert(slot.cells.end(), tokens.begin(), tokens.begin() + n_kept);
    totals_.n_tokens_max = std::max<uint64_t>(totals_.n_tokens_max, slot.cells.size());
    if (*stop_type != StopType::none) end(slot, *stop_type);
}

void Scheduler::give_up(Slot& slot, const Session::Outcome& outcome) {
    log_line("error", "decode_failed", {{"status", int64_t{outcome.status}}, {"message", outcome.message}});
    clear_cells(slot);
    fail(slot, ApiError(500, "server_error", outcome.message));
}

// True when the batch fits. Otherwise something was given up and the batch must be gathered anew.
bool Scheduler::make_room(size_t n_tokens) {
    if (!limits_.kv_unified) return true;
    size_t n_used = n_tokens;
    for (const Slot& slot : slots_) n_used += slot.cells.size();
    return n_used <= limits_.n_ctx || !free_something();
}

// Gives up the least recently used idle prefix, else the newest job. False when there is nothing to give up.
bool Scheduler::free_something() {
    Slot* idle = nullptr;
    Slot* newest = nullptr;
    size_t n_active = 0;
    for (Slot& slot : slots_) {
        if (slot.is_idle()) {
            if (!slot.cells.empty() && (idle == nullptr || slot.last_used < idle->last_used)) idle = &slot;
        } else {
            ++n_active;
            if (newest == nullptr || slot.job->id > newest->job->id) newest = &slot;
        }
    }
    if (idle != nullptr) {
        clear_cells(*idle);
        return true;
    }
    if (newest == nullptr) return false;
    clear_cells(*newest);
    fail(*newest, ApiError(503, "unavailable_error",
                           "the cache of " + std::to_string(limits_.n_ctx) + " cells is full with " + std::to_string(n_active) +
                               " requests in work; the newest was ended (use a larger --ctx-size or fewer --parallel slots)"));
    return true;
}

// The next token, shown to the client; what ends the job with it. Nothing where the job failed.
std::optional<StopType> Scheduler::choose_token(Slot& slot, const float* logits) {
    if (logits == nullptr) {
        give_up(slot, {ASSAY_INTERNAL, "the engine gave no logits for the last token"});
        return std::nullopt;
    }
    const GenerationSettings& settings = slot.job->settings;
    const int32_t n_vocab = model_.n_vocab();
    const float* scored = logits;
    if (!settings.logit_bias.empty() || settings.ignore_eos) {
        biased_logits_.assign(logits, logits + n_vocab);
        for (const auto& [token, bias] : settings.logit_bias) biased_logits_[static_cast<size_t>(token)] += bias;
        if (settings.ignore_eos) {
            for (const int32_t token : model_.end_tokens()) biased_logits_[static_cast<size_t>(token)] = -INFINITY;
        }
        scored = biased_logits_.data();
    }
    int32_t token = -1;
    try {
        token = slot.sampler->sample(scored, n_vocab);
#if defined(ASSAY_FAULT_DRAFT_ACCEPTS_WRONG)
        if (accepted_anyway >= 0) token = std::exchange(accepted_anyway, -1);
#endif
    } catch (const std::runtime_error& error) {
        // Not a number, or a logit_bias that excludes every token.
        clear_cells(slot);
        fail(slot, ApiError(500, "server_error", error.what()));
        return std::nullopt;
    }
    const Clock::time_point now = Clock::now();
    slot.sampler->accept(token);
    if (!slot.is_generating) {
        slot.is_generating = true;
        slot.first_token = now;
    }
    slot.last_token = now;
    slot.next_token = token;
    ++slot.n_predicted;

    TokenEvent event;
    event.id_slot = slot.id;
    event.token = token;
    event.n_predicted = slot.n_predicted;
    event.text = slot.output->add(model_.bytes(token, false));
    StopType stop_type = StopType::none;
    if (slot.output->is_stopped()) stop_type = StopType::word;
    else if (model_.is_end(token)) stop_type = StopType::eos;
    else if (slot.n_predicted >= slot.n_most) stop_type = StopType::limit;
    if (stop_type != StopType::none) event.text += slot.output->flush();
    if (settings.timings_per_token) event.timings = timings(slot);
    if (settings.n_probs > 0) event.chance = chance_of(logits, n_vocab, token, settings.n_probs);
    slot.job->sink(std::move(event));
    return stop_type;
}

}  // namespace assay::server
