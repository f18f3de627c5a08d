#include "requests.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "errors.h"
#include "prompt_parts.h"
#include "request_fields.h"
#include "text_output.h"

namespace assay::server {
namespace {

namespace json = boost::json;

constexpr size_t most_stop_strings = 64;
constexpr size_t most_stop_bytes = 1024;
constexpr int64_t most_probs = 256;

// Fields that would change the output and that this engine lacks: accepted only where they ask for nothing.
void refuse_unsupported(Fields& fields) {
    static constexpr std::array numbers{
        std::pair{"presence_penalty", 0.0}, std::pair{"frequency_penalty", 0.0}, std::pair{"dry_multiplier", 0.0},
        std::pair{"xtc_probability", 0.0},  std::pair{"typical_p", 1.0},         std::pair{"dynatemp_range", 0.0},
        std::pair{"mirostat", 0.0},         std::pair{"top_n_sigma", -1.0},      std::pair{"min_keep", 0.0},
        std::pair{"n", 1.0},                std::pair{"n_cmpl", 1.0},            std::pair{"best_of", 1.0},
        std::pair{"adaptive_target", -1.0},
    };
    for (const auto& [name, neutral] : numbers) {
        const json::value* value = fields.find(name);
        if (value == nullptr) continue;
        const auto number = any_number(*value);
        if (!number) wrong_type(name, "a number", *value);
        if (*number != neutral) {
            reject(name, "this engine supports only " + std::to_string(static_cast<int64_t>(neutral)) + " (off)");
        }
    }
    for (const std::string_view name : {"echo", "post_sampling_probs"}) {
        if (fields.boolean(name, false)) reject(name, "is not supported by this engine");
    }
    for (const std::string_view name : {"grammar", "json_schema", "suffix", "tools", "functions", "image_data", "lora"}) {
        const json::value* value = fields.find(name);
        if (value == nullptr) continue;
        const bool is_empty = (value->is_string() && value->as_string().empty()) || (value->is_array() && value->as_array().empty()) ||
                              (value->is_object() && value->as_object().empty());
        if (!is_empty) reject(name, "is not supported by this engine");
    }
    if (const json::value* format = fields.find("response_format")) {
        const json::value* type = format->is_object() ? format->as_object().if_contains("type") : nullptr;
        if (type == nullptr || !type->is_string() || type->as_string() != "text") {
            reject("response_format", "this engine supports only {\"type\":\"text\"}");
        }
    }
}

std::vector<std::string> parse_stop(Fields& fields) {
    std::vector<std::string> words;
    const json::value* value = fields.find("stop");
    if (value == nullptr) return words;
    if (value->is_string()) {
        words.emplace_back(value->as_string());
    } else if (value->is_array()) {
        for (const json::value& word : value->as_array()) {
            if (!word.is_string()) wrong_type("stop", "an array of strings", word);
            words.emplace_back(word.as_string());
        }
    } else {
        wrong_type("stop", "a string or an array of strings", *value);
    }
    if (words.size() > most_stop_strings) reject("stop", "at most " + std::to_string(most_stop_strings) + " strings");
    for (const std::string& word : words) {
        if (word.empty()) reject("stop", "a stop string must not be empty");
        if (word.size() > most_stop_bytes) reject("stop", "a stop string has at most " + std::to_string(most_stop_bytes) + " bytes");
    }
    return words;
}

float parse_bias(const json::value& value) {
    if (value.is_bool() && !value.as_bool()) return -std::numeric_limits<float>::infinity();
    const auto number = any_number(value);
    if (!number) wrong_type("logit_bias", "a number or false", value);
    if (std::abs(*number) > 1e6) reject("logit_bias", "a bias is at most 1000000 in size, got " + show(value));
    return static_cast<float>(*number);
}

std::vector<std::pair<int32_t, float>> parse_logit_bias(Fields& fields, const Model& model) {
    std::vector<std::pair<int32_t, float>> biases;
    const json::value* value = fields.find("logit_bias");
    if (value == nullptr) return biases;
    const auto add_id = [&](std::optional<int64_t> id, float bias, const std::string& shown) {
        if (!id || *id < 0 || *id >= model.n_vocab()) reject("logit_bias", "token id " + shown + " is not in the vocabulary");
        biases.emplace_back(static_cast<int32_t>(*id), bias);
    };
    if (value->is_object()) {
        for (const auto& member : value->as_object()) {
            const std::string key(member.key());
            const bool is_id = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
            add_id(is_id ? std::optional<int64_t>(std::stoll(key)) : std::nullopt, parse_bias(member.value()), valid_utf8(key));
        }
        return biases;
    }
    if (!value->is_array()) wrong_type("logit_bias", "an array of [token, bias] or an object", *value);
    for (const json::value& entry : value->as_array()) {
        if (!entry.is_array() || entry.as_array().size() != 2) reject("logit_bias", "each entry is [token id or text, bias or false]");
        const json::value& token = entry.as_array()[0];
        const float bias = parse_bias(entry.as_array()[1]);
        if (token.is_string()) {
            const auto& text = token.as_string();
            for (const int32_t id : model.tokenize({text.data(), text.size()}, false, true)) biases.emplace_back(id, bias);
        } else {
            add_id(whole_number(token), bias, show(token));
        }
    }
    return biases;
}

// The names that all routes share.
void parse_settings(Fields& fields, const RequestContext& context, GenerationRequest& request) {
    GenerationSettings& settings = request.settings;
    SamplingSettings& sampling = settings.sampling;
    sampling.temperature = fields.real("temperature", sampling.temperature, -1.0, 1000.0);
    sampling.top_k = static_cast<int32_t>(fields.integer("top_k", sampling.top_k, -1, std::numeric_limits<int32_t>::max()));
    sampling.top_p = fields.real("top_p", sampling.top_p, 0.0, 1.0);
    sampling.min_p = fields.real("min_p", sampling.min_p, 0.0, 1.0);
    sampling.repeat_penalty = fields.real("repeat_penalty", sampling.repeat_penalty, 0.01, 100.0);
    sampling.repeat_last_n = static_cast<int32_t>(fields.integer("repeat_last_n", sampling.repeat_last_n, -1, std::numeric_limits<int32_t>::max()));
    const int64_t seed = fields.integer("seed", context.seed, -1, 0xFFFFFFFF);
    sampling.seed = seed < 0 ? 0xFFFFFFFF : static_cast<uint32_t>(seed);

    const std::array length_names{"n_predict", "max_tokens", "max_completion_tokens"};
    std::optional<int64_t> length;
    for (const std::string_view name : length_names) {
        if (fields.find(name) == nullptr) continue;
        const int64_t value = fields.integer(name, -1, -1, std::numeric_limits<int32_t>::max());
        if (length && *length != value) reject(name, "n_predict, max_tokens and max_completion_tokens say different things");
        length = value;
    }
    settings.n_predict = static_cast<int32_t>(length.value_or(-1));

    settings.stop = parse_stop(fields);
    settings.logit_bias = parse_logit_bias(fields, context.model);
    settings.stream = fields.boolean("stream", false);
    settings.ignore_eos = fields.boolean("ignore_eos", false);
    settings.cache_prompt = fields.boolean("cache_prompt", true);
    settings.return_tokens = fields.boolean("return_tokens", false);
    settings.return_progress = fields.boolean("return_progress", false);
    settings.timings_per_token = fields.boolean("timings_per_token", false);
    settings.id_slot = static_cast<int32_t>(fields.integer("id_slot", -1, -1, context.n_slots - 1));
    fields.find("model");   // one model is served, whatever it is called
    fields.find("n_keep");  // without effect: the context is never shifted
    refuse_unsupported(fields);
}

void parse_stream_options(Fields& fields, GenerationRequest& request) {
    const json::value* value = fields.find("stream_options");
    if (value == nullptr) return;
    if (!value->is_object()) wrong_type("stream_options", "an object", *value);
    const json::value* usage = value->as_object().if_contains("include_usage");
    if (usage == nullptr || usage->is_null()) return;
    if (!usage->is_bool()) wrong_type("stream_options.include_usage", "a boolean", *usage);
    request.include_usage = usage->as_bool();
}

void show_alternatives(GenerationRequest& request, int64_t n) {
    request.n_top_shown = static_cast<int32_t>(n);
    request.settings.n_probs = static_cast<int32_t>(std::max<int64_t>(n, 1));
}

void check_length(const GenerationRequest& request, const RequestContext& context) {
    const auto n_prompt = static_cast<int64_t>(request.prompt.size());
    if (n_prompt + 1 > context.n_ctx) throw ApiError::too_long(n_prompt, context.n_ctx);
}

void parse_prompt_field(Fields& fields, const RequestContext& context, GenerationRequest& request) {
    const json::value* prompt = fields.find("prompt");
    if (prompt == nullptr) reject("prompt", "is required");
    request.prompt = parse_prompt(*prompt, context.model);
    check_length(request, context);
    request.prompt_text = valid_utf8(context.model.join(request.prompt));
}

std::string message_content(const json::object& message, const std::string& role, const std::string& where) {
    if (const json::value* calls = message.if_contains("tool_calls"); calls != nullptr && !calls->is_null()) {
        reject(where, "tool calls are not supported by this engine");
    }
    const json::value* content = message.if_contains("content");
    if (content == nullptr || content->is_null()) {
        if (role == "assistant") return {};
        reject(where + ".content", "is required");
    }
    if (content->is_string()) return std::string(content->as_string());
    if (!content->is_array()) wrong_type(where + ".content", "a string or an array of parts", *content);
    std::string text;
    bool is_first = true;
    for (const json::value& part : content->as_array()) {
        const json::value* type = part.is_object() ? part.as_object().if_contains("type") : nullptr;
        const json::value* value = part.is_object() ? part.as_object().if_contains("text") : nullptr;
        const bool is_text = type != nullptr && type->is_string() && type->as_string() == "text" && value != nullptr && value->is_string();
        if (!is_text) reject(where + ".content", "only parts of type text are supported by this engine");
        if (!is_first) text += '\n';
        text += std::string_view(value->as_string());
        is_first = false;
    }
    return text;
}

std::vector<ChatMessage> parse_messages(Fields& fields) {
    const json::value* value = fields.find("messages");
    if (value == nullptr) reject("messages", "is required");
    if (!value->is_array()) wrong_type("messages", "an array", *value);
    std::vector<ChatMessage> messages;
    for (const json::value& entry : value->as_array()) {
        const std::string where = "messages[" + std::to_string(messages.size()) + "]";
        if (!entry.is_object()) wrong_type(where, "an object", entry);
        const json::value* role = entry.as_object().if_contains("role");
        if (role == nullptr || !role->is_string()) reject(where + ".role", "a string is required");
        ChatMessage message;
        message.role = std::string(role->as_string());
        message.content = message_content(entry.as_object(), message.role, where);
        messages.push_back(std::move(message));
    }
    if (messages.empty()) reject("messages", "must not be empty");
    return messages;
}

// As llama-server does, a last message of the assistant is the beginning of the reply.
std::string render_messages(Fields& fields, const RequestContext& context) {
    std::vector<ChatMessage> messages = parse_messages(fields);
    const bool add_generation_prompt = fields.boolean("add_generation_prompt", true);
    if (context.chat_template == nullptr) throw ApiError::invalid(context.chat_template_error);
    std::string beginning;
    if (add_generation_prompt && messages.back().role == "assistant") {
        beginning = std::move(messages.back().content);
        messages.pop_back();
    }
    const Model& model = context.model;
    const auto piece = [&](int32_t token) { return token < 0 ? std::string() : std::string(model.bytes(token, true)); };
    try {
        return context.chat_template->render(messages, add_generation_prompt, piece(model.bos()), piece(model.eos())) + beginning;
    } catch (const std::runtime_error& error) {
        throw ApiError::invalid("the chat template of the model: " + std::string(error.what()));
    }
}

}  // namespace

GenerationRequest parse_completion(const std::string& body, const RequestContext& context) {
    Fields fields(body);
    GenerationRequest request;
    parse_settings(fields, context, request);
    const int64_t n_probs = fields.integer("n_probs", 0, 0, most_probs);
    if (n_probs > 0) show_alternatives(request, n_probs);
    parse_prompt_field(fields, context, request);
    request.ignored_fields = fields.unknown();
    return request;
}

GenerationRequest parse_image_completion(const std::string& body, const RequestContext& context) {
    Fields fields(body);
    GenerationRequest request;
    parse_settings(fields, context, request);
    const int64_t n_probs = fields.integer("n_probs", 0, 0, most_probs);
    if (n_probs > 0) show_alternatives(request, n_probs);
    const json::value* prompt = fields.find("prompt");
    if (prompt == nullptr) reject("prompt", "is required");
    parse_parts(*prompt, context.model, context.n_embd, request.prompt, request.images);
    check_length(request, context);
    std::vector<int32_t> tokens;
    std::copy_if(request.prompt.begin(), request.prompt.end(), std::back_inserter(tokens), [](int32_t token) { return token >= 0; });
    request.prompt_text = valid_utf8(context.model.join(tokens));
    request.ignored_fields = fields.unknown();
    return request;
}

GenerationRequest parse_openai_completion(const std::string& body, const RequestContext& context) {
    Fields fields(body);
    GenerationRequest request;
    parse_settings(fields, context, request);
    parse_stream_options(fields, request);
    if (fields.find("logprobs") != nullptr) show_alternatives(request, fields.integer("logprobs", 0, 0, most_probs));
    parse_prompt_field(fields, context, request);
    request.ignored_fields = fields.unknown();
    return request;
}

GenerationRequest parse_chat(const std::string& body, const RequestContext& context) {
    Fields fields(body);
    GenerationRequest request;
    parse_settings(fields, context, request);
    parse_stream_options(fields, request);
    const int64_t n_top = fields.integer("top_logprobs", 0, 0, most_probs);
    if (fields.boolean("logprobs", false)) show_alternatives(request, n_top);
    else if (n_top > 0) reject("top_logprobs", "needs logprobs to be true");
    const std::string text = render_messages(fields, context);
    // A template that writes the first token itself must not get it twice.
    const Model& model = context.model;
    const bool has_bos = model.bos() >= 0 && text.starts_with(model.bytes(model.bos(), true));
    request.prompt = model.tokenize(text, !has_bos, true);
    if (request.prompt.empty()) reject("messages", "the chat template gave an empty prompt");
    check_length(request, context);
    request.prompt_text = valid_utf8(text);
    request.ignored_fields = fields.unknown();
    return request;
}

TokenizeRequest parse_tokenize(const std::string& body) {
    Fields fields(body);
    TokenizeRequest request;
    request.content = fields.text("content");
    request.add_special = fields.boolean("add_special", false);
    request.parse_special = fields.boolean("parse_special", true);
    request.with_pieces = fields.boolean("with_pieces", false);
    return request;
}

std::vector<int32_t> parse_detokenize(const std::string& body, const Model& model) {
    Fields fields(body);
    const json::value* value = fields.find("tokens");
    if (value == nullptr) reject("tokens", "is required");
    if (!value->is_array()) wrong_type("tokens", "an array of token ids", *value);
    std::vector<int32_t> tokens;
    for (const json::value& token : value->as_array()) {
        const auto id = whole_number(token);
        if (!id || *id < 0 || *id >= model.n_vocab()) reject("tokens", show(token) + " is not a token id of this vocabulary");
        tokens.push_back(static_cast<int32_t>(*id));
    }
    return tokens;
}

std::string parse_apply_template(const std::string& body, const RequestContext& context) {
    Fields fields(body);
    return render_messages(fields, context);
}

std::string parse_file_name(const std::string& body) {
    Fields fields(body);
    std::string name = fields.text("filename");
    const bool is_plain = !name.empty() && name.size() <= 200 && name.front() != '.' && name.find("..") == std::string::npos &&
                          std::none_of(name.begin(), name.end(), [](char c) {
                              return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20U || c == 0x7F;
                          });
    if (!is_plain) reject("filename", "must be a plain file name: no slash, no '..', no leading dot, at most 200 bytes");
    return name;
}

std::string json_member(std::string_view object, std::string_view name) {
    boost::system::error_code error;
    const json::value value = json::parse(object, error);
    if (error || !value.is_object()) return "null";
    const json::value* member = value.as_object().if_contains(name);
    return member == nullptr ? "null" : json::serialize(*member);
}

}  // namespace assay::server
