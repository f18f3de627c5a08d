#include <algorithm>
#include <cmath>

#include "operators/products.h"
#include "operators/rounding.h"
#include "operators/suites.h"

namespace assay::operators {
namespace {

// What no query may see: in half precision, and as the finite number of masks in single precision.
constexpr double kHidden = -1e30;

// Cell i of query j is hidden past its place, and in a stripe.
bool is_hidden(int64_t cell, int64_t query, int64_t n_cells, int64_t n_queries) {
    return cell > n_cells - n_queries + query || cell % 11 == 5;
}

ggml_tensor* make_mask(Setup& setup, ggml_type type, int64_t cells, int64_t queries, int64_t streams) {
    const double hidden = type == GGML_TYPE_F16 ? -INFINITY : kHidden;
    return setup.reals_of({cells, queries, 1, streams}, [=](size_t i) {
        const auto cell = static_cast<int64_t>(i) % cells;
        const auto query = static_cast<int64_t>(i) / cells % queries;
        return is_hidden(cell, query, cells, queries) ? hidden : 0.0;
    }, type);
}

// soft_max(scale * x + mask) over rows; a mask repeats over heads.
Expected soft_maximum(Setup& setup, ggml_tensor* x, ggml_tensor* mask, float scale) {
    ggml_tensor* out = mask == nullptr && scale == 1.0F ? ggml_soft_max(setup.context(), x)
                                                        : ggml_soft_max_ext(setup.context(), x, mask, scale, 0.0F);
    const Numbers a = setup.numbers(x);
    const Numbers hidden = setup.numbers(mask == nullptr ? x : mask);
    const bool has_mask = mask != nullptr;
    const int64_t n = x->ne[0];
    return {out, [=](int64_t i1, int64_t i2, int64_t i3, std::span<Element> row) {
                std::vector<double> scores(row.size());
                double most = -INFINITY;
                for (int64_t i = 0; i < n; ++i) {
                    const double score = a(i, i1, i2, i3) * static_cast<double>(scale) + (has_mask ? hidden(i, i1, 0, i3) : 0.0);
                    scores[static_cast<size_t>(i)] = score;
                    most = std::max(most, score);
                }
                double sum = 0.0;
                for (const double score : scores) sum += std::exp(score - most);
                for (size_t i = 0; i < row.size(); ++i) {
                    const double value = std::exp(scores[i] - most) / sum;
                    // The score is rounded before the exponential, whose own argument is rounded again.
                    const double size = std::isfinite(scores[i]) ? std::fabs(scores[i]) + std::fabs(most) : 0.0;
                    row[i] = {value, value * kSingle * (32.0 + 8.0 * size + std::sqrt(static_cast<double>(n))) + kTiny};
                }
            }};
}

// What attention of one query over one head must give.
struct Attention {
    Numbers q, k, v, mask;
    ggml_type type;
    bool is_gpu;
    double scale;
    int64_t size, n_cells, heads_per_pair, sets_per_mask;

