// Bytes of generated tokens to text that may be sent: whole UTF-8 characters, no part of a stop string.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace assay::server {

// The text with each invalid part (Unicode 15, section 3.9, "maximal subpart") replaced by U+FFFD.
// n_replaced, where given, grows by the number of replacements.
std::string valid_utf8(std::string_view bytes, size_t* n_replaced = nullptr);

// Bytes at the end that begin a character which the text does not finish (0 to 3).
size_t unfinished_utf8(std::string_view bytes);

class TextOutput {
public:
    explicit TextOutput(std::vector<std::string> stop_strings);

    // Takes the bytes of one token and returns what may be sent now. Held back are an unfinished
    // character and the longest end that may still become a stop string. Once a stop string is
    // complete, the text before it is returned and nothing after.
    std::string add(std::string_view bytes);
    // Everything that was held back: no more tokens will come.
    std::string flush();

    bool is_stopped() const { return !stopping_word_.empty(); }
    const std::string& stopping_word() const { return stopping_word_; }
    bool has_new_line() const { return has_new_line_; }
    // Invalid parts that were sent as U+FFFD; the token ids stay exact.
    size_t n_replaced() const { return n_replaced_; }

private:
    std::string send(size_t n_bytes);

    std::vector<std::string> stop_strings_;
    std::string held_;
    std::string stopping_word_;
    bool has_new_line_ = false;
    size_t n_replaced_ = 0;
};

}  // namespace assay::server
