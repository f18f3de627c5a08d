#include "loaded_model.h"

#include <array>

#include "errors.h"
#include "requests.h"

namespace assay::server {
namespace {

using ErrorText = std::array<char, 1024>;

void require(int status, const ErrorText& text) {
    if (status != ASSAY_OK) throw EngineFailure(status, text.data());
}

Session::Outcome outcome(int status, const ErrorText& text) {
    return {status, status == ASSAY_OK ? std::string() : std::string(text.data())};
}

}  // namespace

assay_memory_plan plan_memory(const std::string& path, const assay_model_settings& model, const assay_session_settings& session) {
    ErrorText text{};
    assay_memory_plan plan{};
    plan.struct_size = sizeof plan;
    require(assay_plan_memory(path.c_str(), &model, &session, &plan, text.data(), text.size()), text);
    return plan;
}

Model::Model(const std::string& path, const assay_model_settings& settings) {
    ErrorText text{};
    assay_model* loaded = nullptr;
    require(assay_model_load(path.c_str(), &settings, &loaded, text.data(), text.size()), text);
    model_.reset(loaded);
    n_vocab_ = assay_model_n_vocab(loaded);
    for (int32_t token = 0; token < n_vocab_; ++token) {
        if (assay_model_is_end(loaded, token)) end_tokens_.push_back(token);
    }
}

std::vector<int32_t> Model::tokenize(std::string_view text, bool add_special, bool parse_special) const {
    ErrorText message{};
    std::vector<int32_t> tokens(text.size() / 2 + 16);
    for (;;) {
        size_t count = tokens.size();
        const int status = assay_tokenize(handle(), text.data(), text.size(), add_special, parse_special,
                                          tokens.data(), &count, message.data(), message.size());
        if (status == ASSAY_FULL && count > tokens.size()) {
            tokens.resize(count);
            continue;
        }
        require(status, message);
        tokens.resize(count);
        return tokens;
    }
}

std::string_view Model::bytes(int32_t token, bool render_special) const {
    const char* data = nullptr;
    size_t size = 0;
    if (assay_token_bytes(handle(), token, render_special, &data, &size) != ASSAY_OK) {
        throw EngineFailure(ASSAY_INVALID, "token " + std::to_string(token) + " is not in the vocabulary");
    }
    return {data, size};
}

std::string Model::join(const std::vector<int32_t>& tokens) const {
    std::string text;
    for (const int32_t token : tokens) text += bytes(token, true);
    return text;
}

uint32_t Model::image_width() const {
    const std::string text = info();
    if (json_member(text, "architecture") != "\"qwen4exp\"") return 0;
    return static_cast<uint32_t>(std::stoul(json_member(text, "n_embd")));
}

std::string Model::chat_template() const {
    const char* source = assay_model_chat_template(handle());
    return source == nullptr ? std::string() : std::string(source);
}

Session::Session(const Model& model, const assay_session_settings& settings) {
    ErrorText text{};
    assay_session* created = nullptr;
    require(assay_session_new(model.handle(), &settings, &created, text.data(), text.size()), text);
    session_.reset(created);
}

Session::Outcome Session::decode(const assay_batch& batch, const volatile int* cancel) {
    ErrorText text{};
    return outcome(assay_decode(session_.get(), &batch, cancel, text.data(), text.size()), text);
}

Session::Outcome Session::decode(const assay_rows& rows, const volatile int* cancel) {
    ErrorText text{};
    return outcome(assay_decode_rows(session_.get(), &rows, cancel, text.data(), text.size()), text);
}

Session::Outcome Session::remove(int32_t seq, int32_t from) {
    ErrorText text{};
    return outcome(assay_seq_remove(session_.get(), seq, from, -1, text.data(), text.size()), text);
}

Session::Outcome Session::propose(int32_t seq, int32_t last, uint32_t n, std::vector<int32_t>& tokens) {
    ErrorText text{};
    const size_t before = tokens.size();
    tokens.resize(before + n);
    uint32_t count = n;
    const int status = assay_draft_propose(session_.get(), seq, last, n, 0.0F, tokens.data() + before, &count, text.data(), text.size());
    tokens.resize(before + (status == ASSAY_OK ? count : 0));
    return outcome(status, text);
}

Session::Outcome Session::verify(int32_t seq, const std::vector<int32_t>& tokens, const volatile int* cancel) {
    ErrorText text{};
    const auto n = static_cast<uint32_t>(tokens.size());
    return outcome(assay_draft_verify(session_.get(), seq, tokens.data(), n, cancel, text.data(), text.size()), text);
}

Session::Outcome Session::accept(int32_t seq, uint32_t n) {
    ErrorText text{};
    return outcome(assay_draft_accept(session_.get(), seq, n, text.data(), text.size()), text);
}

std::string Session::save(int32_t seq) const {
    ErrorText text{};
    std::string state(assay_state_size(session_.get(), seq), '\0');
    size_t written = 0;
    require(assay_state_save(session_.get(), seq, state.data(), state.size(), &written, text.data(), text.size()), text);
    state.resize(written);
    return state;
}

Session::Outcome Session::restore(int32_t seq, std::string_view state) {
    ErrorText text{};
    return outcome(assay_state_restore(session_.get(), seq, state.data(), state.size(), text.data(), text.size()), text);
}

assay_work Session::work() const {
    assay_work counters{};
    counters.struct_size = sizeof counters;
    assay_work_read(session_.get(), &counters);
    return counters;
}

}  // namespace assay::server