    void row(int64_t head, int64_t query, int64_t set, std::span<Element> out) const {
        std::vector<double> weights(static_cast<size_t>(n_cells));
        std::vector<double> errors(static_cast<size_t>(n_cells));
        double most = -INFINITY;
        for (int64_t cell = 0; cell < n_cells; ++cell) {
            // GPUs take keys in single precision as halves too.
            Dot dot(is_gpu && type == GGML_TYPE_F32 ? GGML_TYPE_F16 : type, is_gpu, true);
            for (int64_t i = 0; i < size; ++i) dot.add(q(i, query, head, set), k(i, cell, head / heads_per_pair, set));
            const Element score = dot.result();
            weights[static_cast<size_t>(cell)] = score.value * scale + mask(cell, query, 0, set / sets_per_mask);
            // On a GPU both sides of the product are rounded.
            errors[static_cast<size_t>(cell)] = score.tolerance / kSigmas * scale * (is_gpu ? 1.5 : 1.0);
            most = std::max(most, weights[static_cast<size_t>(cell)]);
        }
        double sum = 0.0;
        for (double& weight : weights) sum += weight = std::exp(weight - most);
        const bool has_halves = is_gpu || type == GGML_TYPE_F16;
        for (size_t i = 0; i < out.size(); ++i) {
            double value = 0.0;
            double magnitude = 0.0;
            double partials = 0.0;  // squares of what has been summed so far
            double terms = 0.0;
            const auto at = [&](int64_t cell) { return v(static_cast<int64_t>(i), cell, head / heads_per_pair, set); };
            for (int64_t cell = 0; cell < n_cells; ++cell) {
                const double term = weights[static_cast<size_t>(cell)] / sum * at(cell);
                value += term;
                magnitude += std::fabs(term);
                partials += term == 0.0 ? 0.0 : value * value;
                terms += term * term;
            }
            double variance = 0.0;
            for (int64_t cell = 0; cell < n_cells; ++cell) {
                const double share = weights[static_cast<size_t>(cell)] / sum * errors[static_cast<size_t>(cell)];
                variance += share * share * (at(cell) - value) * (at(cell) - value);
            }
            // Values in half precision are summed in half precision, and rounded again where the largest score changes.
            if (has_halves) variance += spread(kHalf) * (2.0 * partials + 3.0 * terms);
            out[i] = {value, kSigmas * std::sqrt(variance) + sum_error(magnitude, n_cells) * 4.0};
        }
    }
};

// q [size, queries, heads, sets], k and v [size, cells, pairs, sets], mask f16. out [size, heads, queries, sets].
Expected flash(Setup& setup, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, ggml_tensor* mask) {
    const float scale = 1.0F / std::sqrt(static_cast<float>(q->ne[0]));
    ggml_tensor* out = ggml_flash_attn_ext(setup.context(), q, k, v, mask, scale, 0.0F, 0.0F);
    ggml_flash_attn_ext_set_prec(out, GGML_PREC_F32);
    const Attention attention{setup.numbers(q), setup.numbers(k), setup.numbers(v), setup.numbers(mask), k->type, setup.is_gpu(),
                              static_cast<double>(scale), q->ne[0], k->ne[1], q->ne[2] / k->ne[2], q->ne[3] / mask->ne[3]};
    return {out, [=](int64_t i1, int64_t i2, int64_t i3, std::span<Element> row) { attention.row(i1, i2, i3, row); }};
}

// As the llama family attends: rows of a cache of several streams.
Case cached_case(ggml_type type, int64_t queries, int64_t streams, int64_t cells) {
    constexpr int64_t kSize = 64;
    constexpr int64_t kHeads = 6;
    constexpr int64_t kPairs = 2;
    return {std::string(ggml_type_name(type)) + " cache, " + std::to_string(cells) + " cells, " + std::to_string(queries) +
                " queries, " + std::to_string(streams) + " streams",
            [=](Setup& setup) {
                ggml_context* context = setup.context();
                const auto view = [&] {
                    ggml_tensor* rows = setup.reals({kSize * kPairs, (cells + 256) * streams, 1, 1}, 2.0, type);
                    const size_t row = rows->nb[1];
                    ggml_tensor* whole = ggml_view_4d(context, rows, kSize, kPairs, cells, streams, ggml_row_size(type, kSize), row,
                                                      row * static_cast<size_t>(cells + 256), 0);
                    return ggml_permute(context, whole, 0, 2, 1, 3);
                };
                ggml_tensor* k = view();
                ggml_tensor* v = view();
                ggml_tensor* q = ggml_permute(context, setup.reals({kSize, kHeads, queries, streams}, 2.0), 0, 2, 1, 3);
                return flash(setup, q, k, v, make_mask(setup, GGML_TYPE_F16, cells, queries, streams));
            }};
}

// As sparse attention attends: every query a set of gathered rows of its own.
Case gathered_case(int64_t sets, int64_t cells) {
    constexpr int64_t kSize = 64;
    return {"gathered rows, " + std::to_string(sets) + " sets of " + std::to_string(cells), [=](Setup& setup) {
                ggml_context* context = setup.context();
                const auto rows = [&] { return ggml_permute(context, setup.reals({kSize, 2, cells, sets}, 2.0), 0, 2, 1, 3); };
                ggml_tensor* k = rows();
                ggml_tensor* v = rows();
                ggml_tensor* wide = setup.reals({kSize, 4, sets, 1}, 2.0);
                ggml_tensor* q = ggml_view_4d(context, wide, kSize, 1, 4, sets, wide->nb[1], wide->nb[1], wide->nb[2], 0);
                return flash(setup, q, k, v, make_mask(setup, GGML_TYPE_F16, cells, 1, sets));
            }};
}

Operator soft_maxima() {
    Operator found{"SOFT_MAX", "the score and the exponential's argument in single precision, the sum of a row", {}};
    for (const int64_t queries : {1, 7, 70}) {
        for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_F32}) {
            found.cases.push_back({std::string(ggml_type_name(type)) + " mask, " + std::to_string(queries) + " queries, 2 streams",
                                   [=](Setup& setup) {
                                       ggml_tensor* x = setup.reals({256, queries, 4, 2}, 30.0);
                                       return soft_maximum(setup, x, make_mask(setup, type, 256, queries, 2), 0.125F);
                                   }});
        }
        found.cases.push_back({"experts, " + std::to_string(queries) + " tokens", [=](Setup& setup) {
                                   return soft_maximum(setup, setup.reals({128, queries, 1, 1}, 10.0), nullptr, 1.0F);
                               }});
    }
    found.cases.push_back({"hidden cells at -1e30", [](Setup& setup) {
        return soft_maximum(setup, setup.reals_of({300, 3, 4, 1}, [](size_t i) { return i % 3 == 1 ? kHidden : 5.0 * made_up(i); }),
                            nullptr, 1.0F);
    }});
    found.cases.push_back({"one cell", [](Setup& setup) {
        return soft_maximum(setup, setup.reals_of({2, 3, 1, 1}, [](size_t i) { return i % 2 == 1 ? kHidden : 1.0 + made_up(i); }),
                            nullptr, 1.0F);
    }});
    found.cases.push_back({"a long row of 8,197", [](Setup& setup) {
        return soft_maximum(setup, setup.reals({8197, 2, 2, 1}, 20.0), nullptr, 1.0F);
    }});
    return found;
}

