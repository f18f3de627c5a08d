#include "image_prompt.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "errors.h"
#include "request_fields.h"

namespace assay::server {
namespace {

namespace json = boost::json;

constexpr int64_t most_side = 1024;

std::optional<uint32_t> sextet(char letter) {
    static constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t at = letters.find(letter);
    return at == std::string_view::npos ? std::nullopt : std::optional(static_cast<uint32_t>(at));
}

// Nothing where the text is no padded base64.
std::optional<std::vector<uint8_t>> decode_base64(std::string_view text) {
    if (text.size() % 4 != 0) return std::nullopt;
    const size_t n_padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
    std::vector<uint8_t> bytes;
    bytes.reserve(text.size() / 4 * 3);
    for (size_t i = 0; i < text.size(); i += 4) {
        uint32_t bits = 0;
        const bool is_last = i + 4 == text.size();
        for (size_t k = 0; k < 4; ++k) {
            const bool is_padding = is_last && k >= 4 - n_padding;
            const auto value = is_padding ? std::optional<uint32_t>(0) : sextet(text[i + k]);
            if (!value) return std::nullopt;
            bits = bits << 6U | *value;
        }
        for (size_t k = 0; k < (is_last ? 3 - n_padding : 3); ++k) bytes.push_back(static_cast<uint8_t>(bits >> (16 - 8 * k)));
    }
    return bytes;
}

int32_t side(const json::object& image, std::string_view name) {
    const json::value* value = image.if_contains(name);
    const auto number = value == nullptr ? std::nullopt : whole_number(*value);
    if (!number || *number < 1 || *number > most_side) {
        reject("prompt.image." + std::string(name), "an integer from 1 to " + std::to_string(most_side) + " is needed");
    }
    return static_cast<int32_t>(*number);
}

}  // namespace

Place place_of(const std::vector<PromptImage>& images, size_t entry) {
    int64_t shift = 0;  // of a position from the number of the entry
    for (const PromptImage& image : images) {
        if (entry < image.first) break;
        const auto n_rows = static_cast<int64_t>(image.n_rows());
        const auto row = static_cast<int64_t>(entry - image.first);
        if (row < n_rows) {
            const auto p = static_cast<int32_t>(static_cast<int64_t>(image.first) + shift);
            const size_t n_embd = image.embeddings.size() / image.n_rows();
            return {p, p + static_cast<int32_t>(row) / image.width, p + static_cast<int32_t>(row) % image.width,
                    image.embeddings.data() + static_cast<size_t>(row) * n_embd};
        }
        shift += std::max(image.height, image.width) - n_rows;
    }
    const auto p = static_cast<int32_t>(static_cast<int64_t>(entry) + shift);
    return {p, p, p, nullptr};
}

PromptImage parse_image(const json::value& part, size_t first, int32_t n_embd) {
    const json::value* found = part.is_object() ? part.as_object().if_contains("image") : nullptr;
    if (found == nullptr || !found->is_object()) reject("prompt", "a part is a string, a token id or {\"image\": {...}}");
    const json::object& description = found->as_object();
    PromptImage image{first, side(description, "height"), side(description, "width"), {}};
    const json::value* text = description.if_contains("embeddings");
    if (text == nullptr || !text->is_string()) reject("prompt.image.embeddings", "a string is needed");
    const auto bytes = decode_base64(text->as_string());
    if (!bytes) reject("prompt.image.embeddings", "is no base64");
    const size_t n_values = image.n_rows() * static_cast<size_t>(n_embd);
    if (bytes->size() != n_values * sizeof(float)) {
        reject("prompt.image.embeddings", std::to_string(n_values * sizeof(float)) + " bytes are needed (height, width and " +
                                              std::to_string(n_embd) + " numbers a row), got " + std::to_string(bytes->size()));
    }
    image.embeddings.resize(n_values);
    std::memcpy(image.embeddings.data(), bytes->data(), bytes->size());
    if (!std::all_of(image.embeddings.begin(), image.embeddings.end(), [](float value) { return std::isfinite(value); })) {
        reject("prompt.image.embeddings", "holds a value that is not finite");
    }
    return image;
}

}  // namespace assay::server
