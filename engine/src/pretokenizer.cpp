#include "pretokenizer.h"

#include "unicode.h"

namespace assay {
namespace {

struct NamedPretokenizer {
    std::string_view name;
    Pretokenizer facts;
};

constexpr Pretokenizer kSmollm{PretokenRule::smollm, false, false};
constexpr Pretokenizer kGpt2{PretokenRule::gpt2, false, false};
constexpr Pretokenizer kQwen2{PretokenRule::qwen2, false, false};
constexpr Pretokenizer kQwen35{PretokenRule::qwen35, false, false};
constexpr Pretokenizer kLlama3{PretokenRule::llama_bpe, true, true};
// The pattern of Llama 3 in vocabularies that are merged in the ordinary way and start without bos.
constexpr Pretokenizer kLlama3Merged{PretokenRule::llama_bpe, false, false};

constexpr NamedPretokenizer kPretokenizers[] = {
    {"smollm", kSmollm},
    {"command-r", kSmollm},
    {"refact", kSmollm},
    {"starcoder", kSmollm},
    {"codeshell", kSmollm},
    {"gpt-2", kGpt2},
    {"gpt2", kGpt2},
    {"phi-2", kGpt2},
    {"qwen2", kQwen2},
    {"deepseek-r1-qwen", kQwen2},
    {"qwen35", kQwen35},
    {"stablelm2", kQwen2},
    {"megrez", kQwen2},
    {"llama-bpe", kLlama3},
    {"llama3", kLlama3},
    {"llama-v3", kLlama3},
    {"falcon3", kLlama3},
    {"pixtral", kLlama3},
    {"smaug-bpe", kLlama3Merged},
    {"dbrx", kLlama3Merged},
};

struct Glyph {
    char32_t code = 0;
    uint8_t size = 0;  // 0 at the end of the text
    CharClass kind = CharClass::other;

