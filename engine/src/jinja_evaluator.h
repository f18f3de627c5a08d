// Runs a parsed template.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "jinja_parser.h"

namespace assay::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

// Values in `variables` must have been made with `budget`. Throws std::runtime_error ("line 3: ..."), and for
// raise_exception(text) one with just that text.
std::string evaluate(const Body& body, Budget& budget, Variables variables);

}  // namespace assay::jinja