Operator flash_attentions() {
    Operator found{"FLASH_ATTN_EXT",
                   "8 standard deviations of the roundings of queries (to the keys' type), of weights and of the running sum (halves "
                   "where values are halves, and on a GPU)",
                   {}};
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0}) {
        found.cases.push_back(cached_case(type, 1, 1, 256));
        found.cases.push_back(cached_case(type, 7, 2, 256));
        found.cases.push_back(cached_case(type, 70, 1, 512));
    }
    found.cases.push_back(gathered_case(1, 64));
    found.cases.push_back(gathered_case(7, 67));
    // One pair of keys and values for all heads; one query, then several.
    for (const int64_t queries : {1, 5}) {
        found.cases.push_back({"one pair for all heads, " + std::to_string(queries) + " queries", [=](Setup& setup) {
            ggml_tensor* k = setup.reals({64, 96, 1, 1}, 2.0);
            ggml_tensor* v = setup.reals({64, 96, 1, 1}, 2.0);
            ggml_tensor* q = ggml_permute(setup.context(), setup.reals({64, 4, queries, 1}, 2.0), 0, 2, 1, 3);
            return flash(setup, q, k, v, make_mask(setup, GGML_TYPE_F16, 96, queries, 1));
        }});
    }
    return found;
}

}  // namespace

std::vector<Operator> attentions() { return {soft_maxima(), flash_attentions()}; }

}  // namespace assay::operators
