// Request bodies to typed requests. What is wrong with a body is an ApiError that names the field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chat_template.h"
#include "generation.h"
#include "loaded_model.h"

namespace assay::server {

// What the parsers must know of the server.
struct RequestContext {
    const Model& model;
    const ChatTemplate* chat_template = nullptr;  // null: the error text says why
    std::string chat_template_error;
    int32_t n_ctx = 0;    // of one sequence
    int32_t n_slots = 1;
    uint32_t seed = 0xFFFFFFFF;  // of requests that name none
    int32_t n_embd = 0;   // numbers of a row of an image; 0: the model or the settings allow no images
};

struct GenerationRequest {
    GenerationSettings settings;
    std::vector<int32_t> prompt;  // -1: a row of an image
    std::vector<PromptImage> images;
    std::string prompt_text;  // without images; valid UTF-8, special tokens as their text
    std::vector<std::string> ignored_fields;
    bool include_usage = false;
    int32_t n_top_shown = 0;  // alternatives shown with each token
};

GenerationRequest parse_completion(const std::string& body, const RequestContext& context);
// The same with images among the parts of the prompt.
GenerationRequest parse_image_completion(const std::string& body, const RequestContext& context);
GenerationRequest parse_openai_completion(const std::string& body, const RequestContext& context);
GenerationRequest parse_chat(const std::string& body, const RequestContext& context);

struct TokenizeRequest {
    std::string content;
    bool add_special = false;
    bool parse_special = true;
    bool with_pieces = false;
};
TokenizeRequest parse_tokenize(const std::string& body);
std::vector<int32_t> parse_detokenize(const std::string& body, const Model& model);
// The text that the chat route would evaluate.
std::string parse_apply_template(const std::string& body, const RequestContext& context);
// The name in a slot action, checked to be a plain file name.
std::string parse_file_name(const std::string& body);

// A member of a JSON object that the engine wrote, as JSON; "null" where it is missing.
std::string json_member(std::string_view object, std::string_view name);

}  // namespace assay::server
