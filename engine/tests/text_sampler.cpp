// Sampling on small rows of logits: what each step keeps, that draws follow the probabilities, and that seeds repeat.
#include <cmath>
#include <iostream>
#include <limits>

#include "sampler.h"
#include "text_check.h"

namespace {

using assay::Sampler;
using assay::SamplingSettings;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Every step off, so that a test switches on just its own.
SamplingSettings plain(uint32_t seed = 1) {
    SamplingSettings settings;
    settings.temperature = 1;
    settings.top_k = 0;
    settings.top_p = 1;
    settings.min_p = 0;
    settings.seed = seed;
    return settings;
}

std::vector<float> frequencies(const SamplingSettings& settings, const std::vector<float>& logits, int draws) {
    Sampler sampler(settings);
    std::vector<float> counts(logits.size(), 0);
    for (int i = 0; i < draws; ++i) {
        counts.at(static_cast<size_t>(sampler.sample(logits.data(), static_cast<int32_t>(logits.size())))) += 1;
    }
    for (float& count : counts) count /= static_cast<float>(draws);
    return counts;
}

int32_t sample_once(const SamplingSettings& settings, const std::vector<float>& logits) {
    return Sampler(settings).sample(logits.data(), static_cast<int32_t>(logits.size()));
}

void greedy_takes_the_best_and_ties_go_to_the_lowest_id() {
    SamplingSettings greedy = plain();
    greedy.temperature = 0;
    CHECK_EQUAL(sample_once(greedy, {1, 3, 2}), 1);
    CHECK_EQUAL(sample_once(greedy, {1, 3, 3, 3}), 1);
    CHECK_EQUAL(sample_once(greedy, {-kInfinity, -5, -kInfinity}), 1);
    CHECK_EQUAL(sample_once(greedy, {0.0F, -0.0F}), 0);
    greedy.temperature = -1;
    CHECK_EQUAL(sample_once(greedy, {1, 3, 2}), 1);
    greedy.repeat_penalty = 2;
    Sampler sampler(greedy);
    sampler.accept(1);
    const float logits[] = {2, 3, 2};
    CHECK_EQUAL(sampler.sample(logits, 3), 0);
    CHECK_EQUAL(logits[1], 3.0F);
}

void draws_follow_the_probabilities() {
    const std::vector<float> logits = {0, std::log(2.0F), std::log(5.0F), -kInfinity};
    const auto found = frequencies(plain(), logits, 40000);
    // Four standard deviations at p = 1/2 are 0.01.
    CHECK(std::fabs(found[0] - 0.125) < 0.01 && std::fabs(found[1] - 0.25) < 0.01 && std::fabs(found[2] - 0.625) < 0.01);
    CHECK_EQUAL(found[3], 0.0F);
    SamplingSettings hot = plain();
    hot.temperature = 2;
    const auto flatter = frequencies(hot, logits, 40000);
    const double total = 1 + std::sqrt(2.0) + std::sqrt(5.0);
    CHECK(std::fabs(flatter[0] - 1 / total) < 0.01 && std::fabs(flatter[2] - std::sqrt(5.0) / total) < 0.01);
    SamplingSettings cold = plain();
    cold.temperature = 1e-6F;
    CHECK_EQUAL(frequencies(cold, logits, 100)[2], 1.0F);
}

void each_filter_keeps_what_it_says() {
    const std::vector<float> logits = {std::log(0.4F), std::log(0.1F), std::log(0.3F), std::log(0.2F)};
    const auto kept = [&](const SamplingSettings& settings) {
        std::string text;
        for (const float frequency : frequencies(settings, logits, 4000)) text += frequency > 0 ? '1' : '0';
        return text;
    };
    SamplingSettings settings = plain();
    CHECK_EQUAL(kept(settings), "1111");
    settings.top_k = 2;
    CHECK_EQUAL(kept(settings), "1010");
    settings.top_k = 100;
    CHECK_EQUAL(kept(settings), "1111");
    settings = plain();
    settings.top_p = 0.65F;
    CHECK_EQUAL(kept(settings), "1010");
    settings.top_p = 0.75F;
    CHECK_EQUAL(kept(settings), "1011");
    settings.top_p = 0;
    CHECK_EQUAL(kept(settings), "1000");
    settings = plain();
    settings.min_p = 0.45F;
    CHECK_EQUAL(kept(settings), "1011");
    settings.min_p = 1;
    CHECK_EQUAL(kept(settings), "1000");
    // top-p looks at what top-k left: 0.4 and 0.3 of 0.7, where 0.55 is enough for one only.
    settings = plain();
    settings.top_k = 2;
    settings.top_p = 0.55F;
    CHECK_EQUAL(kept(settings), "1000");
    // The filters come before the temperature, so that a hot one does not widen them.
    settings = plain();
    settings.min_p = 0.45F;
    settings.temperature = 100;
    CHECK_EQUAL(kept(settings), "1011");
    // Equal logits are kept by id.
    settings = plain();
    settings.top_k = 1;
    CHECK_EQUAL(sample_once(settings, {1, 2, 2}), 1);
}

void the_penalty_counts_tokens_in_its_window_once() {
    SamplingSettings settings = plain();
    settings.temperature = 0;
    settings.repeat_penalty = 2;
    settings.repeat_last_n = 2;
    Sampler sampler(settings);
    const float logits[] = {4, 3, -1};
    sampler.accept(0);
    sampler.accept(0);
    CHECK_EQUAL(sampler.sample(logits, 3), 1);  // 4 / 2 = 2, once
    sampler.accept(2);
    sampler.accept(2);
    CHECK_EQUAL(sampler.sample(logits, 3), 0);  // 0 has left the window
    for (int i = 0; i < 1000; ++i) sampler.accept(i % 2);
    const float close[] = {4, 3, 2.1F};
    CHECK_EQUAL(sampler.sample(close, 3), 2);
    sampler.accept(-5);
    sampler.accept(1000);
    CHECK_EQUAL(sampler.sample(close, 3), 0);  // ids outside the vocabulary fill the window and do no harm
    const float negative[] = {-1, -1.5F};
    SamplingSettings whole = settings;
    whole.repeat_last_n = -1;
    Sampler long_memory(whole);
    long_memory.accept(0);
    for (int i = 0; i < 500; ++i) long_memory.accept(7);
    CHECK_EQUAL(long_memory.sample(negative, 2), 1);
    settings.repeat_last_n = 0;
    Sampler off(settings);
    off.accept(0);
    CHECK_EQUAL(off.sample(logits, 3), 0);
}

void equal_seeds_give_equal_draws() {
    std::vector<float> logits;
    for (int i = 0; i < 1000; ++i) logits.push_back(std::sin(static_cast<float>(i)) * 3);
    const auto draw = [&](uint32_t seed) {
        SamplingSettings settings;
        settings.seed = seed;
        Sampler sampler(settings);
        std::string ids;
        for (int i = 0; i < 50; ++i) ids += std::to_string(sampler.sample(logits.data(), 1000)) + " ";
        return ids;
    };
    CHECK_EQUAL(draw(42), draw(42));
    CHECK(draw(42) != draw(43));
    SamplingSettings drawn;
    const uint32_t used = Sampler(drawn).settings().seed;
    CHECK(used != 0xFFFFFFFF);
    CHECK_EQUAL(Sampler(plain(5)).settings().seed, 5U);
}

void logits_that_are_no_numbers_are_an_error() {
    for (const float temperature : {0.0F, 1.0F}) {
        SamplingSettings settings = plain();
        settings.temperature = temperature;
        CHECK_ERROR(sample_once(settings, {1, kNan, 2}), "the logit of token 1 is not a number");
        CHECK_ERROR(sample_once(settings, {kNan}), "token 0");
        CHECK_ERROR(sample_once(settings, {1, kInfinity}), "token 1 is infinite");
        CHECK_ERROR(sample_once(settings, {-kInfinity, -kInfinity}), "every token is excluded");
        CHECK_ERROR(sample_once(settings, {}), "no logits");
    }
    SamplingSettings settings = plain();
    settings.repeat_penalty = 0;
    CHECK_ERROR(Sampler(settings), "repeat_penalty");
    settings.repeat_penalty = kNan;
    CHECK_ERROR(Sampler(settings), "repeat_penalty is not a finite number");
    settings = plain();
    settings.repeat_last_n = -2;
    CHECK_ERROR(Sampler(settings), "repeat_last_n");
    settings = plain();
    settings.repeat_penalty = 1e-30F;
    Sampler bonus(settings);
    bonus.accept(0);
    const float large[] = {1e30F, 1};
    CHECK_EQUAL(bonus.sample(large, 2), 0);
}

void the_top_list_holds_log_probabilities_of_the_raw_logits() {
    const float logits[] = {0, std::log(2.0F), std::log(5.0F), -kInfinity};
    const auto top = Sampler::top(logits, 4, 2);
    CHECK_EQUAL(top.size(), size_t{2});
    CHECK(top[0].token == 2 && std::fabs(top[0].logprob - std::log(0.625)) < 1e-6);
    CHECK(top[1].token == 1 && std::fabs(top[1].logprob - std::log(0.25)) < 1e-6);
    CHECK_EQUAL(Sampler::top(logits, 4, 9).size(), size_t{4});
    CHECK(Sampler::top(logits, 4, 0).empty());
    const float huge[] = {3e38F, -3e38F};
    CHECK(std::fabs(Sampler::top(huge, 2, 1)[0].logprob) < 1e-6);
}

void long_rows_are_searched_to_the_last_token() {
    std::mt19937 random(3);
    SamplingSettings greedy = plain();
    greedy.temperature = 0;
    SamplingSettings first = plain();
    first.top_k = 1;
    for (int32_t n = 1; n < 1100; n += 1 + n / 8) {
        std::vector<float> logits;
        for (int32_t i = 0; i < n; ++i) logits.push_back(static_cast<float>(random() % 50) - 25);
        int32_t best = 0;
        for (int32_t i = 0; i < n; ++i) best = logits[static_cast<size_t>(i)] > logits[static_cast<size_t>(best)] ? i : best;
        CHECK_EQUAL(sample_once(greedy, logits), best);
        CHECK_EQUAL(sample_once(first, logits), best);
        CHECK_EQUAL(Sampler::top(logits.data(), n, 1).front().token, best);
        const auto place = static_cast<size_t>(random()) % logits.size();
        logits[place] = kNan;
        CHECK_ERROR(sample_once(greedy, logits), "token " + std::to_string(place) + " is not a number");
        logits[place] = kInfinity;
        CHECK_ERROR(sample_once(greedy, logits), "token " + std::to_string(place) + " is infinite");
        logits[place] = 1000;
        CHECK_EQUAL(sample_once(greedy, logits), static_cast<int32_t>(place));
    }
    // Half of 2000 equal tokens: the 1000 lowest ids, each about five times.
    SamplingSettings half = plain();
    half.top_p = 0.5F;
    const auto found = frequencies(half, std::vector<float>(2000, 1.5F), 5000);
    int n_drawn = 0;
    for (size_t i = 0; i < found.size(); ++i) {
        n_drawn += found[i] > 0 ? 1 : 0;
        if (i >= 1000) CHECK_EQUAL(found[i], 0.0F);
    }
    CHECK(n_drawn > 950);
}

}  // namespace

int main() {
    long_rows_are_searched_to_the_last_token();
    greedy_takes_the_best_and_ties_go_to_the_lowest_id();
    draws_follow_the_probabilities();
    each_filter_keeps_what_it_says();
    the_penalty_counts_tokens_in_its_window_once();
    equal_seeds_give_equal_draws();
    logits_that_are_no_numbers_are_an_error();
    the_top_list_holds_log_probabilities_of_the_raw_logits();
    return check::finish();
}
