#include <cmath>

#include "operators/rounding.h"
#include "operators/suites.h"

namespace assay::operators {
namespace {

struct Rotation {
    int64_t n_rot;
    int mode;
    double base;
    int sections[4];  // of multi-section modes: t, y, x, spare
};

// Which of the four positions turns pair k (interleaved sections: t, y, x by turns while each lasts).
int64_t axis_of(const Rotation& r, int64_t k) {
    const int64_t place = k % (r.sections[0] + r.sections[1] + r.sections[2] + r.sections[3]);
    for (const int64_t axis : {1, 2, 0}) {
        if (place % 3 == axis && place < 3 * r.sections[axis]) return axis;
    }
    return 3;
}

// x [size, heads, tokens]; positions [tokens], or [4 * tokens] by axis; factors [n_rot / 2] or nullptr.
Expected rotated(Setup& setup, ggml_tensor* x, ggml_tensor* positions, ggml_tensor* factors, const Rotation& r) {
    const bool is_multi = r.mode == GGML_ROPE_TYPE_IMROPE;
    ggml_context* context = setup.context();
    const auto n_rot = static_cast<int>(r.n_rot);
    const auto base = static_cast<float>(r.base);
    int sections[4] = {r.sections[0], r.sections[1], r.sections[2], r.sections[3]};
    ggml_tensor* out = is_multi ? ggml_rope_multi(context, x, positions, factors, n_rot, sections, r.mode, 4096, base, 1.0F, 0.0F,
                                                  1.0F, 32.0F, 1.0F)
                                : ggml_rope_ext(context, x, positions, factors, n_rot, r.mode, 4096, base, 1.0F, 0.0F, 1.0F,
                                                32.0F, 1.0F);
    const Numbers a = setup.numbers(x);
    const Numbers at = setup.numbers(positions);
    const Numbers by = setup.numbers(factors == nullptr ? positions : factors);
    const bool has_factors = factors != nullptr;
    const int64_t n_tokens = x->ne[2];
    const bool is_gpu = setup.is_gpu();
    return {out, each([=](int64_t i0, int64_t i1, int64_t i2, int64_t) -> Element {
                if (i0 >= r.n_rot) return {a(i0, i1, i2), 0.0};
                const int64_t half = r.n_rot / 2;
                const bool is_pairwise = r.mode == GGML_ROPE_TYPE_NORMAL;
                const int64_t k = is_pairwise ? i0 / 2 : i0 % half;
                const bool is_second = is_pairwise ? i0 % 2 == 1 : i0 >= half;
                const double first = a(is_pairwise ? 2 * k : k, i1, i2);
                const double second = a(is_pairwise ? 2 * k + 1 : k + half, i1, i2);
                const double position = at(is_multi ? axis_of(r, k) * n_tokens + i2 : i2);
                const double power = std::pow(r.base, -2.0 * static_cast<double>(k) / static_cast<double>(r.n_rot));
                const double angle = position * power / (has_factors ? by(k) : 1.0);
                const double value = is_second ? first * std::sin(angle) + second * std::cos(angle)
                                               : first * std::cos(angle) - second * std::sin(angle);
                // The angle of pair k comes of k products, or of a power; its error turns the pair.
                const double steps = is_gpu ? 16.0 + 8.0 * static_cast<double>(k) : 4.0 + 3.0 * static_cast<double>(k);
                const double turn = std::fabs(angle) * kSingle * steps + (is_gpu ? 0x1p-20 : 2.0 * kSingle);
                return {value, (std::fabs(first) + std::fabs(second)) * (turn + 4.0 * kSingle) + kTiny};
            })};
}

Case text_case(const std::string& name, Rotation r, int64_t size, int64_t heads, int64_t tokens, int64_t first, bool has_factors) {
    return {name, [=](Setup& setup) {
                ggml_tensor* x = setup.reals({size, heads, tokens, 1});
                ggml_tensor* at = setup.integers(GGML_TYPE_I32, {tokens, 1, 1, 1},
                                                 [=](size_t i) { return first + static_cast<int64_t>(i); });
                ggml_tensor* factors = has_factors ? setup.reals_of({r.n_rot / 2, 1, 1, 1},
                                                                    [](size_t i) { return 1.0 + 0.25 * static_cast<double>(i % 29); })
                                                   : nullptr;
                return rotated(setup, x, at, factors, r);
            }};
}

Case axes_case(int64_t tokens, int64_t first) {
    return {"three axes, " + std::to_string(tokens) + " tokens from " + std::to_string(first), [=](Setup& setup) {
                const Rotation r{64, GGML_ROPE_TYPE_IMROPE, 1e7, {11, 11, 10, 0}};
                ggml_tensor* wide = setup.reals({2 * 256, 4, tokens, 1});
                ggml_tensor* x = ggml_view_3d(setup.context(), wide, 256, 4, tokens, wide->nb[1], wide->nb[2], 0);
                ggml_tensor* at = setup.integers(GGML_TYPE_I32, {4 * tokens, 1, 1, 1}, [=](size_t i) {
                    const auto token = static_cast<int64_t>(i) % tokens;
                    const auto axis = static_cast<int64_t>(i) / tokens;
                    return axis == 3 ? 0 : first + (axis == 0 ? 3 : token / (axis == 1 ? 8 : 1) % 8);
                });
                return rotated(setup, x, at, nullptr, r);
            }};
}

}  // namespace

std::vector<Operator> positions() {
    Operator rope{"ROPE",
                  "the angle in single precision, by k products or a power for pair k (relative to the angle, so deep positions may "
                  "be off by more), sine and cosine, two products",
                  {}};
    const Rotation pairs{64, GGML_ROPE_TYPE_NORMAL, 1e5, {}};
    const Rotation halves{128, GGML_ROPE_TYPE_NEOX, 1e6, {}};
    const Rotation part{16, GGML_ROPE_TYPE_NEOX, 1e4, {}};
    for (const int64_t tokens : {1, 7, 512}) {
        rope.cases.push_back(text_case("pairs, " + std::to_string(tokens) + " tokens", pairs, 64, 9, tokens, 0, false));
        rope.cases.push_back(text_case("halves, " + std::to_string(tokens) + " tokens", halves, 128, 2, tokens, 0, false));
        rope.cases.push_back(axes_case(tokens, 5));
    }
    rope.cases.push_back(text_case("pairs with factors", pairs, 64, 3, 9, 100, true));
    rope.cases.push_back(text_case("a part of the head", part, 32, 4, 9, 40, false));
    rope.cases.push_back(text_case("back by 300", pairs, 64, 3, 5, -300, false));
    rope.cases.push_back(text_case("pairs at 8,190", pairs, 64, 3, 5, 8190, false));
    rope.cases.push_back(axes_case(9, 262130));
    rope.cases.push_back({"pairs inside of wider rows", [=](Setup& setup) {
        ggml_tensor* wide = setup.reals({64, 12, 9, 1});
        ggml_tensor* x = ggml_view_3d(setup.context(), wide, 64, 9, 9, wide->nb[1], wide->nb[2], 0);
        return rotated(setup, x, setup.integers(GGML_TYPE_I32, {9, 1, 1, 1}, [](size_t i) { return static_cast<int64_t>(i) + 40; }),
                       nullptr, pairs);
    }});
    rope.cases.push_back({"three axes, pooled keys", [](Setup& setup) {
        const Rotation r{64, GGML_ROPE_TYPE_IMROPE, 1e7, {11, 11, 10, 0}};
        ggml_tensor* at = setup.integers(GGML_TYPE_I32, {4 * 70, 1, 1, 1}, [](size_t i) { return static_cast<int64_t>(i * 4 % 290); });
        return rotated(setup, setup.reals({128, 1, 70, 1}), at, nullptr, r);
    }});
    return {rope};
}

}  // namespace assay::operators
