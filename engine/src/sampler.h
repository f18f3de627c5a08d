// Greedy and seeded sampling over one row of logits.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

namespace assay {

// Field names and defaults follow llama-server's request body.
struct SamplingSettings {
    float temperature = 0.8F;      // <= 0: greedy
    int32_t top_k = 40;            // <= 0: off
    float top_p = 0.95F;           // >= 1: off
    float min_p = 0.05F;           // <= 0: off
    float repeat_penalty = 1.0F;   // 1: off
    int32_t repeat_last_n = 64;    // tokens looked back; -1: all; 0: off
    uint32_t seed = 0xFFFFFFFF;    // 0xFFFFFFFF: drawn once from the system and reported
};

struct TokenProbability { int32_t token; float logprob; };

class Sampler {
public:
    explicit Sampler(SamplingSettings settings);
    // Ties go to the lowest id. `logits` has n entries and is not changed.
    int32_t sample(const float* logits, int32_t n);
    void accept(int32_t token);            // prompt tokens too: they count for the penalty
    const SamplingSettings& settings() const;  // with the seed that is really used
    // The k most likely tokens of the softmax over the raw logits.
    static std::vector<TokenProbability> top(const float* logits, int32_t n, int32_t k);
private:
    SamplingSettings settings_;
    std::vector<int32_t> history_;
    std::mt19937 random_;
    std::vector<std::pair<float, int32_t>> candidates_;
    std::vector<float> penalised_;
    const float* penalise(const float* logits, int32_t n);
};

}  // namespace assay
