// Operators that move numbers. Where the type stays every bit counts; where it changes, one rounding.
#include <algorithm>
#include <cmath>

#include "operators/rounding.h"
#include "operators/suites.h"

namespace assay::operators {
namespace {

// What a number becomes in a type of fewer bits: the nearest, ties to even.
double rounded(ggml_type type, double value) {
    if (type == GGML_TYPE_F16) return static_cast<double>(ggml_fp16_to_fp32(ggml_fp32_to_fp16(static_cast<float>(value))));
    return value;
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
    found.cases.push_back({"by the first of longer rows of indices", [](Setup& setup) {
        ggml_tensor* all = setup.indices({128, 7, 1, 1}, 128);
        ggml_tensor* first = ggml_view_2d(setup.context(), all, 8, 7, all->nb[1], 0);
        return looked_up(setup, setup.reals({1, 128, 7, 1}), first);
    }});
    return found;
}

// Rows of a cache, of which some are written and the others must stay.
Operator set_rows() {
    Operator found{"SET_ROWS", "exact; one rounding to half precision; half a step and the step's own rounding in q8_0", {}};
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0}) {
        for (const int64_t n : {1, 7, 512}) {
            for (const bool is_part : {false, true}) {
                const std::string size = ", " + std::to_string(n) + (is_part ? " parts of rows" : " rows");
                found.cases.push_back({ggml_type_name(type) + size, [=](Setup& setup) {
                    constexpr int64_t kWidth = 128;
                    constexpr int64_t kRows = 600;
                    ggml_tensor* cache = setup.reals({kWidth, kRows, 1, 1}, 1.0, type);
                    ggml_tensor* wide = setup.reals({is_part ? 3 * kWidth : kWidth, n, 1, 1}, 4.0);
                    ggml_tensor* own = wide;
                    if (is_part) own = ggml_view_2d(setup.context(), wide, kWidth, n, wide->nb[1], kWidth * sizeof(float));
                    // 7 has no divisor in common with 600: every row at most once.
                    ggml_tensor* to = setup.integers(GGML_TYPE_I64, {n, 1, 1, 1}, [](size_t i) {
                        return static_cast<int64_t>(i * 7 + 599) % kRows;
                    });
                    const Numbers before = setup.numbers(cache);
                    const Numbers source = setup.numbers(own);
                    const Numbers where = setup.numbers(to);
                    return Expected{ggml_set_rows(setup.context(), cache, own, to),
                                    [=](int64_t i1, int64_t, int64_t, std::span<Element> row) {
                        int64_t from = 0;
                        while (from < n && static_cast<int64_t>(where(from)) != i1) ++from;
                        for (int64_t i = 0; i < kWidth; ++i) {
                            double step = 0.0;
                            const int64_t block = i / 32 * 32;
                            for (int64_t j = block; from < n && type == GGML_TYPE_Q8_0 && j < block + 32; ++j)
                                step = std::max(step, std::fabs(source(j, from)) / 127.0);
                            Element& element = row[static_cast<size_t>(i)];
                            element = {before(i, i1), 0.0};
                            if (from < n) element = {rounded(type, source(i, from)), step * (0.501 + 127.0 * kHalf)};
                        }
                    }};
                }});
            }
        }
    }
    return found;
}

Expected copied(Setup& setup, ggml_tensor* x, ggml_tensor* out) {
    const Numbers a = setup.numbers(x);
    const ggml_type type = out->type;
    return {out, each([=](int64_t i0, int64_t i1, int64_t i2, int64_t i3) -> Element {
                return {rounded(type, a(i0, i1, i2, i3)), 0.0};
            })};
}

ggml_tensor* numbers_of(Setup& setup, ggml_type type, Shape shape) {
    if (type == GGML_TYPE_I32) return setup.indices(shape, 100000);
    return setup.reals(shape, 1.0, type);
}

