#include "text_output.h"

#include <algorithm>
#include <utility>

namespace assay::server {
namespace {

struct Character {
    size_t size;       // bytes of the character, or of the maximal invalid part
    bool is_valid;
    bool is_cut;       // a correct beginning that the text ends in
};

// Table 3-7 of Unicode 15: the second byte is narrower after E0, ED, F0 and F4.
Character next_character(std::string_view bytes) {
    const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
    const unsigned char lead = at(0);
    if (lead < 0x80U) return {1, true, false};
    size_t size = 0;
    if (lead >= 0xC2U && lead <= 0xDFU) size = 2;
    else if (lead >= 0xE0U && lead <= 0xEFU) size = 3;
    else if (lead >= 0xF0U && lead <= 0xF4U) size = 4;
    else return {1, false, false};
    unsigned char low = 0x80U;
    unsigned char high = 0xBFU;
    if (lead == 0xE0U) low = 0xA0U;
    if (lead == 0xEDU) high = 0x9FU;
    if (lead == 0xF0U) low = 0x90U;
    if (lead == 0xF4U) high = 0x8FU;
    for (size_t i = 1; i < size; ++i) {
        if (i == bytes.size()) return {i, false, true};
        if (at(i) < low || at(i) > high) return {i, false, false};
        low = 0x80U;
        high = 0xBFU;
    }
    return {size, true, false};
}

}  // namespace

std::string valid_utf8(std::string_view bytes, size_t* n_replaced) {
    std::string text;
    text.reserve(bytes.size());
    while (!bytes.empty()) {
        const Character next = next_character(bytes);
        if (next.is_valid) {
            text += bytes.substr(0, next.size);
        } else {
            text += "\xEF\xBF\xBD";
            if (n_replaced != nullptr) ++*n_replaced;
        }
        bytes.remove_prefix(next.size);
    }
    return text;
}

size_t unfinished_utf8(std::string_view bytes) {
    // The last lead byte is at most three bytes from the end of an unfinished character.
    for (size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
        const std::string_view tail = bytes.substr(bytes.size() - back);
        if ((static_cast<unsigned char>(tail[0]) & 0xC0U) == 0x80U) continue;
        return next_character(tail).is_cut ? back : 0;
    }
    return 0;
}

TextOutput::TextOutput(std::vector<std::string> stop_strings) : stop_strings_(std::move(stop_strings)) {}

std::string TextOutput::send(size_t n_bytes) {
    std::string text = valid_utf8(std::string_view(held_).substr(0, n_bytes), &n_replaced_);
    held_.erase(0, n_bytes);
    has_new_line_ = has_new_line_ || text.find('\n') != std::string::npos;
    return text;
}

std::string TextOutput::add(std::string_view bytes) {
    if (is_stopped()) return {};
    held_ += bytes;

    // Whatever could begin a stop string is still held, so that no match starts before `held_`.
    size_t first = std::string::npos;
    for (const std::string& word : stop_strings_) {
        const size_t found = held_.find(word);
        if (found < first) {
            first = found;
            stopping_word_ = word;
        }
    }
    if (first != std::string::npos) {
        std::string text = send(first);
        held_.clear();
        return text;
    }

    size_t n_hold = unfinished_utf8(held_);
#if defined(ASSAY_FAULT_SPLIT_UTF8)
    n_hold = 0;  // sends the beginning of a character that the next token ends
#endif
    for (const std::string& word : stop_strings_) {
        const size_t longest = std::min(word.size() - 1, held_.size());
        for (size_t n = longest; n > n_hold; --n) {
            if (held_.compare(held_.size() - n, n, word, 0, n) == 0) {
                n_hold = n;
                break;
            }
        }
    }
    return send(held_.size() - n_hold);
}

std::string TextOutput::flush() { return send(held_.size()); }

}  // namespace assay::server
