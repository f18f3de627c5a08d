// Operators on numbers one by one: sums, products, gates.
#include <cmath>

#include "operators/rounding.h"
#include "operators/suites.h"

namespace assay::operators {
namespace {

using Binary = ggml_tensor* (*)(ggml_context*, ggml_tensor*, ggml_tensor*);
using Unary = ggml_tensor* (*)(ggml_context*, ggml_tensor*);

// `roundings`: how often a result is rounded, at most. The right side repeats over rows that it lacks.
Expected joined(Setup& setup, Binary build, double (*exact)(double, double), double roundings, ggml_tensor* left,
                ggml_tensor* right) {
    const Numbers a = setup.numbers(left);
    const Numbers b = setup.numbers(right);
    const Shape shape{right->ne[0], right->ne[1], right->ne[2], right->ne[3]};
    return {build(setup.context(), left, right), each([=](int64_t i0, int64_t i1, int64_t i2, int64_t i3) -> Element {
                const double value = exact(a(i0, i1, i2, i3), b(i0 % shape[0], i1 % shape[1], i2 % shape[2], i3 % shape[3]));
                return {value, std::fabs(value) * kSingle * roundings + kTiny};
            })};
}

Operator binary(const char* name, Binary build, double (*exact)(double, double), double roundings) {
    Operator found{name,
                   roundings == 1.0 ? "one rounding in single precision"
                                    : "a quotient, on GPUs off by two units of the last place: five roundings",
                   {}};
    const auto add = [&](const std::string& text, Shape left, Shape right) {
        found.cases.push_back({text, [=](Setup& setup) {
                                   return joined(setup, build, exact, roundings, setup.reals(left),
                                                 setup.reals_of(right, [](size_t i) { return 0.25 + std::fabs(made_up(~i)); }));
                               }});
    };
    for (const int64_t n : {1, 7, 512}) add("576 x " + std::to_string(n), {576, n, 1, 1}, {576, n, 1, 1});
    add("a bias for 70 rows", {576, 70, 1, 1}, {576, 1, 1, 1});
    add("a number a row", {128, 70, 1, 1}, {1, 70, 1, 1});
    add("a number a stream", {64, 4, 9, 1}, {1, 4, 9, 1});
    add("streams with rows of their own", {64, 4, 9, 1}, {64, 4, 1, 1});
    add("a mask for all heads", {67, 5, 4, 3}, {67, 5, 1, 3});
    add("a large row of 65,537", {65537, 2, 1, 1}, {65537, 2, 1, 1});
    // Parts of wider rows, as sums over streams and experts take them.
    const auto part = [](Setup& setup, ggml_tensor* wide, size_t which) {
        return ggml_view_2d(setup.context(), wide, wide->ne[0], wide->ne[2], wide->nb[2], which * wide->nb[1]);
    };
    const auto wide = [](Setup& setup) {
        return setup.reals_of({64, 4, 9, 1}, [](size_t i) { return 0.25 + std::fabs(made_up(i)); });
    };
    found.cases.push_back({"two parts of rows", [=](Setup& setup) {
        ggml_tensor* all = wide(setup);
        return joined(setup, build, exact, roundings, part(setup, all, 0), part(setup, all, 3));
    }});
    found.cases.push_back({"a row and a part of one", [=](Setup& setup) {
        ggml_tensor* all = wide(setup);
        return joined(setup, build, exact, roundings, setup.reals({64, 9, 1, 1}), part(setup, all, 2));
    }});
    found.cases.push_back({"a part of a row and a bias", [=](Setup& setup) {
        ggml_tensor* all = wide(setup);
        return joined(setup, build, exact, roundings, part(setup, all, 1), setup.reals_of({64, 1, 1, 1}, [](size_t i) {
            return 0.5 + static_cast<double>(i % 7);
        }));
    }});
    return found;
}

struct Function {
    const char* name;
    Unary build;
    double (*exact)(double);
    double (*tolerance)(double x, double value);
    const char* reason;
};

double no_tolerance(double, double) { return 0.0; }
double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
// The exponential's argument is rounded, and GPUs take a power of two of a product.
double exponential_error(double x, double value) { return std::fabs(value) * kSingle * (16.0 + 8.0 * std::fabs(x)) + kTiny; }

constexpr Function kFunctions[] = {
    {"SIGMOID", ggml_sigmoid, sigmoid, exponential_error, "an exponential, whose argument is rounded, a sum and a quotient"},
    {"SILU", ggml_silu, [](double x) { return x * sigmoid(x); }, exponential_error,
     "an exponential, whose argument is rounded, a sum and a quotient"},
    {"SOFTPLUS", ggml_softplus, [](double x) { return std::log1p(std::exp(-std::fabs(x))) + std::fmax(x, 0.0); },
     [](double x, double value) { return exponential_error(x, value) + 8.0 * kSingle; },
     "the logarithm of one and an exponential: what is below one's rounding is lost"},
    {"SQRT", ggml_sqrt, [](double x) { return std::sqrt(x); }, [](double, double value) { return 4.0 * kSingle * value + kTiny; },
     "a root, on GPUs by a product"},
    {"NEG", ggml_neg, [](double x) { return -x; }, no_tolerance, "exact"},
    {"ABS", ggml_abs, [](double x) { return std::fabs(x); }, no_tolerance, "exact"},
    {"RELU", ggml_relu, [](double x) { return x > 0.0 ? x : 0.0; }, no_tolerance, "exact"},
    {"STEP", ggml_step, [](double x) { return x > 0.0 ? 1.0 : 0.0; }, no_tolerance, "exact"},
    {"SGN", ggml_sgn, [](double x) { return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : 0.0; }, no_tolerance, "exact"},
};

Expected mapped(Setup& setup, const Function& function, ggml_tensor* x) {
    const Numbers a = setup.numbers(x);
    return {function.build(setup.context(), x), each([=](int64_t i0, int64_t i1, int64_t i2, int64_t i3) -> Element {
                const double number = a(i0, i1, i2, i3);
                const double value = function.exact(number);
                return {value, function.tolerance(number, value)};
            })};
}

Operator unary(const Function& function) {
    Operator found{function.name, function.reason, {}};
    const bool is_root = std::string(function.name) == "SQRT";
    for (const int64_t n : {1, 7, 512, 65537}) {
        const int64_t width = n == 65537 ? 4 : 512;
        found.cases.push_back({std::to_string(n) + " rows of " + std::to_string(width), [=](Setup& setup) {
                                   return mapped(setup, function, setup.reals_of({width, n, 1, 1}, [=](size_t i) {
                                       const double number = 9.0 * made_up(i);
                                       return is_root ? std::fabs(number) : number;
                                   }));
                               }});
    }
    found.cases.push_back({"borders", [=](Setup& setup) {
        // In pairs of opposite signs, and both sides of where implementations take another formula.
        return mapped(setup, function, setup.reals_of({33, 2, 1, 1}, [=](size_t i) {
            constexpr double kBorders[] = {0.0, 1e-6, 1.0, 19.5, 20.5, 60.0, 80.0};
            const double number = kBorders[i / 2 % 7];
            return is_root || i % 2 == 0 ? number : number == 0.0 ? 1e-3 : -number;
        }));
    }});
    return found;
}

Operator scale() {
    Operator found{"SCALE", "a product and a sum, each rounded", {}};
    const auto add = [&](const std::string& text, Shape shape, float factor, float offset) {
        found.cases.push_back({text, [=](Setup& setup) {
            ggml_tensor* x = setup.reals(shape, 3.0);
            const Numbers a = setup.numbers(x);
            ggml_tensor* out = offset == 0.0F ? ggml_scale(setup.context(), x, factor)
                                              : ggml_scale_bias(setup.context(), x, factor, offset);
            return Expected{out, each([=](int64_t i0, int64_t i1, int64_t i2, int64_t i3) -> Element {
                const double product = a(i0, i1, i2, i3) * static_cast<double>(factor);
                const double value = product + static_cast<double>(offset);
                return {value, (std::fabs(product) + std::fabs(value)) * kSingle + kTiny};
            })};
        }});
    };
    for (const int64_t n : {1, 7, 512}) add("by 1 / sqrt(64), 576 x " + std::to_string(n), {576, n, 1, 1}, 0.125F, 0.0F);
    add("by a third, 65,537 rows", {3, 65537, 1, 1}, 1.0F / 3.0F, 0.0F);
    add("0 and 1 to hidden and seen", {67, 9, 1, 1}, 1e30F, -1e30F);
    add("one minus", {67, 9, 1, 1}, -1.0F, 1.0F);
    return found;
}

Operator clamp() {
    Operator found{"CLAMP", "exact", {}};
    for (const int64_t n : {1, 7, 512}) {
        found.cases.push_back({"from below, " + std::to_string(n) + " rows", [=](Setup& setup) {
            constexpr float kLeast = 6.103515625e-5F;
            ggml_tensor* x = setup.reals({1, n * 4, 1, 1}, n == 1 ? 1.0 : 1e-3);
            const Numbers a = setup.numbers(x);
            return Expected{ggml_clamp(setup.context(), x, kLeast, INFINITY),
                            each([=](int64_t i0, int64_t i1, int64_t, int64_t) -> Element {
                                return {std::fmax(a(i0, i1), static_cast<double>(kLeast)), 0.0};
                            })};
        }});
    }
    return found;
}

Operator swiglu() {
    Operator found{"SWIGLU", "an exponential, whose argument is rounded, a sum, a quotient and a product", {}};
    for (const bool is_split : {false, true}) {
        for (const int64_t n : {1, 7, 512}) {
            found.cases.push_back({std::string(is_split ? "two tensors" : "halves of a row") + ", 288 x " + std::to_string(n),
                                   [=](Setup& setup) {
                constexpr int64_t kWidth = 288;
                ggml_tensor* first = setup.reals({is_split ? kWidth : 2 * kWidth, n, 2, 1}, 6.0);
                ggml_tensor* second = is_split ? setup.reals({kWidth, n, 2, 1}, 2.0) : first;
                const Numbers gate = setup.numbers(first);
                const Numbers up = setup.numbers(second);
                ggml_tensor* out = is_split ? ggml_swiglu_split(setup.context(), first, second) : ggml_swiglu(setup.context(), first);
                return Expected{out, each([=](int64_t i0, int64_t i1, int64_t i2, int64_t) -> Element {
                    const double x = gate(i0, i1, i2);
                    const double value = x * sigmoid(x) * up(is_split ? i0 : i0 + kWidth, i1, i2);
                    return {value, exponential_error(x, value)};
                })};
            }});
        }
    }
    return found;
}

}  // namespace

std::vector<Operator> elementwise() {
    std::vector<Operator> all = {
        binary("ADD", ggml_add, [](double a, double b) { return a + b; }, 1.0),
        binary("SUB", ggml_sub, [](double a, double b) { return a - b; }, 1.0),
        binary("MUL", ggml_mul, [](double a, double b) { return a * b; }, 1.0),
        binary("DIV", ggml_div, [](double a, double b) { return a / b; }, 5.0),
        scale(), clamp(), swiglu()};
    for (const Function& function : kFunctions) all.push_back(unary(function));
    return all;
}

}  // namespace assay::operators
