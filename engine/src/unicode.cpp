#include "unicode.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace assay {
namespace {

struct ClassRange {
    char32_t first;
    char32_t last;
    CharClass kind;
};
struct CaseRun {
    char32_t first;
    char32_t last;
    int32_t stride;
    int32_t delta;
};
struct CaseSeveral {
    char32_t code;
    char32_t mapped[3];
};

#include "unicode_data.inc"

constexpr CodePoint kInvalid{0xFFFD, 1};

// How many bytes a lead byte announces, and the allowed range of the second byte (Unicode 15.1, table 3-7).
struct Lead {
    uint8_t size;
    uint8_t low;
    uint8_t high;
};

Lead lead_of(uint8_t byte) {
    if (byte < 0x80) return {1, 0, 0};
    if (byte < 0xC2) return {0, 0, 0};
    if (byte < 0xE0) return {2, 0x80, 0xBF};
    if (byte == 0xE0) return {3, 0xA0, 0xBF};
    if (byte == 0xED) return {3, 0x80, 0x9F};
    if (byte < 0xF0) return {3, 0x80, 0xBF};
    if (byte == 0xF0) return {4, 0x90, 0xBF};
    if (byte < 0xF4) return {4, 0x80, 0xBF};
    if (byte == 0xF4) return {4, 0x80, 0x8F};
    return {0, 0, 0};
}

uint8_t byte_at(std::string_view text, size_t at) { return static_cast<uint8_t>(text[at]); }

// Valid bytes of the character that starts at `at`, at most lead.size.
size_t valid_bytes(std::string_view text, size_t at, Lead lead) {
    size_t count = 1;
    while (count < lead.size && at + count < text.size()) {
        const uint8_t byte = byte_at(text, at + count);
        const uint8_t low = count == 1 ? lead.low : 0x80;
        const uint8_t high = count == 1 ? lead.high : 0xBF;
        if (byte < low || byte > high) break;
        ++count;
    }
    return count;
}

template <size_t N, size_t M>
void append_mapped(std::string& out, char32_t code, const CaseRun (&runs)[N], const CaseSeveral (&several)[M]) {
    const auto* many = std::lower_bound(std::begin(several), std::end(several), code,
                                        [](const CaseSeveral& entry, char32_t value) { return entry.code < value; });
    if (many != std::end(several) && many->code == code) {
        for (const char32_t mapped : many->mapped) {
            if (mapped != 0) append_utf8(out, mapped);
        }
        return;
    }
    const auto* run = std::lower_bound(std::begin(runs), std::end(runs), code,
                                       [](const CaseRun& entry, char32_t value) { return entry.last < value; });
    if (run != std::end(runs) && run->first <= code && (code - run->first) % static_cast<char32_t>(run->stride) == 0) {
        append_utf8(out, static_cast<char32_t>(static_cast<int64_t>(code) + run->delta));
        return;
    }
    append_utf8(out, code);
}

template <typename Map>
std::string map_text(std::string_view text, Map map) {
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
        const CodePoint point = decode_utf8(text, at);
        const bool is_invalid = point.size == 1 && byte_at(text, at) >= 0x80;
        if (is_invalid) {
            out.push_back(text[at]);
        } else {
            map(out, point.code);
        }
        at += point.size;
    }
    return out;
}

}  // namespace

CodePoint decode_utf8(std::string_view text, size_t at) {
    if (at >= text.size()) return {};
    const uint8_t first = byte_at(text, at);
    if (first < 0x80) return {first, 1};
    const Lead lead = lead_of(first);
    if (lead.size == 0 || valid_bytes(text, at, lead) != lead.size) return kInvalid;
    char32_t code = first & (0xFF >> (lead.size + 1));
    for (size_t i = 1; i < lead.size; ++i) code = (code << 6) | (byte_at(text, at + i) & 0x3F);
    return {code, lead.size};
}

void append_utf8(std::string& text, char32_t code) {
    const auto put = [&text](char32_t value) { text.push_back(static_cast<char>(value)); };
    if (code < 0x80) {
        put(code);
    } else if (code < 0x800) {
        put(0xC0 | (code >> 6));
        put(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        put(0xE0 | (code >> 12));
        put(0x80 | ((code >> 6) & 0x3F));
        put(0x80 | (code & 0x3F));
    } else {
        put(0xF0 | (code >> 18));
        put(0x80 | ((code >> 12) & 0x3F));
        put(0x80 | ((code >> 6) & 0x3F));
        put(0x80 | (code & 0x3F));
    }
}

size_t complete_utf8(std::string_view text) {
    // Only the last three bytes can begin a character that is still open.
    const size_t start = text.size() > 3 ? text.size() - 3 : 0;
    for (size_t at = start; at < text.size(); ++at) {
        const Lead lead = lead_of(byte_at(text, at));
        if (lead.size > text.size() - at && valid_bytes(text, at, lead) == text.size() - at) return at;
    }
    return text.size();
}

CharClass char_class(char32_t code) {
    if (code < 0x80) {
        if ((code | 0x20) >= 'a' && (code | 0x20) <= 'z') return CharClass::letter;
        if (code >= '0' && code <= '9') return CharClass::number;
        return code == ' ' || (code >= 0x09 && code <= 0x0D) ? CharClass::space : CharClass::other;
    }
    const auto* range = std::lower_bound(std::begin(kClassRanges), std::end(kClassRanges), code,
                                         [](const ClassRange& entry, char32_t value) { return entry.last < value; });
    return range != std::end(kClassRanges) && range->first <= code ? range->kind : CharClass::other;
}

bool is_python_space(char32_t code) {
    return (code >= 0x1C && code <= 0x1F) || char_class(code) == CharClass::space;
}

std::string upper_utf8(std::string_view text) {
    return map_text(text, [](std::string& out, char32_t code) { append_mapped(out, code, kUpperRuns, kUpperSeveral); });
}

std::string lower_utf8(std::string_view text) {
    return map_text(text, [](std::string& out, char32_t code) {
        if (code == 0x3A3) throw std::runtime_error("lower() of the capital sigma U+03A3 is not supported");
        append_mapped(out, code, kLowerRuns, kLowerSeveral);
    });
}

std::string_view unicode_version() { return kUnicodeVersion; }

}  // namespace assay
