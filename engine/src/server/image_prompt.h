// Images in a prompt, as embeddings that a vision tower would have made: for tests, there is no tower.
#pragma once

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace assay::server {

// height * width rows of a prompt, from `first` on; -1 stands for their tokens. The rows stand at t = P, the position of
// the first one, and at (P + row, P + column); the text goes on at P + max(height, width).
struct PromptImage {
    size_t first = 0;
    int32_t height = 0;
    int32_t width = 0;
    std::vector<float> embeddings;  // [height * width][n_embd]

    size_t n_rows() const { return static_cast<size_t>(height) * static_cast<size_t>(width); }
};

// Where an entry of a sequence stands; `embedding` is null for a token.
struct Place {
    int32_t t = 0;
    int32_t y = 0;
    int32_t x = 0;
    const float* embedding = nullptr;
};
Place place_of(const std::vector<PromptImage>& images, size_t entry);

// A part of a prompt: {"image": {"height", "width", "embeddings": little-endian f32 in base64}}. Throws ApiError.
PromptImage parse_image(const boost::json::value& part, size_t first, int32_t n_embd);

}  // namespace assay::server
