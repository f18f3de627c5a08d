// Writes one line of JSON: enough for build and model information, without a library in the core.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

namespace assay {

class JsonText {
public:
    void open(char bracket) {
        separate();
        text_ += bracket;
        fresh_ = true;
    }
    void close(char bracket) {
        text_ += bracket;
        fresh_ = false;
    }
    void key(std::string_view name) {
        separate();
        quote(name);
        text_ += ':';
        fresh_ = true;
    }
    void value(std::string_view text) {
        separate();
        quote(text);
    }
    void value(const char* text) { value(std::string_view(text)); }
    void value(bool flag) {
        separate();
        text_ += flag ? "true" : "false";
    }
    template <class Number>
        requires(std::is_integral_v<Number> && !std::is_same_v<Number, bool>)
    void value(Number number) {
        separate();
        text_ += std::to_string(number);
    }
    void value(double number) {
        char digits[40];
        std::snprintf(digits, sizeof digits, "%.9g", number);
        separate();
        text_ += digits;
    }
    template <class T>
    void field(std::string_view name, T content) {
        key(name);
        value(content);
    }
    const std::string& text() const { return text_; }

private:
    void separate() {
        if (!fresh_) text_ += ',';
        fresh_ = false;
    }
    // Bytes that are not valid UTF-8 (names in files can hold anything) become U+FFFD, so that the line is
    // always JSON.
    void quote(std::string_view text) {
        text_ += '"';
        for (size_t i = 0; i < text.size();) {
            const unsigned char c = static_cast<unsigned char>(text[i]);
            if (c == '"' || c == '\\') {
                text_ += '\\';
                text_ += text[i++];
                continue;
            }
            if (c < 0x20) {
                char escaped[8];
                std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
                text_ += escaped;
                ++i;
                continue;
            }
            const size_t length = sequence_length(text, i);
            if (length == 0) {
                text_ += "\\ufffd";
                ++i;
                continue;
            }
            text_ += text.substr(i, length);
            i += length;
        }
        text_ += '"';
    }
    // Length of the valid UTF-8 sequence at i, 0 if there is none (Unicode 15, table 3-7).
    static size_t sequence_length(std::string_view text, size_t i) {
        const auto byte = [&](size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0U; };
        const auto tail = [&](size_t k) { return (byte(k) & 0xC0U) == 0x80U; };
        const unsigned a = byte(i);
        const unsigned b = byte(i + 1);
        if (a < 0x80) return 1;
        if (a >= 0xC2 && a <= 0xDF) return tail(i + 1) ? 2 : 0;
        if (a >= 0xE0 && a <= 0xEF) {
            if (!tail(i + 1) || !tail(i + 2)) return 0;
            if ((a == 0xE0 && b < 0xA0) || (a == 0xED && b > 0x9F)) return 0;
            return 3;
        }
        if (a >= 0xF0 && a <= 0xF4) {
            if (!tail(i + 1) || !tail(i + 2) || !tail(i + 3)) return 0;
            if ((a == 0xF0 && b < 0x90) || (a == 0xF4 && b > 0x8F)) return 0;
            return 4;
        }
        return 0;
    }

    std::string text_;
    bool fresh_ = true;
};

}  // namespace assay
