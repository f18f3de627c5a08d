// A generation job and what the inference thread reports about it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine.h"
#include "errors.h"
#include "image_prompt.h"
#include "sampler.h"

namespace assay::server {

// Field names and defaults follow llama-server's request body.
struct GenerationSettings {
    SamplingSettings sampling;
    int32_t n_predict = -1;     // tokens; -1: to the end of the context
    int32_t n_probs = 0;        // most likely tokens reported with each token
    int32_t id_slot = -1;       // -1: any
    std::vector<std::string> stop;
    std::vector<std::pair<int32_t, float>> logit_bias;  // -infinity forbids
    bool stream = false;
    bool ignore_eos = false;
    bool cache_prompt = true;
    bool return_tokens = false;
    bool return_progress = false;
    bool timings_per_token = false;
};

// prompt: from the moment the job gets its slot to the first sampled token.
// predicted: from the first sampled token to the last one. Monotonic clock of the inference thread.
struct Timings {
    int32_t cache_n = 0;
    int32_t prompt_n = 0;
    double prompt_ms = 0;
    int32_t predicted_n = 0;
    double predicted_ms = 0;
    int32_t draft_n = 0;
    int32_t draft_n_accepted = 0;
    uint64_t graph_reuses = 0;
};

struct TokenChance {
    int32_t token = -1;
    float logprob = 0;  // of the softmax over the raw logits
    std::vector<TokenProbability> top;
};

struct ProgressEvent {
    int32_t id_slot = -1;
    int32_t total = 0;
    int32_t cache = 0;
    int32_t processed = 0;  // with the cached ones
    Timings timings;
};

struct TokenEvent {
    int32_t id_slot = -1;
    int32_t token = -1;
    int32_t n_predicted = 0;
    std::string text;  // what may be sent now; held-back bytes come with a later token
    std::optional<Timings> timings;
    std::optional<TokenChance> chance;
};

enum class StopType { none, eos, limit, word };

struct EndEvent {
    int32_t id_slot = -1;
    StopType stop_type = StopType::none;
    std::string stopping_word;
    bool has_new_line = false;
    size_t n_replaced = 0;       // invalid UTF-8 parts shown as U+FFFD
    int32_t n_cached = 0;        // tokens of this sequence in the cache now
    SamplingSettings sampling;   // with the seed that was used
    Timings timings;
    assay_work work{};           // difference from the first step of the job to its end
};

struct FailureEvent {
    ApiError error;
};

using JobEvent = std::variant<ProgressEvent, TokenEvent, EndEvent, FailureEvent>;

struct Job {
    uint64_t id = 0;
    GenerationSettings settings;
    std::vector<int32_t> prompt;
    std::vector<PromptImage> images;  // in the order of the prompt
    // Called on the inference thread; the last call is an EndEvent or a FailureEvent, or none after a cancellation.
    std::function<void(JobEvent&&)> sink;
    std::atomic<bool> is_cancelled{false};
};

}  // namespace assay::server
