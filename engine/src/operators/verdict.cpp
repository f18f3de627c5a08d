#include "operators/verdict.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "failure.h"

namespace assay::operators {
namespace {

// Numbers of the inputs that a control changes, one after the other, until one is seen.
constexpr int kPlanted = 32;

bool is_same(double a, double b) { return a == b && std::signbit(a) == std::signbit(b); }

std::string place_text(int64_t i0, int64_t i1, int64_t i2, int64_t i3, double found, double expected) {
    char text[160];
    std::snprintf(text, sizeof text, "at [%lld, %lld, %lld, %lld]: %.9g, expected %.9g", static_cast<long long>(i0),
                  static_cast<long long>(i1), static_cast<long long>(i2), static_cast<long long>(i3), found, expected);
    return text;
}

Result compare(const Expected& expected, const std::vector<double>& found) {
    const int64_t* ne = expected.out->ne;
    std::vector<Element> row(static_cast<size_t>(ne[0]));
    Result result;
    double worst = -1.0;
    size_t at = 0;
    for (int64_t i3 = 0; i3 < ne[3]; ++i3) {
        for (int64_t i2 = 0; i2 < ne[2]; ++i2) {
            for (int64_t i1 = 0; i1 < ne[1]; ++i1) {
                expected.rows(i1, i2, i3, row);
                for (int64_t i0 = 0; i0 < ne[0]; ++i0, ++at) {
                    const Element& needed = row[static_cast<size_t>(i0)];
                    double error = std::fabs(found[at] - needed.value);
                    if (needed.tolerance == 0.0) error = is_same(found[at], needed.value) ? 0.0 : std::max(error, 0x1p-1074);
                    if (!std::isfinite(error)) error = INFINITY;
                    const double share = error == 0.0 ? 0.0 : error / needed.tolerance;
                    if (!(share > worst)) continue;
                    worst = share;
                    result.error = error;
                    result.tolerance = needed.tolerance;
                    if (share <= 1.0) continue;
                    result.verdict = Verdict::fail;
                    result.reason = place_text(i0, i1, i2, i3, found[at], needed.value);
                }
            }
        }
    }
    return result;
}

bool is_elementwise(ggml_op op) {
    return op == GGML_OP_ADD || op == GGML_OP_SUB || op == GGML_OP_MUL || op == GGML_OP_DIV;
}

std::string source_text(const ggml_tensor* node, int index) {
    const ggml_tensor* source = node->src[index];
    std::string text = ggml_type_name(source->type);
    if (source->nb[0] != ggml_type_size(source->type))
        text += " strided";
    else if (!ggml_is_contiguous(source))
        text += " rows";
    if (index == 1 && is_elementwise(node->op) && !ggml_are_same_shape(source, node->src[0])) text += " repeated";
    return text;
}

}  // namespace

const char* text_of(Verdict verdict) {
    if (verdict == Verdict::pass) return "PASS";
    return verdict == Verdict::fail ? "FAIL" : "NOT_RUN";
}

Result run(const Case& one, const Place& place, int planted) {
    try {
        Setup setup(place);
        const Expected expected = one.body(setup);
        const std::vector<double> found = setup.compute(expected.out, planted);
        return compare(expected, found);
    } catch (const NotRun& reason) {
        return {Verdict::not_run, 0.0, 0.0, reason.what()};
    } catch (const Failure& failure) {
        return {Verdict::fail, INFINITY, 0.0, failure.what()};
    }
}

Result control(const Case& one, const Place& place) {
    for (int i = 0; i < kPlanted; ++i) {
        Result result = run(one, place, i);
        if (result.verdict == Verdict::pass) continue;
        if (result.verdict == Verdict::fail) result = {Verdict::pass, result.error, result.tolerance, ""};
        return result;
    }
    return {Verdict::fail, 0.0, 0.0, "a changed input is not seen"};
}

std::string signature(const ggml_tensor* node) {
    if (node->op == GGML_OP_NONE || node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_PERMUTE ||
        node->op == GGML_OP_TRANSPOSE)
        return "";
    std::string text = ggml_op_desc(node);
    if (node->op == GGML_OP_ROPE) text += " mode " + std::to_string(node->op_params[2]);
    text += "(";
    for (int i = 0; i < GGML_MAX_SRC; ++i) {
        if (node->src[i] == nullptr) continue;
        if (text.back() != '(') text += ", ";
        text += source_text(node, i);
    }
    return text + ") -> " + ggml_type_name(node->type);
}

std::string signature(const Case& one, const Place& place) {
    try {
        Setup setup(place);
        return signature(one.body(setup).out);
    } catch (const NotRun&) {
        return "";
    }
}

}  // namespace assay::operators
