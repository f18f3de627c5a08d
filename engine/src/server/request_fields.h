// The fields of one JSON body, by name and type. What is wrong with one is an ApiError that names it.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace assay::server {

std::string_view kind_of(const boost::json::value& value);
[[noreturn]] void reject(std::string_view field, const std::string& problem);
[[noreturn]] void wrong_type(std::string_view field, std::string_view expected, const boost::json::value& found);
// A value for a message, not longer than a reader wants.
std::string show(const boost::json::value& value);
std::optional<int64_t> whole_number(const boost::json::value& value);
std::optional<double> any_number(const boost::json::value& value);

// Remembers which fields were asked for, so that the others can be reported.
class Fields {
public:
    // Throws an ApiError with line and column of the first byte that is not JSON.
    explicit Fields(std::string_view body);

    // null counts as absent.
    const boost::json::value* find(std::string_view name);
    bool boolean(std::string_view name, bool absent);
    int64_t integer(std::string_view name, int64_t absent, int64_t low, int64_t high);
    float real(std::string_view name, float absent, double low, double high);
    std::string text(std::string_view name);
    std::vector<std::string> unknown() const;

private:
    boost::json::object object_;
    std::set<std::string, std::less<>> known_;
};

}  // namespace assay::server
