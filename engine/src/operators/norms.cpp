#include "norm.h"

#include <cmath>

#include "operators/rounding.h"
#include "operators/suites.h"

namespace assay::operators {
namespace {

constexpr float kEpsilon = 1e-6F;

// One row's factor: 1 / sqrt(mean of squares + epsilon).
double factor(const Numbers& x, int64_t n, int64_t i1, int64_t i2, int64_t i3, double epsilon) {
    double squares = 0.0;
    for (int64_t i = 0; i < n; ++i) squares += x(i, i1, i2, i3) * x(i, i1, i2, i3);
    return 1.0 / std::sqrt(squares / static_cast<double>(n) + epsilon);
}

// Half the relative error of the sum of squares, then the root, the quotient, two products and their roundings.
double relative_error(int64_t n) { return kSingle * (12.0 + std::sqrt(static_cast<double>(n))); }

Expected weighted(Setup& setup, ggml_tensor* x, ggml_tensor* weight) {
    const Numbers a = setup.numbers(x);
    const Numbers w = setup.numbers(weight);
    const int64_t n = x->ne[0];
    const int64_t n_weights = weight->ne[1];
    return {rms_rows(setup.context(), x, weight, kEpsilon),
            [=](int64_t i1, int64_t i2, int64_t i3, std::span<Element> row) {
                const double scale = factor(a, n, i1, i2, i3, static_cast<double>(kEpsilon));
                for (int64_t i = 0; i < n; ++i) {
                    const double value = a(i, i1, i2, i3) * scale * w(i, i1 % n_weights);
                    row[static_cast<size_t>(i)] = {value, std::fabs(value) * relative_error(n) + kTiny};
                }
            }};
}

Expected unweighted(Setup& setup, ggml_tensor* x, float epsilon) {
    const Numbers a = setup.numbers(x);
    const int64_t n = x->ne[0];
    return {ggml_rms_norm(setup.context(), x, epsilon), [=](int64_t i1, int64_t i2, int64_t i3, std::span<Element> row) {
                const double scale = factor(a, n, i1, i2, i3, static_cast<double>(epsilon));
                for (int64_t i = 0; i < n; ++i) {
                    const double value = a(i, i1, i2, i3) * scale;
                    row[static_cast<size_t>(i)] = {value, std::fabs(value) * relative_error(n) + kTiny};
                }
            }};
}

Case rows_case(int64_t width, int64_t n_rows, double scale = 1.0) {
    return {std::to_string(n_rows) + " rows of " + std::to_string(width) + (scale == 1.0 ? "" : ", small numbers"),
            [=](Setup& setup) {
                ggml_tensor* x = setup.reals({width, n_rows, 1, 1}, scale);
                return weighted(setup, x, setup.reals({width, 1, 1, 1}));
            }};
}

}  // namespace

std::vector<Operator> norms() {
    Operator norm{"RMS_NORM", "the sum of a row's squares in single precision, a root, a quotient and two products", {}};
    for (const int64_t n_rows : {1, 7, 512}) norm.cases.push_back(rows_case(576, n_rows));
    for (const int64_t n_rows : {65535, 65536, 131072}) norm.cases.push_back(rows_case(128, n_rows));
    norm.cases.push_back(rows_case(33, 5));
    norm.cases.push_back(rows_case(16384, 3));
    norm.cases.push_back(rows_case(2048, 7, 1e-4));  // where epsilon counts
    norm.cases.push_back({"heads inside of a wider row", [](Setup& setup) {
        ggml_tensor* wide = setup.reals({2 * 64, 4, 9, 1});
        ggml_tensor* heads = ggml_view_3d(setup.context(), wide, 64, 4, 9, wide->nb[1], wide->nb[2], 0);
        return weighted(setup, heads, setup.reals({64, 1, 1, 1}));
    }});
    norm.cases.push_back({"streams with weights of their own", [](Setup& setup) {
        ggml_tensor* streams = setup.reals({256, 4, 7, 1});
        return weighted(setup, streams, setup.reals({256, 4, 1, 1}));
    }});
    for (const int64_t n_rows : {1, 7, 512}) {
        norm.cases.push_back({"without weights, " + std::to_string(n_rows) + " rows", [=](Setup& setup) {
                                  return unweighted(setup, setup.reals({576, n_rows, 1, 1}), kEpsilon);
                              }});
    }
    norm.cases.push_back({"without weights, heads inside of a row", [](Setup& setup) {
        ggml_tensor* wide = setup.reals({512, 7, 1, 1});
        constexpr size_t kSize = sizeof(float);
        ggml_tensor* heads = ggml_view_4d(setup.context(), wide, 64, 2, 7, 1, 64 * kSize, wide->nb[1], wide->nb[1] * 7, 128 * kSize);
        return unweighted(setup, heads, kEpsilon / 64.0F);
    }});
    return {norm};
}

}  // namespace assay::operators
