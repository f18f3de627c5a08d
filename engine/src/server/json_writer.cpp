#include "json_writer.h"

#include <array>
#include <charconv>
#include <cmath>

namespace assay::server {

// A comma belongs before every value and key except the first of its container and the value of a key.
void JsonWriter::separate() {
    if (out_.empty()) return;
    const char last = out_.back();
    if (last != '{' && last != '[' && last != ':') out_ += ',';
}

JsonWriter& JsonWriter::open_object() {
    separate();
    out_ += '{';
    return *this;
}

JsonWriter& JsonWriter::close_object() {
    out_ += '}';
    return *this;
}

JsonWriter& JsonWriter::open_array() {
    separate();
    out_ += '[';
    return *this;
}

JsonWriter& JsonWriter::close_array() {
    out_ += ']';
    return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
    text(name);
    out_ += ':';
    return *this;
}

JsonWriter& JsonWriter::text(std::string_view value) {
    static constexpr std::string_view hex = "0123456789abcdef";
    separate();
    out_ += '"';
    for (const char c : value) {
        switch (c) {
            case '"': out_ += "\\\""; break;
            case '\\': out_ += "\\\\"; break;
            case '\n': out_ += "\\n"; break;
            case '\r': out_ += "\\r"; break;
            case '\t': out_ += "\\t"; break;
            case '\b': out_ += "\\b"; break;
            case '\f': out_ += "\\f"; break;
            default:
                if (static_cast<unsigned char>(c) < 0x20U || c == 0x7F) {
                    out_ += "\\u00";
                    out_ += hex[static_cast<unsigned char>(c) >> 4U];
                    out_ += hex[static_cast<unsigned char>(c) & 0xFU];
                } else {
                    out_ += c;
                }
        }
    }
    out_ += '"';
    return *this;
}

JsonWriter& JsonWriter::boolean(bool value) {
    separate();
    out_ += value ? "true" : "false";
    return *this;
}

JsonWriter& JsonWriter::null() {
    separate();
    out_ += "null";
    return *this;
}

JsonWriter& JsonWriter::real(double value) {
    if (!std::isfinite(value)) return null();
    separate();
    std::array<char, 40> buffer{};
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
    const std::string_view digits(buffer.data(), static_cast<size_t>(end - buffer.data()));
    out_ += digits;
    // A whole number stays a real for readers that tell the two apart.
    if (digits.find_first_of(".e") == std::string_view::npos) out_ += ".0";
    return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
    separate();
    out_ += json;
    return *this;
}

JsonWriter& JsonWriter::texts(const std::vector<std::string>& values) {
    open_array();
    for (const std::string& value : values) text(value);
    return close_array();
}

}  // namespace assay::server
