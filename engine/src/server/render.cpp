#include "render.h"

#include <chrono>
#include <cmath>
#include <random>
#include <utility>

#include "text_output.h"

namespace assay::server {
namespace {

std::string_view name_of(StopType type) {
    switch (type) {
        case StopType::eos: return "eos";
        case StopType::limit: return "limit";
        case StopType::word: return "word";
        case StopType::none: break;
    }
    return "none";
}

std::string_view finish_reason(StopType type) { return type == StopType::limit ? "length" : "stop"; }

std::string new_id(Dialect dialect) {
    static constexpr std::string_view letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    std::random_device source;
    std::uniform_int_distribution<size_t> pick(0, letters.size() - 1);
    std::string id = dialect == Dialect::chat ? "chatcmpl-" : "cmpl-";
    for (int i = 0; i < 32; ++i) id += letters[pick(source)];
    return id;
}

int64_t utc_seconds() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// llama-server's convention: the first predicted token has no time of its own, n - 1 intervals share
// predicted_ms; where there is no interval, the rates are 0.
void write_timings(JsonWriter& out, const Timings& timings) {
    const auto rates = [&](std::string_view each, std::string_view rate, int32_t n, double ms) {
        const bool is_known = n > 0 && ms > 0;
        out.key(each).real(is_known ? ms / n : 0.0).key(rate).real(is_known ? n / ms * 1e3 : 0.0);
    };
    out.open_object();
    out.key("cache_n").integer(timings.cache_n);
    out.key("prompt_n").integer(timings.prompt_n).key("prompt_ms").real(timings.prompt_ms);
    rates("prompt_per_token_ms", "prompt_per_second", timings.prompt_n, timings.prompt_ms);
    double predicted_ms = timings.predicted_ms;
#if defined(ASSAY_FAULT_WRONG_TIMINGS)
    predicted_ms /= 2;  // claims twice the rate
#endif
    out.key("predicted_n").integer(timings.predicted_n).key("predicted_ms").real(predicted_ms);
    rates("predicted_per_token_ms", "predicted_per_second", timings.predicted_n - 1, predicted_ms);
    out.key("draft_n").integer(timings.draft_n).key("draft_n_accepted").integer(timings.draft_n_accepted);
    out.key("graph_reuses").integer(timings.graph_reuses);
    out.close_object();
}

// What is sent of a frame that carries a token.
std::string sent(std::string frame, [[maybe_unused]] int32_t n_predicted) {
#if defined(ASSAY_FAULT_LOST_TOKEN_EVENT)
    if (n_predicted % 16 == 5) return {};
#endif
#if defined(ASSAY_FAULT_DOUBLED_TOKEN_EVENT)
    if (n_predicted % 16 == 5) return frame + frame;
#endif
    return frame;
}

void write_progress(JsonWriter& out, const ProgressEvent& event) {
    out.key("timings");
    write_timings(out, event.timings);
    out.key("prompt_progress").open_object();
    out.key("total").integer(event.total).key("cache").integer(event.cache).key("processed").integer(event.processed);
    out.key("time_ms").integer(std::llround(event.timings.prompt_ms)).close_object();
}

}  // namespace

void write_settings(JsonWriter& out, const GenerationSettings& settings, const SamplingSettings& sampling) {
    const auto real = [&](std::string_view name, float value) { out.key(name).real(static_cast<double>(value)); };
    out.open_object();
    out.key("seed").integer(sampling.seed);
    real("temperature", sampling.temperature);
    out.key("top_k").integer(sampling.top_k);
    real("top_p", sampling.top_p);
    real("min_p", sampling.min_p);
    out.key("repeat_last_n").integer(sampling.repeat_last_n);
    real("repeat_penalty", sampling.repeat_penalty);
    out.key("stop").texts(settings.stop);
    out.key("max_tokens").integer(settings.n_predict).key("n_predict").integer(settings.n_predict);
    out.key("ignore_eos").boolean(settings.ignore_eos).key("stream").boolean(settings.stream);
    out.key("logit_bias").open_array();
    for (const auto& [token, bias] : settings.logit_bias) {
        // A forbidden token has no finite bias: null, as llama-server writes it.
        out.open_object().key("bias").real(static_cast<double>(bias)).key("token").integer(token).close_object();
    }
    out.close_array();
    out.key("n_probs").integer(settings.n_probs);
    out.key("samplers").texts({"penalties", "top_k", "top_p", "min_p", "temperature"});
    out.key("timings_per_token").boolean(settings.timings_per_token);
    out.key("cache_prompt").boolean(settings.cache_prompt);
    out.key("return_tokens").boolean(settings.return_tokens);
    out.key("return_progress").boolean(settings.return_progress);
    out.key("id_slot").integer(settings.id_slot);
    out.close_object();
}

void write_work(JsonWriter& out, const assay_work& work) {
    out.open_object();
    out.key("n_graphs").integer(work.n_graphs).key("n_graph_nodes").integer(work.n_graph_nodes);
    out.key("n_flops").integer(work.n_flops).key("n_weight_bytes_read").integer(work.n_weight_bytes_read);
    out.key("n_cells_visited").integer(work.n_cells_visited).key("n_mapping_steps").integer(work.n_mapping_steps);
    out.key("n_allocations").integer(work.n_allocations).key("n_tokens_evaluated").integer(work.n_tokens_evaluated);
    // Of qwen4exp; always 0 for the llama family, which has none of this.
    if (work.n_runs_guarded + work.n_runs_general + work.n_runs_masked > 0) {
        out.key("n_runs_guarded").integer(work.n_runs_guarded).key("n_runs_general").integer(work.n_runs_general);
        out.key("n_runs_masked").integer(work.n_runs_masked).key("n_scans").integer(work.n_scans);
        out.key("n_ple_rows").integer(work.n_ple_rows).key("n_ple_misses").integer(work.n_ple_misses);
        out.key("n_drafted").integer(work.n_drafted).key("n_accepted").integer(work.n_accepted);
    }
    out.close_object();
}

std::string event_frame(std::string_view json) {
    std::string frame = "data: ";
    frame += json;
    frame += "\n\n";
    return frame;
}

Renderer::Renderer(Dialect dialect, const Model& model, std::string model_name, std::string build, const GenerationRequest& request)
    : dialect_(dialect),
      model_(model),
      model_name_(std::move(model_name)),
      build_(std::move(build)),
      settings_(request.settings),
      prompt_text_(request.prompt_text),
      ignored_fields_(request.ignored_fields),
      n_prompt_(static_cast<int32_t>(request.prompt.size())),
      n_top_shown_(request.n_top_shown),
      include_usage_(request.include_usage),
      id_(new_id(dialect)),
      created_(utc_seconds()) {}

void Renderer::write_candidate(JsonWriter& out, int32_t token, float logprob) const {
    const std::string_view bytes = model_.bytes(token, true);
    out.key("id").integer(token).key("token").text(valid_utf8(bytes));
    out.key("bytes").open_array();
    for (const char byte : bytes) out.integer(static_cast<int>(static_cast<unsigned char>(byte)));
    out.close_array().key("logprob").real(static_cast<double>(logprob));
}

void Renderer::write_chance(JsonWriter& out, const TokenChance& chance) const {
    out.open_object();
    write_candidate(out, chance.token, chance.logprob);
    out.key("top_logprobs").open_array();
    for (size_t i = 0; i < chance.top.size() && i < static_cast<size_t>(n_top_shown_); ++i) {
        out.open_object();
        write_candidate(out, chance.top[i].token, chance.top[i].logprob);
        out.close_object();
    }
    out.close_array().close_object();
}

std::string Renderer::frames(const ProgressEvent& event) const {
    JsonWriter out;
    if (dialect_ == Dialect::native) {
        out.open_object().key("index").integer(0).key("content").text("").key("tokens").open_array().close_array();
        out.key("stop").boolean(false).key("id_slot").integer(event.id_slot).key("tokens_predicted").integer(0);
        out.key("tokens_evaluated").integer(n_prompt_);
    } else {
        out.open_object().key("choices").open_array().close_array();
        write_label(out, false);
    }
    write_progress(out, event);
    return event_frame(out.close_object().view());
}

std::string Renderer::frames(const TokenEvent& event) {
    if (dialect_ != Dialect::native) {
        std::string frames;
        if (!has_begun_ && dialect_ == Dialect::chat) {
            JsonWriter out;
            out.open_object().key("choices").open_array().open_object();
            out.key("finish_reason").null().key("index").integer(0).key("delta").open_object();
            out.key("role").text("assistant").key("content").null().close_object().close_object().close_array();
            write_label(out, false);
            frames = event_frame(out.close_object().view());
        }
        has_begun_ = true;
        const bool shows_something = !event.text.empty() || event.chance || event.timings || settings_.return_tokens;
        return shows_something ? frames + chunk(event) : frames;
    }
    JsonWriter out;
    out.open_object().key("index").integer(0).key("content").text(event.text);
    out.key("tokens").open_array().integer(event.token).close_array();
    out.key("stop").boolean(false).key("id_slot").integer(event.id_slot);
    out.key("tokens_predicted").integer(event.n_predicted).key("tokens_evaluated").integer(n_prompt_);
    if (event.timings) write_timings(out.key("timings"), *event.timings);
    if (event.chance) {
        out.key("completion_probabilities").open_array();
        write_chance(out, *event.chance);
        out.close_array();
    }
    return sent(event_frame(out.close_object().view()), event.n_predicted);
}

std::string Renderer::chunk(const TokenEvent& event) const {
    JsonWriter out;
    out.open_object().key("choices").open_array().open_object();
    const auto write_logprobs = [&] {
        out.open_object().key("content").open_array();
        write_chance(out, *event.chance);
        out.close_array().close_object();
    };
    if (dialect_ == Dialect::chat) {
        out.key("finish_reason").null().key("index").integer(0);
        out.key("delta").open_object().key("content").text(event.text).close_object();
        if (event.chance) {
            out.key("logprobs");
            write_logprobs();
        }
    } else {
        out.key("text").text(event.text).key("index").integer(0).key("logprobs");
        if (event.chance) write_logprobs();
        else out.null();
        out.key("finish_reason").null();
    }
    out.close_object().close_array();
    write_label(out, false);
    if (settings_.return_tokens) out.key("tokens").open_array().integer(event.token).close_array();
    if (event.timings) write_timings(out.key("timings"), *event.timings);
    return sent(event_frame(out.close_object().view()), event.n_predicted);
}

std::string Renderer::frames(const EndEvent& event) const {
    JsonWriter out;
    if (dialect_ == Dialect::native) {
        out.open_object().key("index").integer(0).key("content").text("").key("tokens").open_array().close_array();
        write_native_end(out, event);
        return event_frame(out.close_object().view());
    }
    out.open_object().key("choices").open_array().open_object();
    if (dialect_ == Dialect::chat) {
        out.key("finish_reason").text(finish_reason(event.stop_type)).key("index").integer(0).key("delta").open_object().close_object();
    } else {
        out.key("text").text("").key("index").integer(0).key("logprobs").null();
        out.key("finish_reason").text(finish_reason(event.stop_type));
    }
    out.close_object().close_array();
    write_label(out, false);
    if (!include_usage_) write_costs(out, event);
    std::string frames = event_frame(out.close_object().view());
    if (include_usage_) {
        JsonWriter last;
        last.open_object().key("choices").open_array().close_array();
        write_label(last, false);
        write_usage(last, event.timings);
        write_costs(last, event);
        frames += event_frame(last.close_object().view());
    }
    return frames + event_frame("[DONE]");
}

void Renderer::write_label(JsonWriter& out, bool is_whole) const {
    std::string_view object = "text_completion";
    if (dialect_ == Dialect::chat) object = is_whole ? "chat.completion" : "chat.completion.chunk";
    out.key("created").integer(created_).key("id").text(id_).key("model").text(model_name_);
    out.key("system_fingerprint").text(build_).key("object").text(object);
}

void Renderer::write_usage(JsonWriter& out, const Timings& timings) const {
    out.key("usage").open_object();
    out.key("completion_tokens").integer(timings.predicted_n).key("prompt_tokens").integer(n_prompt_);
    out.key("total_tokens").integer(timings.predicted_n + n_prompt_);
    out.key("prompt_tokens_details").open_object().key("cached_tokens").integer(timings.cache_n).close_object().close_object();
}

// Fields beyond OpenAI's: llama-server's timings, and the work counters.
void Renderer::write_costs(JsonWriter& out, const EndEvent& event) const {
    write_timings(out.key("timings"), event.timings);
    write_work(out.key("work"), event.work);
    if (!ignored_fields_.empty()) out.key("ignored_fields").texts(ignored_fields_);
}

void Renderer::write_native_end(JsonWriter& out, const EndEvent& event) const {
    out.key("id_slot").integer(event.id_slot).key("stop").boolean(true).key("model").text(model_name_);
    out.key("tokens_predicted").integer(event.timings.predicted_n).key("tokens_evaluated").integer(n_prompt_);
    write_settings(out.key("generation_settings"), settings_, event.sampling);
    out.key("prompt").text(prompt_text_).key("has_new_line").boolean(event.has_new_line);
    out.key("truncated").boolean(false).key("stop_type").text(name_of(event.stop_type));
    out.key("stopping_word").text(event.stopping_word).key("tokens_cached").integer(event.n_cached);
    write_timings(out.key("timings"), event.timings);
    write_work(out.key("work"), event.work);
    if (event.n_replaced > 0) out.key("invalid_utf8_replaced").integer(event.n_replaced);
    out.key("ignored_fields").texts(ignored_fields_);
}

void Renderer::keep(TokenEvent&& event) {
    text_ += event.text;
    tokens_.push_back(event.token);
    if (event.chance) chances_.push_back(std::move(*event.chance));
}

std::string Renderer::body(const EndEvent& event) const {
    JsonWriter out;
    const std::vector<int32_t> shown_tokens = settings_.return_tokens ? tokens_ : std::vector<int32_t>();
    const auto write_chances = [&] {
        out.open_array();
        for (const TokenChance& chance : chances_) write_chance(out, chance);
        out.close_array();
    };
    out.open_object();
    if (dialect_ == Dialect::native) {
        out.key("index").integer(0).key("content").text(text_).key("tokens").integers(shown_tokens);
        write_native_end(out, event);
        if (!chances_.empty()) {
            out.key("completion_probabilities");
            write_chances();
        }
        return out.close_object().take();
    }
    out.key("choices").open_array().open_object();
    const bool has_logprobs = settings_.n_probs > 0;
    if (dialect_ == Dialect::chat) {
        out.key("finish_reason").text(finish_reason(event.stop_type)).key("index").integer(0);
        out.key("message").open_object().key("role").text("assistant").key("content").text(text_).close_object();
    } else {
        out.key("text").text(text_).key("index").integer(0);
    }
    out.key("logprobs");
    if (has_logprobs) {
        out.open_object().key("content");
        write_chances();
        out.close_object();
    } else {
        out.null();
    }
    if (dialect_ == Dialect::completion) out.key("finish_reason").text(finish_reason(event.stop_type));
    out.close_object().close_array();
    write_label(out, true);
    write_usage(out, event.timings);
    if (settings_.return_tokens) out.key("tokens").integers(shown_tokens);
    write_costs(out, event);
    return out.close_object().take();
}

}  // namespace assay::server