    bool is_line_end() const { return code == '\r' || code == '\n'; }
    bool is(CharClass wanted) const { return size != 0 && kind == wanted; }
};

// `marks`: the class that marks count as, `other` in every rule but one.
Glyph glyph_at(std::string_view text, size_t at, CharClass marks = CharClass::other) {
    const CodePoint point = decode_utf8(text, at);
    if (point.size == 0) return {};
    const CharClass kind = char_class(point.code);
    return {point.code, point.size, kind == CharClass::mark ? marks : kind};
}

// End of the longest run of `kind` that starts at `at`.
size_t run_end(std::string_view text, size_t at, CharClass kind, CharClass marks = CharClass::other) {
    for (Glyph glyph = glyph_at(text, at, marks); glyph.is(kind); glyph = glyph_at(text, at, marks)) at += glyph.size;
    return at;
}

// Folds a code point as a case-insensitive pattern over a to z does: ASCII, and the two other characters whose simple
// fold is an ASCII letter.
char32_t fold(char32_t code) {
    if (code >= 'A' && code <= 'Z') return code + 0x20;
    if (code == 0x17F) return 's';   // long s
    if (code == 0x212A) return 'k';  // kelvin sign
    return code;
}

// End of 's 't 're 've 'm 'll 'd at `at` (which holds the apostrophe), or `at` when there is none.
size_t contraction_end(std::string_view text, size_t at, bool is_case_blind) {
    const auto letter = [&](const Glyph& glyph) { return is_case_blind ? fold(glyph.code) : glyph.code; };
    const Glyph first = glyph_at(text, at + 1);
    if (first.size == 0) return at;
    const size_t second_at = at + 1 + first.size;
    const char32_t a = letter(first);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return second_at;
    const Glyph second = glyph_at(text, second_at);
    if (second.size == 0) return at;
    const char32_t b = letter(second);
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return second_at + second.size;
    return at;
}

// \s+(?!\S)|\s+ : all of the run at the end of the text, else all but its last character, which the next word may take.
size_t space_end(std::string_view text, size_t at) {
    size_t end = at;
    size_t last = at;
    for (Glyph glyph = glyph_at(text, at); glyph.is(CharClass::space); glyph = glyph_at(text, end)) {
        last = end;
        end += glyph.size;
    }
    return end == text.size() || last == at ? end : last;
}

size_t gpt2_end(std::string_view text, size_t at) {
    const Glyph first = glyph_at(text, at);
    if (first.code == '\'') {
        const size_t end = contraction_end(text, at, false);
        if (end != at) return end;
    }
    const size_t body_at = first.code == ' ' ? at + 1 : at;
    const Glyph body = glyph_at(text, body_at);
    if (body.size != 0 && body.kind != CharClass::space) return run_end(text, body_at, body.kind);
    return space_end(text, at);
}

// \s*[\r\n]+ : up to the last line end of the run of white space, or `at` when it holds none.
size_t line_end(std::string_view text, size_t at) {
    size_t end = at;
    for (Glyph glyph = glyph_at(text, at); glyph.is(CharClass::space); glyph = glyph_at(text, at)) {
        at += glyph.size;
        if (glyph.is_line_end()) end = at;
    }
    return end;
}

// llama_bpe, qwen2 and qwen35, which differ in how many digits a word takes and in what marks are. Where marks are
// letters, a word may begin with one: the optional character before a word may be a mark too, so the match is the same.
size_t cl100k_end(std::string_view text, size_t at, int digits_max, CharClass marks = CharClass::other) {
    const Glyph first = glyph_at(text, at, marks);
    if (first.code == '\'') {
        const size_t end = contraction_end(text, at, true);
        if (end != at) return end;
    }
    if (first.kind == CharClass::letter) return run_end(text, at, CharClass::letter, marks);
    if (first.kind == CharClass::number) {
        size_t end = at + first.size;
        for (int digits = 1; digits < digits_max; ++digits) {
            const Glyph glyph = glyph_at(text, end);
            if (!glyph.is(CharClass::number)) break;
            end += glyph.size;
        }
        return end;
    }
    const Glyph second = glyph_at(text, at + first.size, marks);
    if (!first.is_line_end() && second.is(CharClass::letter)) {
        return run_end(text, at + first.size, CharClass::letter, marks);
    }
    const size_t body_at = first.code == ' ' ? at + 1 : at;
    if (glyph_at(text, body_at, marks).is(CharClass::other)) {
        size_t end = run_end(text, body_at, CharClass::other, marks);
        while (end < text.size() && (text[end] == '\r' || text[end] == '\n')) ++end;
        return end;
    }
    const size_t end = line_end(text, at);
    return end != at ? end : space_end(text, at);
}

}  // namespace

std::optional<Pretokenizer> find_pretokenizer(std::string_view name) {
    for (const auto& entry : kPretokenizers) {
        if (entry.name == name) return entry.facts;
    }
    return std::nullopt;
}

std::string pretokenizer_names() {
    std::string names;
    for (const auto& entry : kPretokenizers) {
        if (!names.empty()) names += ", ";
        names += entry.name;
    }
    return names;
}

bool WordSplitter::next(std::string_view& word) {
    if (at_ >= text_.size()) return false;
    size_t end = 0;
    switch (rule_) {
        case PretokenRule::gpt2:
            end = gpt2_end(text_, at_);
            break;
        case PretokenRule::qwen2:
            end = cl100k_end(text_, at_, 1);
            break;
        case PretokenRule::qwen35:
            end = cl100k_end(text_, at_, 1, CharClass::letter);
            break;
        case PretokenRule::llama_bpe:
            end = cl100k_end(text_, at_, 3);
            break;
        case PretokenRule::smollm: {
            const Glyph first = glyph_at(text_, at_);
            if (first.kind == CharClass::number) {
                end = at_ + first.size;
                break;
            }
            if (section_end_ <= at_) {
                section_end_ = at_;
                for (Glyph glyph = first; glyph.size != 0 && glyph.kind != CharClass::number;
                     glyph = glyph_at(text_, section_end_)) {
                    section_end_ += glyph.size;
                }
            }
            end = gpt2_end(text_.substr(0, section_end_), at_);
            break;
        }
    }
    word = text_.substr(at_, end - at_);
    at_ = end;
    return true;
}

}  // namespace assay
