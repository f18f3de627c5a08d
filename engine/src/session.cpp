#include "session.h"

#include "llama_session.h"
#include "qwen_session.h"

namespace assay {

namespace {

[[noreturn]] void refuse_drafts() { throw Failure(ASSAY_UNSUPPORTED, "this model has no draft block"); }

}  // namespace

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
