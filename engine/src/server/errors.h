// What a client or the person who starts the server is told.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace assay::server {

// An error in llama-server's JSON shape.
struct ApiError : std::runtime_error {
    ApiError(int status, std::string kind, const std::string& message)
        : std::runtime_error(message), code(status), type(std::move(kind)) {}

    static ApiError invalid(const std::string& message) { return {400, "invalid_request_error", message}; }
    static ApiError too_long(int64_t n_prompt, int64_t context) {
        ApiError error(400, "exceed_context_size_error",
                       "the prompt has " + std::to_string(n_prompt) + " tokens and needs room for one more; the context has " +
                           std::to_string(context) + " (--ctx-size)");
        error.n_prompt_tokens = n_prompt;
        error.n_ctx = context;
        return error;
    }

    int code;
    std::string type;
    std::optional<int64_t> n_prompt_tokens;
    std::optional<int64_t> n_ctx;
};

// The body of the answer.
std::string error_body(const ApiError& error);

// A flag, an environment variable or a combination that cannot work: exit code 2.
struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A failure that the engine library reported, with its status (enum assay_status).
struct EngineFailure : std::runtime_error {
    EngineFailure(int failure_status, const std::string& message)
        : std::runtime_error(message), status(failure_status) {}
    int status;
};

}  // namespace assay::server
