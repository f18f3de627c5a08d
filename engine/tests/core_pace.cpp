// The fault slow-decode waits in generation and only there, slow-prefill-after in prefill beyond a position and only
// there; a build without them does not wait.
#include <chrono>

#include "core_check.h"
#include "pace.h"

// The same source with the fault compiled in, under another name.
#define ASSAY_FAULT_SLOW_DECODE 30
#define ASSAY_FAULT_SLOW_PREFILL_AFTER 1000
#define assay assay_with_fault
namespace assay_with_fault {
void finish_decode(std::chrono::steady_clock::time_point start, uint32_t n_tokens, uint32_t n_seq,
                   int32_t last_position);
}
#include "../src/pace.cpp"
#undef assay

namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(void (*finish)(Clock::time_point, uint32_t, uint32_t, int32_t), double already_taken,
                  uint32_t n_tokens, uint32_t n_seq, int32_t last_position = 0) {
    const auto now = Clock::now();
    finish(now - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(already_taken)), n_tokens,
           n_seq, last_position);
    return std::chrono::duration<double>(Clock::now() - now).count();
}

}  // namespace

int main() {
    // 70 ms of work become 100 ms: a rate lower by 30 %. Sleeping may take longer, never shorter.
    const double waited = seconds_of(assay_with_fault::finish_decode, 0.070, 1, 1);
    CHECK(waited >= 0.0299);
    CHECK(seconds_of(assay_with_fault::finish_decode, 0.070, 4, 4) >= 0.0299);
    // So does generation at any depth.
    CHECK(seconds_of(assay_with_fault::finish_decode, 0.070, 1, 1, 5000) >= 0.0299);
    // A prefill step beyond position 1000 takes twice its time.
    CHECK(seconds_of(assay_with_fault::finish_decode, 0.050, 5, 4, 1001) >= 0.0499);
    CHECK_BELOW(seconds_of(assay_with_fault::finish_decode, 10.0, 5, 4, 1000), 2.0);
    CHECK_BELOW(seconds_of(assay::finish_decode, 10.0, 5, 4, 1001), 2.0);
    // A prefill before it, and a build without the fault, return at once. The bound is generous for a busy host.
    CHECK_BELOW(seconds_of(assay_with_fault::finish_decode, 10.0, 5, 4), 2.0);
    CHECK_BELOW(seconds_of(assay::finish_decode, 10.0, 1, 1), 2.0);
    return core::finish("core_pace");
}
