#include "pace.h"

#ifdef ASSAY_FAULT_SLOW_DECODE
#include <thread>
#endif

namespace assay {

void finish_decode([[maybe_unused]] std::chrono::steady_clock::time_point start, [[maybe_unused]] uint32_t n_tokens,
                   [[maybe_unused]] uint32_t n_seq) {
#ifdef ASSAY_FAULT_SLOW_DECODE
    if (n_tokens > n_seq) return;
    const auto taken = std::chrono::steady_clock::now() - start;
    std::this_thread::sleep_until(start + taken + taken * ASSAY_FAULT_SLOW_DECODE / (100 - ASSAY_FAULT_SLOW_DECODE));
#endif
}

}  // namespace assay