Operator conts() {
    Operator found{"CONT", "exact", {}};
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_I32}) {
        const std::string name = ggml_type_name(type);
        for (const int64_t n : {1, 7, 512}) {
            found.cases.push_back({name + " transposed, 67 x " + std::to_string(n), [=](Setup& setup) {
                ggml_tensor* x = ggml_transpose(setup.context(), numbers_of(setup, type, {67, n, 3, 1}));
                return copied(setup, x, ggml_cont(setup.context(), x));
            }});
        }
        found.cases.push_back({name + " heads and tokens exchanged", [=](Setup& setup) {
            ggml_tensor* x = ggml_permute(setup.context(), numbers_of(setup, type, {64, 9, 4, 2}), 0, 2, 1, 3);
            return copied(setup, x, ggml_cont(setup.context(), x));
        }});
        found.cases.push_back({name + " heads and tokens exchanged, as rows", [=](Setup& setup) {
            ggml_tensor* x = ggml_permute(setup.context(), numbers_of(setup, type, {64, 9, 4, 2}), 0, 2, 1, 3);
            const Numbers a = setup.numbers(x);
            return Expected{ggml_cont_2d(setup.context(), x, 64 * 4, 9 * 2),
                            each([=](int64_t i0, int64_t i1, int64_t, int64_t) -> Element {
                                return {a(i0 % 64, i0 / 64, i1 % 9, i1 / 9), 0.0};
                            })};
        }});
        found.cases.push_back({name + " values of a cache, transposed", [=](Setup& setup) {
            ggml_tensor* rows = numbers_of(setup, type, {128, 300, 1, 1});
            ggml_tensor* view = ggml_view_4d(setup.context(), rows, 64, 2, 256, 1, 64 * ggml_type_size(type), rows->nb[1],
                                             rows->nb[1] * 300, 0);
            ggml_tensor* x = ggml_transpose(setup.context(), ggml_permute(setup.context(), view, 0, 2, 1, 3));
            return copied(setup, x, ggml_cont(setup.context(), x));
        }});
        found.cases.push_back({name + " the first of longer rows", [=](Setup& setup) {
            ggml_tensor* all = numbers_of(setup, type, {128, 70, 1, 1});
            ggml_tensor* x = ggml_view_2d(setup.context(), all, 24, 70, all->nb[1], 0);
            return copied(setup, x, ggml_cont(setup.context(), x));
        }});
        found.cases.push_back({name + " as it is", [=](Setup& setup) {
            ggml_tensor* x = numbers_of(setup, type, {33, 65537, 1, 1});
            return copied(setup, x, ggml_cont(setup.context(), x));
        }});
    }
    return found;
}

Operator casts() {
    Operator found{"CPY", "exact: the nearest half, and infinity for what is beyond them", {}};
    for (const int64_t n : {1, 7, 512}) {
        found.cases.push_back({"a mask of " + std::to_string(n) + " queries to halves", [=](Setup& setup) {
            ggml_tensor* x = setup.reals_of({259, n, 1, 2}, [](size_t i) {
                if (i % 3 == 1) return -1e30;
                return i % 3 == 2 ? 3.0 * made_up(i) : 0.0;
            });
            return copied(setup, x, ggml_cast(setup.context(), x, GGML_TYPE_F16));
        }});
    }
    found.cases.push_back({"f16 taps to singles", [](Setup& setup) {
        ggml_tensor* x = setup.reals({4, 384, 1, 1}, 1.0, GGML_TYPE_F16);
        return copied(setup, x, ggml_cast(setup.context(), x, GGML_TYPE_F32));
    }});
    return found;
}

Operator concats() {
    Operator found{"CONCAT", "exact", {}};
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_I32}) {
        for (const int dimension : {0, 1}) {
            for (const int64_t n : {1, 7, 512}) {
                const std::string size = " along " + std::to_string(dimension) + ", " + std::to_string(n) + " rows";
                found.cases.push_back({ggml_type_name(type) + size, [=](Setup& setup) {
                    ggml_tensor* first = numbers_of(setup, type, {dimension == 0 ? 67 : 96, n, 2, 1});
                    ggml_tensor* second = numbers_of(setup, type, {dimension == 0 ? 3 : 96, dimension == 0 ? n : 5, 2, 1});
                    const Numbers a = setup.numbers(first);
                    const Numbers b = setup.numbers(second);
                    const int64_t border = first->ne[dimension];
                    return Expected{ggml_concat(setup.context(), first, second, dimension),
                                    each([=](int64_t i0, int64_t i1, int64_t i2, int64_t) -> Element {
                        if (dimension == 0) return {i0 < border ? a(i0, i1, i2) : b(i0 - border, i1, i2), 0.0};
                        return {i1 < border ? a(i0, i1, i2) : b(i0, i1 - border, i2), 0.0};
                    })};
                }});
            }
        }
    }
    return found;
}

Operator repeats() {
    Operator found{"REPEAT", "exact", {}};
    const auto add = [&](const std::string& text, Shape from, Shape to) {
        found.cases.push_back({text, [=](Setup& setup) {
            ggml_tensor* x = setup.reals(from);
            const Numbers a = setup.numbers(x);
            return Expected{ggml_repeat_4d(setup.context(), x, to[0], to[1], to[2], to[3]),
                            each([=](int64_t i0, int64_t i1, int64_t i2, int64_t i3) -> Element {
                                return {a(i0 % from[0], i1 % from[1], i2 % from[2], i3 % from[3]), 0.0};
                            })};
        }});
    };
    for (const int64_t n : {1, 7, 512}) {
        add("streams of " + std::to_string(n) + " tokens", {64, 1, n, 1}, {64, 4, n, 1});
        add("a row for " + std::to_string(n) + " queries", {257, 1, 1, 1}, {257, n, 1, 1});
        add("blocks to cells, " + std::to_string(n) + " queries", {1, 24, n, 1}, {4, 24, n, 1});
    }
    add("65,537 rows", {3, 1, 1, 1}, {3, 65537, 1, 1});
    return found;
}

}  // namespace

std::vector<Operator> rows() { return {get_rows(), set_rows(), conts(), casts(), concats(), repeats()}; }

}  // namespace assay::operators
