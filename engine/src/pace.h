// The end of a decode call: where the fault `slow-decode` stands.
#pragma once

#include <chrono>
#include <cstdint>

namespace assay {

// Called when a decode of n_tokens that began at `start` is finished. Does nothing, unless the build has the
// fault slow-decode=P: then a generation step (at most n_seq tokens) that took t is followed by a wait of
// t * P / (100 - P), which lowers the generation rate by P percent.
void finish_decode(std::chrono::steady_clock::time_point start, uint32_t n_tokens, uint32_t n_seq);

}  // namespace assay
