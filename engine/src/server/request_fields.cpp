#include "request_fields.h"

#include <algorithm>
#include <cmath>

#include "errors.h"
#include "json_writer.h"
#include "text_output.h"

namespace assay::server {

namespace json = boost::json;

namespace {

constexpr size_t most_depth = 32;

std::string show(double number) { return JsonWriter().real(number).take(); }

// Throws an ApiError with line and column of the first byte that is not JSON.
json::value parse_json(std::string_view text) {
    json::parse_options options;
    options.max_depth = most_depth;
    json::stream_parser parser({}, options);
    boost::system::error_code error;
    size_t n_read = parser.write_some(text.data(), text.size(), error);
    if (!error && n_read < text.size()) error = json::error::extra_data;
    if (!error) {
        parser.finish(error);
        n_read = text.size();
    }
    if (error) {
        const std::string_view before = text.substr(0, n_read);
        const auto line = 1 + std::count(before.begin(), before.end(), '\n');
        const size_t column = n_read - (before.rfind('\n') + 1) + 1;
        std::string problem = "the body is not valid JSON at line " + std::to_string(line) + ", column " + std::to_string(column) + ": ";
        if (text.empty()) problem += "it is empty";
        else if (error == json::error::too_deep) problem += "nested deeper than " + std::to_string(most_depth) + " levels";
        else problem += error.message();
        throw ApiError::invalid(problem);
    }
    return parser.release();
}

}  // namespace

std::string_view kind_of(const json::value& value) {
    switch (value.kind()) {
        case json::kind::null: return "null";
        case json::kind::bool_: return "a boolean";
        case json::kind::int64:
        case json::kind::uint64: return "an integer";
        case json::kind::double_: return "a number";
        case json::kind::string: return "a string";
        case json::kind::array: return "an array";
        case json::kind::object: return "an object";
    }
    return "nothing";
}

void reject(std::string_view field, const std::string& problem) {
    throw ApiError::invalid("field '" + valid_utf8(field) + "': " + problem);
}

void wrong_type(std::string_view field, std::string_view expected, const json::value& found) {
    reject(field, "expected " + std::string(expected) + ", got " + std::string(kind_of(found)));
}

std::string show(const json::value& value) {
    const std::string text = value.is_double() ? show(value.as_double()) : json::serialize(value);
    return text.size() <= 80 ? text : valid_utf8(text.substr(0, 80)) + "...";
}

std::optional<int64_t> whole_number(const json::value& value) {
    if (const auto* number = value.if_int64()) return *number;
    if (const auto* number = value.if_double()) {
        if (std::abs(*number) < 9e15 && std::floor(*number) == *number) return static_cast<int64_t>(*number);
    }
    return std::nullopt;  // unsigned values here are above the int64 range
}

std::optional<double> any_number(const json::value& value) {
    if (value.is_number()) return value.to_number<double>();
    return std::nullopt;
}

Fields::Fields(std::string_view body) {
    json::value value = parse_json(body);
    if (!value.is_object()) throw ApiError::invalid("the body must be a JSON object, got " + std::string(kind_of(value)));
    object_ = std::move(value.as_object());
}

const json::value* Fields::find(std::string_view name) {
    known_.emplace(name);
    const json::value* value = object_.if_contains(name);
    return value == nullptr || value->is_null() ? nullptr : value;
}

bool Fields::boolean(std::string_view name, bool absent) {
    const json::value* value = find(name);
    if (value == nullptr) return absent;
    if (!value->is_bool()) wrong_type(name, "a boolean", *value);
    return value->as_bool();
}

int64_t Fields::integer(std::string_view name, int64_t absent, int64_t low, int64_t high) {
    const json::value* value = find(name);
    if (value == nullptr) return absent;
    if (!value->is_number()) wrong_type(name, "an integer", *value);
    const auto number = whole_number(*value);
    if (!number || *number < low || *number > high) {
        reject(name, "expected an integer from " + std::to_string(low) + " to " + std::to_string(high) + ", got " + show(*value));
    }
    return *number;
}

float Fields::real(std::string_view name, float absent, double low, double high) {
    const json::value* value = find(name);
    if (value == nullptr) return absent;
    const auto number = any_number(*value);
    if (!number) wrong_type(name, "a number", *value);
    if (!(*number >= low && *number <= high)) {
        reject(name, "expected a number from " + show(low) + " to " + show(high) +
                         ", got " + show(*value));
    }
    return static_cast<float>(*number);
}

std::string Fields::text(std::string_view name) {
    const json::value* value = find(name);
    if (value == nullptr) reject(name, "is required");
    if (!value->is_string()) wrong_type(name, "a string", *value);
    return std::string(value->as_string());
}

std::vector<std::string> Fields::unknown() const {
    std::vector<std::string> names;
    for (const auto& member : object_) {
        if (!known_.contains(std::string_view(member.key()))) names.emplace_back(member.key());
    }
    return names;
}

}  // namespace assay::server
