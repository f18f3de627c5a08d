#include "session.h"

#include "llama_session.h"
#include "qwen_session.h"

namespace assay {

std::unique_ptr<Session> make_session(const Model& model, const assay_session_settings& settings) {
    if (model.qwen() != nullptr) return std::make_unique<QwenSession>(model, settings);
    return std::make_unique<LlamaSession>(model, settings);
}

}  // namespace assay
