// Order of the steps: repeat penalty, top-k, top-p, min-p, temperature, draw. Greedy (temperature <= 0) takes the best
// logit after the penalty. top-p and min-p look at the probabilities before the temperature. The draw uses std::mt19937,
// whose output the C++ standard fixes, and no distribution of the standard library, whose output it does not fix: equal
// seed, settings and logits give equal tokens wherever std::exp rounds alike.
#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace assay {
namespace {

constexpr uint32_t kRandomSeed = 0xFFFFFFFF;

using Candidate = std::pair<float, int32_t>;  // logit, token

// Higher logit first, then the lower id.
bool is_better(const Candidate& a, const Candidate& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
}

[[noreturn]] void fail_for(const float* logits, int32_t n) {
    for (int32_t i = 0; i < n; ++i) {
        if (!std::isnan(logits[i]) && logits[i] != HUGE_VALF) continue;
        throw std::runtime_error("sampler: the logit of token " + std::to_string(i) + " is " +
                                 (std::isnan(logits[i]) ? "not a number" : "infinite") +
                                 "; the model's output cannot be used");
    }
    throw std::runtime_error("sampler: every token is excluded (all logits are -inf)");
}

// Four floats at once, which every 64-bit target has: a plain loop over a vocabulary costs a noticeable part of the time
// of a small model's step.
typedef float Four __attribute__((vector_size(16)));
constexpr int32_t kBlock = 256;

// The best token. Throws unless every logit is a number; -inf means "never", +inf has no softmax.
int32_t best_token(const float* logits, int32_t n) {
    if (logits == nullptr || n <= 0) throw std::runtime_error("sampler: there are no logits");
    float best = -HUGE_VALF;
    int32_t best_block = 0;
    int32_t begin = 0;
    for (; begin + kBlock <= n; begin += kBlock) {
        constexpr float kLow = -HUGE_VALF;
        Four top[2] = {{kLow, kLow, kLow, kLow}, {kLow, kLow, kLow, kLow}};
        auto is_ordered = top[0] == top[0];
        for (int32_t i = 0; i < kBlock; i += 8) {
            Four values[2];
            std::memcpy(values, logits + begin + i, sizeof values);
            for (int half = 0; half < 2; ++half) {
                is_ordered &= values[half] == values[half];
                top[half] = values[half] > top[half] ? values[half] : top[half];
            }
        }
        if ((is_ordered[0] & is_ordered[1] & is_ordered[2] & is_ordered[3]) == 0) fail_for(logits, n);
        float block_top = top[0][0];
        for (int lane = 0; lane < 4; ++lane) block_top = std::max({block_top, top[0][lane], top[1][lane]});
        if (block_top > best) {
            best = block_top;
            best_block = begin;
        }
    }
    for (; begin < n; ++begin) {
        if (std::isnan(logits[begin])) fail_for(logits, n);
        if (logits[begin] > best) {
            best = logits[begin];
            best_block = begin;
        }
    }
    if (best == HUGE_VALF || best == -HUGE_VALF) fail_for(logits, n);
    while (logits[best_block] != best) ++best_block;
    return best_block;
}

// The k best candidates in order, best first.
void select_top(const float* logits, int32_t n, size_t k, std::vector<Candidate>& kept) {
    kept.clear();
    kept.reserve(k + 1);
    // A heap whose front is the worst that is kept; most tokens are turned away by one comparison.
    for (int32_t i = 0; i < n; ++i) {
        if (kept.size() == k && logits[i] <= kept.front().first) continue;
        kept.emplace_back(logits[i], i);
        std::push_heap(kept.begin(), kept.end(), is_better);
        if (kept.size() > k) {
            std::pop_heap(kept.begin(), kept.end(), is_better);
            kept.pop_back();
        }
    }
    std::sort_heap(kept.begin(), kept.end(), is_better);
}

// Cuts the candidates, in any order, to the most likely ones that together hold `share` of `total`; sorts as many as it
// needs. `total` is in units of the best candidate's probability.
void keep_share(std::vector<Candidate>& candidates, double top, double share, double total) {
    double sum = 0;
    size_t sorted = 0;
    size_t chunk = 256;
    for (size_t kept = 0; kept < candidates.size(); ++kept) {
        if (kept == sorted) {
            const size_t end = std::min(sorted + chunk, candidates.size());
            std::partial_sort(candidates.begin() + static_cast<ptrdiff_t>(sorted),
                              candidates.begin() + static_cast<ptrdiff_t>(end), candidates.end(), is_better);
            sorted = end;
            chunk *= 4;
        }
        sum += std::exp(candidates[kept].first - top);
        if (sum >= share * total) {
            candidates.resize(kept + 1);
            return;
        }
    }
}

SamplingSettings checked(SamplingSettings settings) {
    const std::pair<const char*, float> reals[] = {{"temperature", settings.temperature},
                                                   {"top_p", settings.top_p},
                                                   {"min_p", settings.min_p},
                                                   {"repeat_penalty", settings.repeat_penalty}};
    for (const auto& [name, value] : reals) {
        if (!std::isfinite(value)) throw std::runtime_error(std::string("sampler: ") + name + " is not a finite number");
    }
    if (settings.repeat_penalty <= 0) throw std::runtime_error("sampler: repeat_penalty must be above 0");
    if (settings.repeat_last_n < -1) throw std::runtime_error("sampler: repeat_last_n must be -1 or more");
    while (settings.seed == kRandomSeed) settings.seed = std::random_device{}();
    return settings;
}

bool uses_history(const SamplingSettings& settings) {
    return settings.repeat_penalty != 1.0F && settings.repeat_last_n != 0;
}

// Uniform in [0, 1) with 53 random bits.
double draw_unit(std::mt19937& random) {
    const uint64_t high = random() >> 5;
    const uint64_t low = random() >> 6;
    return static_cast<double>((high << 26) | low) * 0x1p-53;
}

}  // namespace

