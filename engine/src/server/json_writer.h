// Writes JSON text in the order of the calls; reading is Boost.JSON's part (requests.cpp).
//
// An own writer keeps numbers as clients expect them (25.42, not 2.542E1), fixes the order of the
// fields and costs no tree for an event that is sent a few hundred times a second.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace assay::server {

class JsonWriter {
public:
    JsonWriter& open_object();
    JsonWriter& close_object();
    JsonWriter& open_array();
    JsonWriter& close_array();
    JsonWriter& key(std::string_view name);

    // Text must be valid UTF-8.
    JsonWriter& text(std::string_view value);
    JsonWriter& boolean(bool value);
    JsonWriter& null();
    // Shortest text that reads back as the same double; NaN and infinities become null.
    JsonWriter& real(double value);
    // Already JSON.
    JsonWriter& raw(std::string_view json);

    template <std::integral T>
    JsonWriter& integer(T value) {
        separate();
        out_ += std::to_string(value);
        return *this;
    }
    template <std::integral T>
    JsonWriter& integers(const std::vector<T>& values) {
        open_array();
        for (const T value : values) integer(value);
        return close_array();
    }
    JsonWriter& texts(const std::vector<std::string>& values);

    std::string take() { return std::move(out_); }
    const std::string& view() const { return out_; }

private:
    void separate();

    std::string out_;
};

}  // namespace assay::server
