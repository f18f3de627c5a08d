#include "errors.h"

#include "json_writer.h"
#include "text_output.h"

namespace assay::server {

std::string error_body(const ApiError& error) {
    JsonWriter out;
    out.open_object().key("error").open_object();
    out.key("code").integer(error.code).key("message").text(valid_utf8(error.what())).key("type").text(error.type);
    if (error.n_prompt_tokens) out.key("n_prompt_tokens").integer(*error.n_prompt_tokens);
    if (error.n_ctx) out.key("n_ctx").integer(*error.n_ctx);
    return out.close_object().close_object().take();
}

}  // namespace assay::server
