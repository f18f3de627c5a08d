#include "log.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>

#include "json_writer.h"
#include "text_output.h"

namespace assay::server {
namespace {

std::atomic<LogFormat> log_format{LogFormat::json};

std::string utc_now() {
    const auto now = std::chrono::system_clock::now();
    const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now - seconds).count();
    const std::time_t stamp = std::chrono::system_clock::to_time_t(seconds);
    std::tm parts{};
    gmtime_r(&stamp, &parts);
    char text[32];
    const size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S.", &parts);
    const std::string fraction = std::to_string(1000 + milliseconds).substr(1);
    return std::string(text, length) + fraction + "Z";
}

void append(JsonWriter& out, const LogValue& value) {
    if (const auto* text = std::get_if<std::string>(&value)) out.text(valid_utf8(*text));
    else if (const auto* whole = std::get_if<int64_t>(&value)) out.integer(*whole);
    else if (const auto* number = std::get_if<double>(&value)) out.real(*number);
    else out.boolean(std::get<bool>(value));
}

}  // namespace

void set_log_format(LogFormat format) { log_format = format; }

void log_line(std::string_view level, std::string_view event, const LogFields& fields) {
    std::string line;
    if (log_format == LogFormat::json) {
        JsonWriter out;
        out.open_object().key("utc").text(utc_now()).key("level").text(level).key("event").text(event);
        for (const auto& [name, value] : fields) append(out.key(name), value);
        line = out.close_object().take();
    } else {
        line = utc_now() + " " + std::string(level) + " " + std::string(event);
        for (const auto& [name, value] : fields) {
            JsonWriter out;
            append(out, value);
            line += " " + std::string(name) + "=" + out.view();
        }
    }
    line += '\n';
    // A log that cannot be written must not stop the service.
    if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

}  // namespace assay::server