Sampler::Sampler(SamplingSettings settings) : settings_(checked(settings)), random_(settings_.seed) {}

const SamplingSettings& Sampler::settings() const { return settings_; }

void Sampler::accept(int32_t token) {
    if (!uses_history(settings_)) return;
    history_.push_back(token);
    if (settings_.repeat_last_n < 0) return;
    const auto window = static_cast<size_t>(settings_.repeat_last_n);
    // Trimmed now and then, so that accepting stays cheap however long the window is.
    if (history_.size() >= window * 2 + 64) {
        history_.erase(history_.begin(), history_.end() - static_cast<ptrdiff_t>(window));
    }
}

// The row with the penalty applied, or the row itself when there is nothing to apply.
const float* Sampler::penalise(const float* logits, int32_t n) {
    if (!uses_history(settings_) || history_.empty()) return logits;
    size_t window = history_.size();
    if (settings_.repeat_last_n > 0) window = std::min(window, static_cast<size_t>(settings_.repeat_last_n));
    std::vector<int32_t> recent(history_.end() - static_cast<ptrdiff_t>(window), history_.end());
    std::sort(recent.begin(), recent.end());
    recent.erase(std::unique(recent.begin(), recent.end()), recent.end());
    penalised_.assign(logits, logits + n);
    for (const int32_t token : recent) {
        if (token < 0 || token >= n) continue;
        float& logit = penalised_[static_cast<size_t>(token)];
        // A penalty below 1 (a bonus) can overflow; the largest finite value keeps the softmax defined.
        logit = logit > 0 ? std::min(logit / settings_.repeat_penalty, 3.0e38F) : logit * settings_.repeat_penalty;
    }
    return penalised_.data();
}

int32_t Sampler::sample(const float* logits, int32_t n) {
    int32_t best = best_token(logits, n);
    const float* row = penalise(logits, n);
    if (row != logits) best = best_token(row, n);
    if (settings_.temperature <= 0) return best;
    const double top = row[best];

    if (settings_.top_k > 0 && settings_.top_k < n) {
        select_top(row, n, static_cast<size_t>(settings_.top_k), candidates_);
    } else {
        candidates_.clear();
        candidates_.reserve(static_cast<size_t>(n));
        for (int32_t i = 0; i < n; ++i) candidates_.emplace_back(row[i], i);
    }
    double total = 0;
    if (settings_.top_p < 1) {
        for (const auto& [logit, token] : candidates_) total += std::exp(logit - top);
    }
    // top-p and min-p each keep the most likely candidates up to some point, so that the order between the two does not
    // matter as long as top-p counts the probabilities of all; min-p first leaves less to sort.
    if (settings_.min_p > 0) {
        const double floor = std::min(std::log(static_cast<double>(settings_.min_p)), 0.0);
        std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.first - top < floor; });
    }
    if (settings_.top_p < 1) keep_share(candidates_, top, settings_.top_p, total);

    const double temperature = settings_.temperature;
    total = 0;
    for (const auto& [logit, token] : candidates_) total += std::exp((logit - top) / temperature);
    const double target = draw_unit(random_) * total;
    double sum = 0;
    for (const auto& [logit, token] : candidates_) {
        sum += std::exp((logit - top) / temperature);
        if (target < sum) return token;
    }
    // Unreachable but for rounding of the sum: the loop above repeats the additions of `total` in the same order.
    return candidates_.front().second;
}

std::vector<TokenProbability> Sampler::top(const float* logits, int32_t n, int32_t k) {
    const double best = logits != nullptr && n > 0 ? logits[best_token(logits, n)] : 0;
    if (n <= 0 || k <= 0) return {};
    double total = 0;
    for (int32_t i = 0; i < n; ++i) total += std::exp(logits[i] - best);
    const double log_total = std::log(total);
    std::vector<Candidate> candidates;
    const auto n_kept = static_cast<size_t>(std::min(n, k));
    select_top(logits, n, n_kept, candidates);
    std::vector<TokenProbability> result;
    result.reserve(n_kept);
    for (size_t i = 0; i < n_kept; ++i) {
        result.push_back({candidates[i].second, static_cast<float>(candidates[i].first - best - log_total)});
    }
    return result;
}

}  // namespace assay
