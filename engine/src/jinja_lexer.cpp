#include "jinja_lexer.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "unicode.h"

namespace assay::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name(char c) { return is_name_start(c) || is_digit(c); }

std::string with_plain_line_ends(std::string_view source) {
    std::string text;
    text.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
        if (source[i] == '\r') {
            text.push_back('\n');
            if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
        } else {
            text.push_back(source[i]);
        }
    }
    if (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
}

// Start of the white space at the end of `text`.
size_t trimmed_end(std::string_view text) {
    size_t end = 0;
    for (size_t at = 0; at < text.size();) {
        const CodePoint point = decode_utf8(text, at);
        at += point.size;
        if (!is_python_space(point.code)) end = at;
    }
    return end;
}

class Lexer {
public:
    explicit Lexer(std::string_view source) : source_(with_plain_line_ends(source)) {}

    std::vector<Token> run() {
        while (at_ < source_.size()) lex_text();
        push(TokenKind::end, "the end of the template");
        return std::move(tokens_);
    }

private:
    char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }
    bool is_at(std::string_view wanted) const { return std::string_view(source_).substr(at_, wanted.size()) == wanted; }
    std::string_view rest() const { return std::string_view(source_).substr(at_); }

    void advance(size_t bytes) {
        line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                             source_.begin() + static_cast<ptrdiff_t>(at_ + bytes), '\n'));
        at_ += bytes;
    }
    void skip_space() {
        while (at_ < source_.size()) {
            const CodePoint point = decode_utf8(source_, at_);
            if (!is_python_space(point.code)) return;
            advance(point.size);
        }
    }
    void push(TokenKind kind, std::string text) {
        Token token;
        token.kind = kind;
        token.line = line_;
        token.text = std::move(text);
        tokens_.push_back(std::move(token));
    }

    // Text up to the next tag, then that tag.
    void lex_text() {
        size_t begin = at_;
        while (begin < source_.size()) {
            begin = source_.find('{', begin);
            if (begin == std::string::npos) begin = source_.size();
            if (begin + 1 < source_.size() &&
                (source_[begin + 1] == '{' || source_[begin + 1] == '%' || source_[begin + 1] == '#')) {
                break;
            }
            if (begin < source_.size()) ++begin;
        }
        std::string_view text = std::string_view(source_).substr(at_, begin - at_);
        const bool is_last = begin + 1 >= source_.size();
        const char kind = is_last ? '\0' : source_[begin + 1];
        const char sign = begin + 2 < source_.size() ? source_[begin + 2] : '\0';
        if (!is_last) {
            if (sign == '-') {
                text = text.substr(0, trimmed_end(text));
            } else if (sign != '+' && kind != '{') {
                // lstrip_blocks: white space between the start of the line and the tag goes.
                const size_t line_start = text.rfind('\n') + 1;  // npos + 1 = 0
                if ((line_start > 0 || is_line_start_) && trimmed_end(text.substr(line_start)) == 0) {
                    text = text.substr(0, line_start);
                }
            }
        }
        if (!text.empty()) push(TokenKind::text, std::string(text));
        advance(begin - at_);
        if (is_last) {
            advance(source_.size() - at_);
            return;
        }
        const int line = line_;
        advance(2);
        if (peek() == '-' || peek() == '+') advance(1);
        if (kind == '#') {
            lex_comment(line);
        } else {
            tokens_.push_back({kind == '%' ? TokenKind::block_begin : TokenKind::output_begin, line, "", 0, 0});
            lex_tag(kind == '%' ? '%' : '}', line);
        }
        is_line_start_ = source_[at_ - 1] == '\n';
    }

    void lex_comment(int line) {
        const size_t end = source_.find("#}", at_);
        if (end == std::string::npos) fail_at(line, "the comment has no end");
        const char sign = end > at_ ? source_[end - 1] : '\0';
        advance(end + 2 - at_);
        if (sign == '-') {
            skip_space();
        } else if (sign != '+' && peek() == '\n') {
            advance(1);
        }
    }

    // The end mark of the tag at the current place, with what it swallows; false when there is none.
    bool lex_tag_end(char mark) {
        const std::string plain{mark, '}'};
        if (is_at("-" + plain)) {
            advance(3);
            skip_space();
            return true;
        }
        if (mark == '%' && is_at("+%}")) {
            advance(3);
            return true;
        }
        if (!is_at(plain)) return false;
        advance(2);
        if (mark == '%' && peek() == '\n') advance(1);
        return true;
    }

    void lex_tag(char mark, int line) {
        std::string open;  // brackets not yet closed
        bool is_first = true;
        while (true) {
            skip_space();
            if (at_ >= source_.size()) fail_at(line, "the tag has no end");
            const int token_line = line_;
            if (open.empty() && lex_tag_end(mark)) {
                tokens_.push_back({mark == '%' ? TokenKind::block_end : TokenKind::output_end, token_line, "", 0, 0});
                return;
            }
            const char c = peek();
            if (is_digit(c)) {
                lex_number();
            } else if (is_name_start(c)) {
                lex_name(is_first && mark == '%');
            } else if (c == '\'' || c == '"') {
                lex_string(c);
            } else {
                lex_punctuation(open);
            }
            is_first = false;
        }
    }

    void lex_number() {
        size_t size = 0;
        while (is_digit(peek(size))) ++size;
        const bool follows_dot = at_ > 0 && source_[at_ - 1] == '.';
        bool is_real = false;
        if (!follows_dot) {
            if (peek(size) == '.' && is_digit(peek(size + 1))) {
                is_real = true;
                ++size;
                while (is_digit(peek(size))) ++size;
            }
            if (peek(size) == 'e' || peek(size) == 'E') {
                const size_t digits = size + (peek(size + 1) == '+' || peek(size + 1) == '-' ? 2 : 1);
                if (is_digit(peek(digits))) {
                    is_real = true;
                    size = digits;
                    while (is_digit(peek(size))) ++size;
                }
            }
        }
        const std::string text(rest().substr(0, size));
        if (is_name(peek(size))) fail_at(line_, "the number '" + text + peek(size) + "...' is not supported");
        Token token;
        token.kind = is_real ? TokenKind::real : TokenKind::integer;
        token.line = line_;
        token.text = text;
        const char* first = text.data();
        const char* last = first + text.size();
        const auto parsed =
            is_real ? std::from_chars(first, last, token.real) : std::from_chars(first, last, token.integer);
        const bool has_leading_zero = !is_real && text.size() > 1 && text[0] == '0' && token.integer != 0;
        if (parsed.ec != std::errc() || has_leading_zero) fail_at(line_, "the number '" + text + "' is not supported");
        advance(size);
        tokens_.push_back(std::move(token));
    }

    void lex_name(bool is_statement) {
        size_t size = 0;
        while (is_name(peek(size))) ++size;
        std::string name(rest().substr(0, size));
        // Its body would have to be cut by other rules.
        if (is_statement && name == "raw") fail_at(line_, "the statement 'raw' is not supported");
        push(TokenKind::name, std::move(name));
        advance(size);
    }

    uint32_t lex_hex(size_t digits) {
        uint32_t value = 0;
        for (size_t i = 0; i < digits; ++i) {
            const char c = peek(i);
            const int digit = is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                                  : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
            if (digit < 0) fail_at(line_, "an escape in a string has too few hexadecimal digits");
            value = value * 16 + static_cast<uint32_t>(digit);
        }
        advance(digits);
        return value;
    }

    void lex_escape(std::string& value) {
        const char c = peek();
        uint32_t code = 0;
        switch (c) {
            case 'n': code = '\n'; break;
            case 't': code = '\t'; break;
            case 'r': code = '\r'; break;
            case 'a': code = '\a'; break;
            case 'b': code = '\b'; break;
            case 'f': code = '\f'; break;
            case 'v': code = '\v'; break;
            case '\\':
            case '\'':
            case '"': code = static_cast<uint32_t>(c); break;
            case '\n': advance(1); return;
            case 'x':
            case 'u':
            case 'U':
                advance(1);
                code = lex_hex(c == 'x' ? 2 : c == 'u' ? 4 : 8);
                if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
                    fail_at(line_, "an escape in a string names no character");
                }
                append_utf8(value, code);
                return;
            default:
                if (c >= '0' && c <= '7') {
                    for (int i = 0; i < 3 && peek() >= '0' && peek() <= '7'; ++i) {
                        code = code * 8 + static_cast<uint32_t>(peek() - '0');
                        advance(1);
                    }
                    append_utf8(value, code);
                    return;
                }
                if (c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
                    fail_at(line_, "the escape '\\" + std::string(rest().substr(0, decode_utf8(source_, at_).size)) +
                                       "' in a string is not supported");
                }
                value.push_back('\\');  // Python keeps the backslash of what is no escape
                code = static_cast<uint32_t>(c);
        }
        advance(1);
        append_utf8(value, code);
    }

    void lex_string(char quote) {
        const int line = line_;
        std::string value;
        advance(1);
        while (true) {
            if (at_ >= source_.size()) fail_at(line, "the string has no end");
            const char c = peek();
            if (c == quote) break;
            if (c == '\\') {
                advance(1);
                if (at_ >= source_.size()) fail_at(line, "the string has no end");
                lex_escape(value);
            } else {
                value.push_back(c);
                advance(1);
            }
        }
        advance(1);
        push(TokenKind::string, std::move(value));
        tokens_.back().line = line;
    }

    void lex_punctuation(std::string& open) {
        constexpr std::string_view kLong[] = {"//", "**", "==", "!=", ">=", "<="};
        for (const std::string_view mark : kLong) {
            if (is_at(mark)) {
                push(TokenKind::punctuation, std::string(mark));
                advance(2);
                return;
            }
        }
        const char c = peek();
        if (std::string_view("+-*/%~[](){}><=.:|,").find(c) == std::string_view::npos || c == '\0') {
            fail_at(line_, "unexpected character '" + std::string(rest().substr(0, decode_utf8(source_, at_).size)) + "'");
        }
        if (c == '(' || c == '[' || c == '{') open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
        if (c == ')' || c == ']' || c == '}') {
            if (open.empty() || open.back() != c) fail_at(line_, std::string("unexpected '") + c + "'");
            open.pop_back();
        }
        push(TokenKind::punctuation, std::string(1, c));
        advance(1);
    }

    std::string source_;
    size_t at_ = 0;
    int line_ = 1;
    bool is_line_start_ = true;
    std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> lex(std::string_view source) { return Lexer(source).run(); }

void fail_at(int line, const std::string& text) {
    throw std::runtime_error("line " + std::to_string(line) + ": " + text);
}

}  // namespace assay::jinja
