// Counting, sorting and choosing.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "block_choice.h"
#include "operators/rounding.h"
#include "operators/suites.h"
#include "qsa/qsa.h"

namespace assay::operators {
namespace {

// Distinct numbers in an order that looks random. Equals could be sorted either way.
ggml_tensor* distinct(Setup& setup, int64_t n, int64_t rows) {
    return setup.reals_of({n, rows, 1, 1}, [=](size_t i) { return made_up(i) + static_cast<double>(i % 7); });
}

std::vector<int64_t> falling_order(const Numbers& a, int64_t n, int64_t i1) {
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int64_t x, int64_t y) { return a(x, i1) > a(y, i1); });
    return order;
}

// Scores with equals among them and zeros, as the sum of positive parts gives.
ggml_tensor* scores(Setup& setup, int64_t n, int64_t queries) {
    return setup.reals_of({n, queries, 1, 1}, [](size_t i) { return std::max(0.0, std::floor(40.0 * made_up(i)) / 8.0); });
}

ggml_tensor* limits(Setup& setup, int64_t n, int64_t queries) {
    return setup.reals_of({1, queries, 1, 1}, [=](size_t i) { return static_cast<double>(n - (static_cast<int64_t>(i) * 5) % n); });
}

// The k largest of those that compete, the lower ordinal first among equals, as rising ordinals.
std::vector<int64_t> chosen(const Numbers& score, int64_t i1, std::vector<int64_t> competing, int64_t k) {
    std::stable_sort(competing.begin(), competing.end(), [&](int64_t x, int64_t y) { return score(x, i1) > score(y, i1); });
    competing.resize(static_cast<size_t>(std::min(k, static_cast<int64_t>(competing.size()))));
    std::sort(competing.begin(), competing.end());
    return competing;
}

Expected kept(Setup& setup, int64_t n, int64_t queries, int64_t k, bool is_plain) {
    ggml_tensor* score = scores(setup, n, queries);
    ggml_tensor* visible = limits(setup, n, queries);
    const Numbers a = setup.numbers(score);
    const Numbers limit = setup.numbers(visible);
    const auto scratch = std::make_shared<SelectScratch>(GGML_MAX_N_THREADS, std::vector<int32_t>(static_cast<size_t>(n)));
    ggml_tensor* out = is_plain ? keep_blocks_plain(setup.context(), score, visible, k)
                                : keep_blocks(setup.context(), score, visible, k, *scratch);
    return {out, [=](int64_t i1, int64_t, int64_t, std::span<Element> row) {
                (void)scratch;  // as long as the graph
                std::vector<int64_t> seen(static_cast<size_t>(limit(0, i1)));
                std::iota(seen.begin(), seen.end(), 0);
                const std::vector<int64_t> needed = chosen(a, i1, seen, k);
                // A query that sees fewer has dead ones at the end: any ordinal.
                for (size_t i = 0; i < row.size(); ++i)
                    row[i] = i < needed.size() ? Element{static_cast<double>(needed[i]), 0.0} : Element{0.0, INFINITY};
            }};
}

Expected masked(Setup& setup, int64_t n, int64_t queries, int64_t k) {
    const auto always = static_cast<double>(qsa::kAlways);
    ggml_tensor* score = scores(setup, n, queries);
    ggml_tensor* bias = setup.reals_of({n, queries, 1, 1}, [=](size_t i) {
        if (i % 5 == 3) return -static_cast<double>(INFINITY);
        return i % 17 == 4 ? always : 0.0;
    });
    const Numbers a = setup.numbers(score);
    const Numbers b = setup.numbers(bias);
    const auto scratch = std::make_shared<SelectScratch>(GGML_MAX_N_THREADS, std::vector<int32_t>(static_cast<size_t>(n)));
    return {keep_mask(setup.context(), score, bias, k, *scratch), [=](int64_t i1, int64_t, int64_t, std::span<Element> row) {
                (void)scratch;
                std::vector<int64_t> competing;
                for (int64_t i = 0; i < n; ++i) {
                    row[static_cast<size_t>(i)] = {b(i, i1) >= always ? 0.0 : static_cast<double>(-1e30F), 0.0};
                    if (b(i, i1) == 0.0) competing.push_back(i);
                }
                for (const int64_t i : chosen(a, i1, competing, k)) row[static_cast<size_t>(i)] = {0.0, 0.0};
            }};
}

