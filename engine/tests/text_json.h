// Reads the golden files. They are our own, so malformed JSON is simply an exception.
#pragma once

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../src/unicode.h"

namespace check {

struct Json {
    enum class Kind { null, boolean, number, string, array, object } kind = Kind::null;
    bool boolean = false;
    double number = 0;
    std::string string;
    std::vector<Json> array;
    std::vector<std::pair<std::string, Json>> object;

    const Json* find(const std::string& key) const {
        for (const auto& [name, value] : object) {
            if (name == key) return &value;
        }
        return nullptr;
    }
    const Json& at(const std::string& key) const {
        const Json* value = find(key);
        if (value == nullptr) throw std::runtime_error("the golden file has no key " + key);
        return *value;
    }
    std::vector<int32_t> integers() const {
        std::vector<int32_t> result;
        for (const Json& item : array) result.push_back(static_cast<int32_t>(item.number));
        return result;
    }
    std::vector<std::string> strings() const {
        std::vector<std::string> result;
        for (const Json& item : array) result.push_back(item.string);
        return result;
    }
};

class JsonReader {
public:
    explicit JsonReader(std::string text) : text_(std::move(text)) {}
    Json read() {
        Json value = read_value();
        if (peek() != '\0') throw std::runtime_error("text behind the JSON value");
        return value;
    }

private:
    char peek() {
        while (at_ < text_.size() && std::string(" \n\r\t").find(text_[at_]) != std::string::npos) ++at_;
        return at_ < text_.size() ? text_[at_] : '\0';
    }
    void expect(char c) {
        if (peek() != c) throw std::runtime_error("malformed JSON at byte " + std::to_string(at_));
        ++at_;
    }
    bool skip_word(const std::string& word) {
        if (text_.compare(at_, word.size(), word) != 0) return false;
        at_ += word.size();
        return true;
    }
    uint32_t read_hex() {
        const auto value = static_cast<uint32_t>(std::stoul(text_.substr(at_, 4), nullptr, 16));
        at_ += 4;
        return value;
    }
    std::string read_string() {
        expect('"');
        std::string result;
        while (text_.at(at_) != '"') {
            const char c = text_[at_++];
            if (c != '\\') {
                result.push_back(c);
                continue;
            }
            const char escape = text_.at(at_++);
            const std::string from = "nrtbf";
            if (escape == 'u') {
                uint32_t code = read_hex();
                if (code >= 0xD800 && code < 0xDC00 && skip_word("\\u")) {
                    code = 0x10000 + ((code - 0xD800) << 10) + (read_hex() - 0xDC00);
                }
                assay::append_utf8(result, code);
            } else if (const size_t i = from.find(escape); i != std::string::npos) {
                result.push_back("\n\r\t\b\f"[i]);
            } else {
                result.push_back(escape);
            }
        }
        ++at_;
        return result;
    }
    Json read_value() {
        Json value;
        const char c = peek();
        if (c == '{' || c == '[') {
            const char close = c == '{' ? '}' : ']';
            value.kind = c == '{' ? Json::Kind::object : Json::Kind::array;
            ++at_;
            while (peek() != close) {
                if (c == '{') {
                    std::string key = read_string();
                    expect(':');
                    value.object.emplace_back(std::move(key), read_value());
                } else {
                    value.array.push_back(read_value());
                }
                if (peek() != close) expect(',');
            }
            ++at_;
        } else if (c == '"') {
            peek();
            value.kind = Json::Kind::string;
            value.string = read_string();
        } else if (skip_word("true") || skip_word("false")) {
            value.kind = Json::Kind::boolean;
            value.boolean = text_[at_ - 2] == 'u';
        } else if (!skip_word("null")) {
            size_t used = 0;
            value.kind = Json::Kind::number;
            value.number = std::stod(text_.substr(at_, 40), &used);
            at_ += used;
        }
        return value;
    }

    std::string text_;
    size_t at_ = 0;
};

inline Json read_json(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot open " + path);
    std::ostringstream text;
    text << file.rdbuf();
    return JsonReader(text.str()).read();
}

}  // namespace check
