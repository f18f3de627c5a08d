// UTF-8 and the few Unicode properties that pre-tokenizers and chat templates ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace assay {

// The classes of \p{L}, \p{M}, \p{N} and \s; everything else, unassigned code points too, is `other`.
enum class CharClass : uint8_t { other, letter, mark, number, space };

struct CodePoint {
    char32_t code = 0;  // U+FFFD for a byte that is no valid UTF-8
    uint8_t size = 0;   // bytes taken: 1 to 4; 0 only at the end of the text
};

// The code point that starts at `at`. An invalid byte is a code point of its own with size 1, so that every byte
// of any text belongs to exactly one code point and nothing is lost.
CodePoint decode_utf8(std::string_view text, size_t at);

void append_utf8(std::string& text, char32_t code);

// Bytes taken by the code points before the end of `text`, were more bytes to come: the length of the longest prefix
// that does not end inside a character. Bytes that can never become valid count as complete.
size_t complete_utf8(std::string_view text);

CharClass char_class(char32_t code);

// What Python's str.isspace says: White_Space and the separators U+001C to U+001F.
bool is_python_space(char32_t code);

// Full case mappings as Python's str.upper and str.lower. Throws std::runtime_error for lower() of U+03A3 (capital
// sigma), whose result depends on the text around it.
std::string upper_utf8(std::string_view text);
std::string lower_utf8(std::string_view text);

std::string_view unicode_version();

}  // namespace assay
