#include "session.h"

#include "json_text.h"
#include "llama_session.h"
#include "qwen_session.h"

namespace assay {

namespace {

[[noreturn]] void refuse_drafts() { throw Failure(ASSAY_UNSUPPORTED, "this model has no draft block"); }

}  // namespace

Capture& Session::capture() {
    throw Failure(ASSAY_UNSUPPORTED, "tensors of this model cannot be captured; those of qwen4exp can");
}

std::string Session::info() const {
    JsonText json;
    json.open('{');
    json.field("cache_bytes", cache_bytes());
    json.field("compute_bytes", compute_bytes());
    json.close('}');
    return json.text();
}

std::vector<int32_t> Session::propose(int32_t, int32_t, uint32_t, float) { refuse_drafts(); }
void Session::verify(int32_t, const int32_t*, uint32_t, const volatile int*) { refuse_drafts(); }
void Session::accept(int32_t, uint32_t) { refuse_drafts(); }
Session::Round Session::draft_round(int32_t, int32_t, uint32_t, uint32_t, float, const volatile int*) {
    refuse_drafts();
}

std::unique_ptr<Session> make_session(const Model& model, const assay_session_settings& settings) {
    if (model.qwen() != nullptr) return std::make_unique<QwenSession>(model, settings);
    return std::make_unique<LlamaSession>(model, settings);
}

}  // namespace assay
