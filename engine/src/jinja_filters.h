// Filters, tests and methods by name.
#pragma once

#include <string_view>

#include "jinja_value.h"

namespace assay::jinja {

bool is_filter(std::string_view name);
bool is_test(std::string_view name);

// All three throw Failure for wrong arguments; apply_method for a method that is not supported.
Value apply_filter(Budget& budget, std::string_view name, const Value& value, const Arguments& arguments);
bool apply_test(Budget& budget, std::string_view name, const Value& value, const Arguments& arguments);
Value apply_method(Budget& budget, std::string_view name, const Value& object, const Arguments& arguments);

}  // namespace assay::jinja
