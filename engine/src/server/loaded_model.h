// Owners of what engine.h hands out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine.h"

namespace assay::server {

// What a session over the file would take; see assay_plan_memory. Throws EngineFailure.
assay_memory_plan plan_memory(const std::string& path, const assay_model_settings& model, const assay_session_settings& session);

class Model {
public:
    // Throws EngineFailure.
    Model(const std::string& path, const assay_model_settings& settings);

    const assay_model* handle() const { return model_.get(); }
    std::vector<int32_t> tokenize(std::string_view text, bool add_special, bool parse_special) const;
    // Exact bytes, possibly part of a character; lives as long as the model.
    std::string_view bytes(int32_t token, bool render_special) const;
    // Bytes of all tokens, special ones as their text.
    std::string join(const std::vector<int32_t>& tokens) const;

    int32_t n_vocab() const { return n_vocab_; }
    int32_t n_ctx_train() const { return assay_model_n_ctx_train(handle()); }
    int32_t bos() const { return assay_model_bos(handle()); }
    int32_t eos() const { return assay_model_eos(handle()); }
    bool add_bos() const { return assay_model_add_bos(handle()); }
    bool is_end(int32_t token) const { return assay_model_is_end(handle(), token); }
    // Every token that ends a reply.
    const std::vector<int32_t>& end_tokens() const { return end_tokens_; }
    // The template in the file, empty without one.
    std::string chat_template() const;
    // One JSON object (see assay_model_info).
    std::string info() const { return assay_model_info(handle()); }
    // Numbers of a row of an image; 0 for a model that takes none.
    uint32_t image_width() const;

private:
    struct Free {
        void operator()(assay_model* model) const { assay_model_free(model); }
    };
    std::unique_ptr<assay_model, Free> model_;
    int32_t n_vocab_ = 0;
    std::vector<int32_t> end_tokens_;
};

// One mutable set of sequences; belongs to the inference thread.
class Session {
public:
    // Throws EngineFailure.
    Session(const Model& model, const assay_session_settings& settings);

    // A status and its text, for callers that go on after a failure.
    struct Outcome {
        int status = ASSAY_OK;
        std::string message;
        bool ok() const { return status == ASSAY_OK; }
    };
    Outcome decode(const assay_batch& batch, const volatile int* cancel);
    Outcome decode(const assay_rows& rows, const volatile int* cancel);
    const float* logits(uint32_t index) const { return assay_logits(session_.get(), index); }
    Outcome remove(int32_t seq, int32_t from);
    uint32_t cells(int32_t seq) const { return assay_seq_cells(session_.get(), seq); }
    // Throws EngineFailure.
    std::string save(int32_t seq) const;
    Outcome restore(int32_t seq, std::string_view state);
    // Appends up to n drafts after the token `last` to `tokens`.
    Outcome propose(int32_t seq, int32_t last, uint32_t n, std::vector<int32_t>& tokens);
    // Evaluates the tokens, with logits of each; `accept` must follow.
    Outcome verify(int32_t seq, const std::vector<int32_t>& tokens, const volatile int* cancel);
    // Keeps the first n of the verified tokens.
    Outcome accept(int32_t seq, uint32_t n);
    assay_work work() const;
    // One JSON object (see assay_session_info).
    std::string info() {
        const char* text = assay_session_info(session_.get());
        return text == nullptr ? "{}" : text;
    }
    uint64_t cache_bytes() const { return assay_session_cache_bytes(session_.get()); }
    uint64_t compute_bytes() const { return assay_session_compute_bytes(session_.get()); }

private:
    struct Free {
        void operator()(assay_session* session) const { assay_session_free(session); }
    };
    std::unique_ptr<assay_session, Free> session_;
};

}  // namespace assay::server