Operator sorts() {
    Operator found{"ARGSORT", "exact", {}};
    for (const int64_t n : {8, 128, 257, 1024}) {
        for (const int64_t rows : {1, 7, 70}) {
            found.cases.push_back({std::to_string(rows) + " rows of " + std::to_string(n), [=](Setup& setup) {
                ggml_tensor* x = distinct(setup, n, rows);
                const Numbers a = setup.numbers(x);
                return Expected{ggml_argsort(setup.context(), x, GGML_SORT_ORDER_DESC),
                                [=](int64_t i1, int64_t, int64_t, std::span<Element> row) {
                                    const std::vector<int64_t> order = falling_order(a, n, i1);
                                    for (size_t i = 0; i < row.size(); ++i) row[i] = {static_cast<double>(order[i]), 0.0};
                                }};
            }});
        }
    }
    for (const int64_t rows : {1, 7, 512}) {
        found.cases.push_back({"the first 8 of 128, " + std::to_string(rows) + " rows", [=](Setup& setup) {
            ggml_tensor* x = distinct(setup, 128, rows);
            const Numbers a = setup.numbers(x);
            return Expected{ggml_cont(setup.context(), ggml_argsort_top_k(setup.context(), x, 8)),
                            [=](int64_t i1, int64_t, int64_t, std::span<Element> row) {
                                const std::vector<int64_t> order = falling_order(a, 128, i1);
                                for (size_t i = 0; i < row.size(); ++i) row[i] = {static_cast<double>(order[i]), 0.0};
                            }};
        }});
    }
    for (const int64_t queries : {1, 7, 70}) {
        found.cases.push_back({"blocks kept by plain operators, " + std::to_string(queries) + " queries", [=](Setup& setup) {
                                   return kept(setup, 256, queries, 24, true);
                               }});
    }
    return found;
}

Operator customs() {
    Operator found{"CUSTOM", "exact: the engine's own choice of blocks", {}};
    for (const int64_t queries : {1, 7, 512}) {
        found.cases.push_back({"blocks kept, " + std::to_string(queries) + " queries", [=](Setup& setup) {
                                   return kept(setup, 256, queries, 24, false);
                               }});
        found.cases.push_back({"mask of blocks, " + std::to_string(queries) + " queries", [=](Setup& setup) {
                                   return masked(setup, 256, queries, 24);
                               }});
    }
    return found;
}

Operator sums(bool is_running) {
    Operator found{is_running ? "CUMSUM" : "SUM_ROWS", "a sum of a row's numbers in single precision; exact for whole numbers", {}};
    for (const bool is_whole : {true, false}) {
        for (const Shape& shape : {Shape{8, 1, 1, 1}, Shape{257, 7, 1, 1}, Shape{1024, 4, 9, 1}, Shape{2048, 512, 1, 1},
                                   Shape{2, 65536, 1, 1}}) {
            const std::string size = std::to_string(shape[1] * shape[2]) + " rows of " + std::to_string(shape[0]);
            found.cases.push_back({size + (is_whole ? ", whole" : ""), [=](Setup& setup) {
                ggml_tensor* x = is_whole ? setup.reals_of(shape, [](size_t i) { return made_up(i) > 0.3 ? 1.0 : 0.0; })
                                          : setup.reals(shape);
                const Numbers a = setup.numbers(x);
                ggml_tensor* out = is_running ? ggml_cumsum(setup.context(), x) : ggml_sum_rows(setup.context(), x);
                return Expected{out, [=](int64_t i1, int64_t i2, int64_t i3, std::span<Element> row) {
                    double sum = 0.0;
                    double magnitude = 0.0;
                    for (int64_t i = 0; i < shape[0]; ++i) {
                        sum += a(i, i1, i2, i3);
                        magnitude += std::fabs(a(i, i1, i2, i3));
                        if (is_running || i + 1 == shape[0])
                            row[is_running ? static_cast<size_t>(i) : 0] = {sum, is_whole ? 0.0 : sum_error(magnitude, i + 1)};
                    }
                }};
            }});
        }
    }
    return found;
}

Operator ranges() {
    Operator found{"ARANGE", "exact", {}};
    for (const int64_t n : {1, 257, 65537}) {
        found.cases.push_back({"from 0 to " + std::to_string(n), [=](Setup& setup) {
            return Expected{ggml_arange(setup.context(), 0.0F, static_cast<float>(n), 1.0F),
                            each([](int64_t i0, int64_t, int64_t, int64_t) -> Element { return {static_cast<double>(i0), 0.0}; })};
        }});
    }
    return found;
}

}  // namespace

std::vector<Operator> choices() { return {sorts(), customs(), sums(false), sums(true), ranges()}; }

}  // namespace assay::operators
