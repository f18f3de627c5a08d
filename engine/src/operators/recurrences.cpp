// The linear blocks: a convolution over time, and the gated delta rule over a state.
#include <algorithm>
#include <cmath>

#include "operators/rounding.h"
#include "operators/suites.h"

namespace assay::operators {
namespace {

Operator convolution() {
    Operator found{"SSM_CONV", "a sum of as many products as the kernel is long, in single precision", {}};
    for (const int64_t n : {1, 7, 512}) {
        for (const int64_t width : {96, 384}) {
            found.cases.push_back({std::to_string(width) + " channels, " + std::to_string(n) + " tokens", [=](Setup& setup) {
                constexpr int64_t kTaps = 4;
                ggml_tensor* x = setup.reals({kTaps - 1 + n, width, 1, 1});
                ggml_tensor* taps = setup.reals({kTaps, width, 1, 1});
                const Numbers a = setup.numbers(x);
                const Numbers w = setup.numbers(taps);
                ggml_tensor* out = ggml_ssm_conv(setup.context(), x, taps);
                return Expected{out, each([=](int64_t channel, int64_t t, int64_t, int64_t) -> Element {
                    double sum = 0.0;
                    double magnitude = 0.0;
                    for (int64_t j = 0; j < kTaps; ++j) {
                        sum += a(t + j, channel) * w(j, channel);
                        magnitude += std::fabs(a(t + j, channel) * w(j, channel));
                    }
                    return {sum, sum_error(magnitude, kTaps)};
                })};
            }});
        }
    }
    return found;
}

struct DeltaShape {
    int64_t size, keys, values, tokens, kept;
};

// One value head from its first state on: the outputs of all tokens and the states after each.
struct DeltaHead {
    std::vector<double> outputs;              // [tokens][size]
    std::vector<std::vector<double>> states;  // [tokens][column * size + row], as the operator lays them out
    double most = 0.0;                        // largest column of a state, by its length, and largest value
};

// With S the state of a head, q and k its queries and keys, g the logarithm of the decay: S = exp(g) S;
// S += k (beta (v - S^T k))^T; out = S^T q / sqrt(size). (Yang et al., Gated Delta Networks, 2024, equation 10.)
DeltaHead follow(const DeltaShape& s, int64_t head, const Numbers& q, const Numbers& k, const Numbers& v, const Numbers& gate,
                 const Numbers& beta, const Numbers& first) {
    DeltaHead found;
    std::vector<double> state(static_cast<size_t>(s.size * s.size));
    for (int64_t column = 0; column < s.size; ++column) {
        for (int64_t row = 0; row < s.size; ++row) state[static_cast<size_t>(column * s.size + row)] = first(row, column, head);
    }
    const int64_t pair = head % s.keys;
    for (int64_t t = 0; t < s.tokens; ++t) {
        const double decay = std::exp(gate(0, head, t));
        for (int64_t column = 0; column < s.size; ++column) {
            double* own = state.data() + column * s.size;
            double length = 0.0;
            double predicted = 0.0;
            for (int64_t row = 0; row < s.size; ++row) {
                length += own[row] * own[row];
                own[row] *= decay;
                predicted += own[row] * k(row, pair, t);
            }
            const double delta = (v(column, head, t) - predicted) * beta(0, head, t);
            double out = 0.0;
            for (int64_t row = 0; row < s.size; ++row) {
                own[row] += delta * k(row, pair, t);
                out += own[row] * q(row, pair, t);
            }
            found.outputs.push_back(out / std::sqrt(static_cast<double>(s.size)));
            found.most = std::max({found.most, std::sqrt(length), std::fabs(v(column, head, t))});
        }
        found.states.push_back(state);
    }
    return found;
}

// Rows of length one, as the norm before the operator makes them: the rule neither grows nor amplifies errors then.
ggml_tensor* unit_rows(Setup& setup, int64_t size, int64_t heads, int64_t tokens, uint64_t salt) {
    return setup.reals_of({size, heads, tokens, 1}, [=](size_t i) {
        const size_t begin = i / static_cast<size_t>(size) * static_cast<size_t>(size);
        double squares = 0.0;
        for (size_t j = begin; j < begin + static_cast<size_t>(size); ++j) squares += made_up(salt + j) * made_up(salt + j);
        return made_up(salt + i) / std::sqrt(squares);
    });
}

Case delta_case(const DeltaShape& s) {
    return {std::to_string(s.values) + " heads of " + std::to_string(s.size) + ", " + std::to_string(s.tokens) + " tokens, " +
                std::to_string(s.kept) + " states kept",
            [=](Setup& setup) {
                ggml_context* context = setup.context();
                ggml_tensor* q = unit_rows(setup, s.size, s.keys, s.tokens, 1U << 20U);
                ggml_tensor* k = unit_rows(setup, s.size, s.keys, s.tokens, 1U << 21U);
                // Values stand inside of wider rows where there are several tokens.
                ggml_tensor* wide = setup.reals({s.size, s.values + 2 * s.keys, s.tokens, 1});
                ggml_tensor* v = ggml_view_4d(context, wide, s.size, s.values, s.tokens, 1, wide->nb[1], wide->nb[2], wide->nb[3],
                                              static_cast<size_t>(2 * s.keys) * wide->nb[1]);
                ggml_tensor* gate = setup.reals_of({1, s.values, s.tokens, 1}, [](size_t i) { return -0.3 * std::fabs(made_up(i)); });
                ggml_tensor* beta = setup.reals_of({1, s.values, s.tokens, 1}, [](size_t i) { return 0.5 + 0.4 * made_up(~i); });
                ggml_tensor* first = setup.reals({s.size, s.size, s.values, 1}, 0.5);
                ggml_tensor* out = ggml_gated_delta_net(context, q, k, v, gate, beta, first, s.kept);
                auto heads = std::make_shared<std::vector<DeltaHead>>();
                const Numbers a = setup.numbers(q), b = setup.numbers(k), c = setup.numbers(v), d = setup.numbers(gate),
                              e = setup.numbers(beta), f = setup.numbers(first);
                return Expected{out, [=](int64_t i1, int64_t i2, int64_t i3, std::span<Element> row) {
                    if (heads->empty()) {
                        for (int64_t head = 0; head < s.values; ++head) heads->push_back(follow(s, head, a, b, c, d, e, f));
                    }
                    const auto width = static_cast<int64_t>(row.size());
                    for (int64_t i0 = 0; i0 < width; ++i0) {
                        // The result is flat: outputs [size, heads, tokens], then states [size, size, heads, kept], newest first.
                        int64_t at = i0 + width * (i1 + out->ne[1] * (i2 + out->ne[2] * i3));
                        const bool is_state = at >= s.size * s.values * s.tokens;
                        if (is_state) at -= s.size * s.values * s.tokens;
                        const int64_t unit = is_state ? s.size * s.size : s.size;
                        const DeltaHead& head = (*heads)[static_cast<size_t>(at / unit % s.values)];
                        const int64_t which = at / unit / s.values;
                        const double steps = static_cast<double>(is_state ? s.tokens - which : which + 1);
                        const double bound = head.most * kSingle * (8.0 + std::sqrt(static_cast<double>(s.size))) * (1.0 + steps);
                        Element& element = row[static_cast<size_t>(i0)];
                        if (is_state)
                            element = {head.states[static_cast<size_t>(s.tokens - 1 - which)][static_cast<size_t>(at % unit)], bound};
                        else
                            element = {head.outputs[static_cast<size_t>(which * s.size + at % unit)],
                                       bound / std::sqrt(static_cast<double>(s.size))};
                    }
                }};
            }};
}

Operator delta_net() {
    Operator found{"GATED_DELTA_NET",
                   "each token adds the error of its sums, relative to the longest column of the state; keys of length one do not "
                   "amplify what is there",
                   {}};
    for (const DeltaShape& s : {DeltaShape{128, 2, 4, 1, 1}, DeltaShape{64, 2, 4, 7, 1}, DeltaShape{128, 2, 2, 70, 1},
                                DeltaShape{64, 4, 4, 7, 3}, DeltaShape{16, 2, 4, 64, 4}, DeltaShape{32, 1, 3, 5, 5}})
        found.cases.push_back(delta_case(s));
    return found;
}

}  // namespace

std::vector<Operator> recurrences() { return {convolution(), delta_net()}; }

}  // namespace assay::operators
