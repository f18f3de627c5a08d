#include "pace.h"

#if defined(ASSAY_FAULT_SLOW_DECODE) || defined(ASSAY_FAULT_SLOW_PREFILL_AFTER)
#include <thread>
#endif

namespace assay {

void finish_decode([[maybe_unused]] std::chrono::steady_clock::time_point start, [[maybe_unused]] uint32_t n_tokens,
                   [[maybe_unused]] uint32_t n_seq, [[maybe_unused]] int32_t last_position) {
#ifdef ASSAY_FAULT_SLOW_DECODE
    if (n_tokens <= n_seq) {
        const auto taken = std::chrono::steady_clock::now() - start;
        std::this_thread::sleep_until(start + taken + taken * ASSAY_FAULT_SLOW_DECODE / (100 - ASSAY_FAULT_SLOW_DECODE));
    }
#endif
#ifdef ASSAY_FAULT_SLOW_PREFILL_AFTER
    if (n_tokens > n_seq && last_position > ASSAY_FAULT_SLOW_PREFILL_AFTER)
        std::this_thread::sleep_for(std::chrono::steady_clock::now() - start);
#endif
}

}  // namespace assay
