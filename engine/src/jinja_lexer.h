// Cuts a template into text and the tokens inside its tags.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace assay::jinja {

enum class TokenKind : uint8_t { text, block_begin, block_end, output_begin, output_end, name, string, integer, real,
                                 punctuation, end };

struct Token {
    TokenKind kind = TokenKind::end;
    int line = 0;
    std::string text;  // of a name, string, punctuation or text; for error messages too
    int64_t integer = 0;
    double real = 0;
};

// White space around tags is treated as with trim_blocks and lstrip_blocks on, the trailing line end of the source is
// dropped, and line ends become \n. The last token has the kind `end`. Throws std::runtime_error ("line 3: ...").
std::vector<Token> lex(std::string_view source);

[[noreturn]] void fail_at(int line, const std::string& text);

}  // namespace assay::jinja
