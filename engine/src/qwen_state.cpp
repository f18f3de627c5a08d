#include "failure.h"
#include "qwen_session.h"
namespace assay {
size_t QwenSession::state_size(int32_t) const { return 0; }
size_t QwenSession::save_state(int32_t, uint8_t*, size_t) const { throw Failure(ASSAY_UNSUPPORTED, "later"); }
void QwenSession::restore_state(int32_t, const uint8_t*, size_t) { throw Failure(ASSAY_UNSUPPORTED, "later"); }
}
