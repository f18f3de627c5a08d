// The end of a decode call: where the faults `slow-decode` and `slow-prefill-after` stand.
#pragma once

#include <chrono>
#include <cstdint>

namespace assay {

// Called when a decode of n_tokens that began at `start` is finished. Does nothing, unless the build has the
// fault slow-decode=P: then a generation step (at most n_seq tokens) that took t is followed by a wait of
// t * P / (100 - P), which lowers the generation rate by P percent. With the fault slow-prefill-after=N, a prefill step
// that ends beyond position N (`last_position`) is followed by a wait as long as it took.
void finish_decode(std::chrono::steady_clock::time_point start, uint32_t n_tokens, uint32_t n_seq,
                   int32_t last_position);

}  // namespace assay
