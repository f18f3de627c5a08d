// Operators that move numbers. Where the type stays every bit counts; where it changes, one rounding.
#include <algorithm>
#include <cmath>

#include "operators/rounding.h"
#include "operators/suites.h"

namespace assay::operators {
namespace {

[[maybe_unused]] double rounding_of(ggml_type from, ggml_type to, double value) {
    if (from == to || to == GGML_TYPE_F32) return 0.0;
    return std::fabs(value) * (to == GGML_TYPE_BF16 ? kBrain : kHalf) + 0x1p-25;  // halves below 2^-14 lose more
}

// out row r is row indices(r) of the table; tables of more dimensions look up within each of theirs.
Expected looked_up(Setup& setup, ggml_tensor* table, ggml_tensor* indices) {
    const Numbers a = setup.numbers(table);
    const Numbers which = setup.numbers(indices);
    return {ggml_get_rows(setup.context(), table, indices), each([=](int64_t i0, int64_t i1, int64_t i2, int64_t i3) -> Element {
                return {a(i0, static_cast<int64_t>(which(i1, i2, i3)), i2, i3), 0.0};
            })};
}

Operator get_rows() {
    Operator found{"GET_ROWS", "exact: the numbers of the row, decoded as the format defines them", {}};
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const auto type = static_cast<ggml_type>(i);
        const ggml_type_traits* traits = ggml_get_type_traits(type);
        if (type != GGML_TYPE_F32 && (traits->to_float == nullptr || traits->blck_size == 0)) continue;
        found.cases.push_back({std::string(ggml_type_name(type)) + " 9 of 61 rows of 512", [=](Setup& setup) {
                                   return looked_up(setup, setup.reals({512, 61, 1, 1}, 1.0, type), setup.indices({9, 1, 1, 1}, 61));
                               }});
    }
    for (const int64_t n : {1, 512, 65536}) {
        found.cases.push_back({"f32 " + std::to_string(n) + " of 70 rows of 32", [=](Setup& setup) {
                                   return looked_up(setup, setup.reals({32, 70, 1, 1}), setup.indices({n, 1, 1, 1}, 70));
                               }});
    }
    found.cases.push_back({"i32 tables of 4", [](Setup& setup) {
        ggml_tensor* table = setup.integers(GGML_TYPE_I32, {4, 300, 1, 1}, [](size_t i) { return static_cast<int64_t>(7 * i + 3); });
        ggml_tensor* part = ggml_view_2d(setup.context(), table, 4, 200, table->nb[1], 100 * table->nb[1]);
        return looked_up(setup, part, setup.indices({70, 1, 1, 1}, 200));
    }});
    found.cases.push_back({"one number of each of many rows", [](Setup& setup) {
        return looked_up(setup, setup.reals({1, 128, 7, 1}), setup.indices({8, 7, 1, 1}, 128));
    }});
    return found;
}

}  // namespace

std::vector<Operator> rows() { return {get_rows()}; }

}  // namespace assay::operators
