#include "prompt_parts.h"

#include <algorithm>

#include "request_fields.h"

namespace assay::server {
namespace {

namespace json = boost::json;

void append_prompt_part(const json::value& part, bool is_first, const Model& model, std::vector<int32_t>& tokens) {
    if (part.is_string()) {
        const auto& text = part.as_string();
        const auto ids = model.tokenize({text.data(), text.size()}, is_first, true);
        tokens.insert(tokens.end(), ids.begin(), ids.end());
        return;
    }
    if (!part.is_number()) wrong_type("prompt", "a string, token ids or an array of both", part);
    const auto id = whole_number(part);
    if (!id || *id < 0 || *id >= model.n_vocab()) {
        reject("prompt", "token id " + show(part) + " is not in the vocabulary (0 to " + std::to_string(model.n_vocab() - 1) + ")");
    }
    tokens.push_back(static_cast<int32_t>(*id));
}

}  // namespace

void parse_parts(const json::value& value, const Model& model, int32_t n_embd, std::vector<int32_t>& tokens,
                 std::vector<PromptImage>& images) {
    if (!value.is_array() || value.as_array().empty()) reject("prompt", "an array of strings, token ids and images is needed");
    bool is_first = true;
    for (const json::value& part : value.as_array()) {
        if (part.is_object()) {
            images.push_back(parse_image(part, tokens.size(), n_embd));
            tokens.insert(tokens.end(), images.back().n_rows(), -1);
        } else {
            append_prompt_part(part, is_first, model, tokens);
        }
        is_first = false;
    }
    if (tokens.empty()) reject("prompt", "must not be empty");
    if (tokens.back() < 0) reject("prompt", "must end with text: the reply follows a token");
}

std::vector<int32_t> parse_prompt(const json::value& value, const Model& model) {
    std::vector<int32_t> tokens;
    if (value.is_string()) {
        append_prompt_part(value, true, model, tokens);
    } else if (value.is_array()) {
        const json::array& parts = value.as_array();
        // [ids], ["text"]: a list of one prompt, as OpenAI's clients send it.
        if (parts.size() == 1 && parts[0].is_array()) return parse_prompt(parts[0], model);
        const bool is_list = parts.size() > 1 && std::all_of(parts.begin(), parts.end(), [](const json::value& p) { return p.is_string() || p.is_array(); });
        if (is_list) reject("prompt", "several prompts in one request are not supported; send one request for each");
        bool is_first = true;
        for (const json::value& part : parts) {
            append_prompt_part(part, is_first, model, tokens);
            is_first = false;
        }
    } else {
        wrong_type("prompt", "a string, token ids or an array of both", value);
    }
    if (tokens.empty()) reject("prompt", "must not be empty");
    return tokens;
}

}  // namespace assay::server
