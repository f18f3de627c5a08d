// One line a record on standard error. Never prompts, output or keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace assay::server {

enum class LogFormat { json, text };

using LogValue = std::variant<std::string, int64_t, double, bool>;
using LogFields = std::vector<std::pair<std::string_view, LogValue>>;

void set_log_format(LogFormat format);

// May be called from any thread; a line is written in one piece.
void log_line(std::string_view level, std::string_view event, const LogFields& fields = {});

}  // namespace assay::server
