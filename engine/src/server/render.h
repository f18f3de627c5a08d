// Events of a job to the JSON that clients of llama-server and of OpenAI's API expect.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "generation.h"
#include "json_writer.h"
#include "loaded_model.h"
#include "requests.h"

namespace assay::server {

enum class Dialect { native, completion, chat };

void write_settings(JsonWriter& out, const GenerationSettings& settings, const SamplingSettings& sampling);
// The work counters; without those of calls and reuses for a single answer.
void write_work(JsonWriter& out, const assay_work& work);
std::string event_frame(std::string_view json);

// The answer to one request, streamed or whole. Used by one thread at a time.
class Renderer {
public:
    Renderer(Dialect dialect, const Model& model, std::string model_name, std::string build, const GenerationRequest& request);

    // Whole frames of server-sent events; empty where the dialect shows nothing of the event.
    std::string frames(const ProgressEvent& event) const;
    std::string frames(const TokenEvent& event);
    std::string frames(const EndEvent& event) const;

    // For a whole answer: keeps the token, then gives the body.
    void keep(TokenEvent&& event);
    std::string body(const EndEvent& event) const;

private:
    void write_chance(JsonWriter& out, const TokenChance& chance) const;
    void write_candidate(JsonWriter& out, int32_t token, float logprob) const;
    void write_native_end(JsonWriter& out, const EndEvent& event) const;
    void write_label(JsonWriter& out, bool is_whole) const;
    void write_usage(JsonWriter& out, const Timings& timings) const;
    void write_costs(JsonWriter& out, const EndEvent& event) const;
    std::string chunk(const TokenEvent& event) const;

    const Dialect dialect_;
    const Model& model_;
    const std::string model_name_;
    const std::string build_;
    const GenerationSettings settings_;
    const std::string prompt_text_;
    const std::vector<std::string> ignored_fields_;
    const int32_t n_prompt_;
    const int32_t n_top_shown_;
    const bool include_usage_;
    const std::string id_;
    const int64_t created_;  // seconds since 1970, UTC

    bool has_begun_ = false;
    std::string text_;
    std::vector<int32_t> tokens_;
    std::vector<TokenChance> chances_;
};

}  // namespace assay::server
