// The prompt of a request to token ids, and images among its parts. What is wrong with it is an ApiError.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <vector>

#include "image_prompt.h"
#include "loaded_model.h"

namespace assay::server {

// A text, token ids, or an array of both.
std::vector<int32_t> parse_prompt(const boost::json::value& value, const Model& model);
// An array of the same with images among them, whose rows are -1 in `tokens`.
void parse_parts(const boost::json::value& value, const Model& model, int32_t n_embd, std::vector<int32_t>& tokens,
                 std::vector<PromptImage>& images);

}  // namespace assay::server
