#include "operators/products.h"

#include "operators/rounding.h"
#include "operators/suites.h"

namespace assay::operators {

Dot::Dot(ggml_type type, bool is_gpu, bool wants_single)
    : type_(type), is_gpu_(is_gpu), wants_single_(wants_single) {
    if (ggml_is_quantized(type)) block_ = ggml_blck_size(type) == 256 ? 256 : 32;
}

namespace {

// Types whose numbers are whole steps from an offset (ggml's blocks of 4, 5 and 2 bits).
bool has_offset(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_0:
        case GGML_TYPE_Q5_1:
        case GGML_TYPE_Q2_K:
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K: return true;
        default: return false;
    }
}

}  // namespace

// Squares of the left side's distances from an offset, added up over the block.
double Dot::squares_from(double offset) const {
    return std::max(0.0, block_left_ - 2.0 * offset * block_left_sum_ + static_cast<double>(n_block_) * offset * offset);
}

void Dot::close_block() {
    // 8 bits: the step is the largest magnitude over 127, evenly spread by half a step; the step itself is a half.
    // GPUs multiply an offset with the sum of the right side before it was rounded, so that what rounding changes is multiplied
    // with the distances from the offset, which lies at one end of the block's numbers.
    const double left = is_gpu_ && has_offset(type_) ? std::max(squares_from(block_left_low_), squares_from(block_left_high_)) : block_left_;
    variance_ += spread(block_right_most_ / 127.0 / 2.0) * left + spread(kHalf * block_sum_);
    // Types with an offset multiply it with the sum of the block, a half.
    if (type_ == GGML_TYPE_Q4_1 || type_ == GGML_TYPE_Q5_1) variance_ += spread(kHalf * block_left_most_ * block_right_sum_);
    // GPUs multiply the scales of the left side as halves, offset and slope apart.
    if (is_gpu_) variance_ += spread(2.0 * kHalf * block_left_most_ * block_right_sum_) + spread(2.0 * kHalf) * block_sum_ * block_sum_;
    n_block_ = 0;
    block_sum_ = block_left_ = block_left_sum_ = block_left_low_ = block_left_high_ = block_left_most_ = block_right_most_ = block_right_sum_ = 0.0;
}

Element Dot::result() {
    if (n_block_ > 0) close_block();
    double variance = variance_;
    const auto terms = static_cast<double>(n_);
    if (type_ == GGML_TYPE_F16) {
        variance += spread(kHalf) * squares_;
        // Without a wish for single precision, GPUs sum halves and give a half: each partial sum is rounded.
        if (is_gpu_ && !wants_single_) variance += spread(kHalf) * (terms / 2.0 * squares_ + sum_ * sum_);
    } else if (type_ == GGML_TYPE_BF16) {
        variance += spread(kBrain) * squares_;
        if (is_gpu_) variance += spread(kBrain) * sum_ * sum_;
    } else if (type_ == GGML_TYPE_F32 && is_gpu_) {
        variance += 2.0 * spread(kHalf) * squares_;  // both sides as TF32
    }
    return {sum_, kSigmas * std::sqrt(variance) + sum_error(magnitude_, n_)};
}

namespace {

// out [m, n, heads, sets] of left [k, m, ...] and right [k, n, heads, sets]; the left side repeats over heads and sets.
Expected product(Setup& setup, ggml_tensor* left, ggml_tensor* right, bool wants_single = false) {
    ggml_tensor* out = ggml_mul_mat(setup.context(), left, right);
    if (wants_single) ggml_mul_mat_set_prec(out, GGML_PREC_F32);
    const Numbers a = setup.numbers(left);
    const Numbers b = setup.numbers(right);
    const int64_t n = left->ne[0];
    const int64_t per_head = right->ne[2] / left->ne[2];
    const int64_t per_set = right->ne[3] / left->ne[3];
    const ggml_type type = left->type;
    const bool is_gpu = setup.is_gpu();
    return {out, each([=](int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
                Dot dot(type, is_gpu, wants_single);
                for (int64_t k = 0; k < n; ++k) dot.add(a(k, i0, i2 / per_head, i3 / per_set), b(k, i1, i2, i3));
                return dot.result();
            })};
}

std::string size_text(int64_t k, int64_t m, int64_t n) {
    return "[" + std::to_string(k) + ", " + std::to_string(m) + "] x " + std::to_string(n);
}

// Every type that the ggml in use can read as weights.
std::vector<ggml_type> weight_types() {
    std::vector<ggml_type> types;
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const auto type = static_cast<ggml_type>(i);
        const ggml_type_traits* traits = ggml_get_type_traits(type);
        if (type == GGML_TYPE_F32 || (traits->to_float != nullptr && traits->blck_size > 0)) types.push_back(type);
    }
    return types;
}

Case weights_case(ggml_type type, int64_t k, int64_t m, int64_t n) {
    return {std::string(ggml_type_name(type)) + " " + size_text(k, m, n),
            [=](Setup& setup) { return product(setup, setup.weight(type, {k, m, 1, 1}), setup.reals({k, n, 1, 1})); }, true};
}

// Keys of a cache, row by row of all heads, as attention views them: [head size, cells, heads, streams].
ggml_tensor* view_cache(Setup& setup, ggml_tensor* rows, int64_t size, int64_t heads, int64_t cells, int64_t streams) {
    const size_t row = rows->nb[1];
    const size_t stream = row * static_cast<size_t>(rows->ne[1] / streams);
    ggml_tensor* view = ggml_view_4d(setup.context(), rows, size, heads, cells, streams, ggml_row_size(rows->type, size), row,
                                     stream, 0);
    return ggml_permute(setup.context(), view, 0, 2, 1, 3);
}

Case scores_case(ggml_type type, int64_t queries, int64_t streams) {
    constexpr int64_t kSize = 64;
    constexpr int64_t kHeads = 8;
    constexpr int64_t kPairs = 2;
    constexpr int64_t kCells = 256;
    return {std::string(ggml_type_name(type)) + " keys of a cache, " + std::to_string(queries) + " queries, " +
                std::to_string(streams) + " streams",
            [=](Setup& setup) {
                ggml_tensor* rows = setup.reals({kSize * kPairs, (kCells + 32) * streams, 1, 1}, 1.0, type);
                ggml_tensor* q = setup.reals({kSize, kHeads, queries, streams});
                ggml_tensor* keys = view_cache(setup, rows, kSize, kPairs, kCells, streams);
                return product(setup, keys, ggml_permute(setup.context(), q, 0, 2, 1, 3), true);
            }};
}

// out [m, used, tokens]: for each token the products with the matrices that it uses; right [k, used or 1, tokens].
Expected expert_product(Setup& setup, ggml_tensor* matrices, ggml_tensor* right, ggml_tensor* used) {
    const Numbers a = setup.numbers(matrices);
    const Numbers b = setup.numbers(right);
    const Numbers which = setup.numbers(used);
    const int64_t n = matrices->ne[0];
    const int64_t n_right = right->ne[1];
    const ggml_type type = matrices->type;
    const bool is_gpu = setup.is_gpu();
    return {ggml_mul_mat_id(setup.context(), matrices, right, used), each([=](int64_t i0, int64_t i1, int64_t i2, int64_t) {
                Dot dot(type, is_gpu, false);
                const auto expert = static_cast<int64_t>(which(i1, i2));
                for (int64_t k = 0; k < n; ++k) dot.add(a(k, i0, expert), b(k, i1 % n_right, i2));
                return dot.result();
            })};
}

// Of 8 experts each token uses 3, all different.
Case experts_case(ggml_type type, int64_t k, int64_t m, int64_t tokens, bool is_shared, bool is_view) {
    constexpr int64_t kExperts = 8;
    constexpr int64_t kUsed = 3;
    return {std::string(ggml_type_name(type)) + " " + size_text(k, m, tokens) + (is_shared ? "" : ", a row an expert") +
                (is_view ? ", sorted indices" : ""),
            [=](Setup& setup) {
                ggml_tensor* matrices = setup.weight(type, {k, m, kExperts, 1});
                ggml_tensor* right = setup.reals({k, is_shared ? 1 : kUsed, tokens, 1});
                const int64_t n_indices = is_view ? kExperts : kUsed;
                ggml_tensor* used = setup.integers(GGML_TYPE_I32, {n_indices, tokens, 1, 1}, [=](size_t i) {
                    const auto place = static_cast<int64_t>(i);
                    return (place % n_indices * 3 + place / n_indices * 5) % kExperts;
                });
                if (is_view) used = ggml_view_2d(setup.context(), used, kUsed, tokens, used->nb[1], 0);
                return expert_product(setup, matrices, right, used);
            }};
}

Operator expert_products(const std::string& reason) {
    Operator found{"MUL_MAT_ID", reason, {}};
    for (const ggml_type type : weight_types()) {
        found.cases.push_back(experts_case(type, 256, 32, 1, true, false));
        found.cases.push_back(experts_case(type, 256, 32, 7, false, false));
    }
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K}) {
        found.cases.push_back(experts_case(type, 256, 32, 512, true, true));
        found.cases.push_back(experts_case(type, 256, 33, 70, false, true));
    }
    return found;
}

}  // namespace

std::vector<Operator> products() {
    Operator found{"MUL_MAT",
                   "8 standard deviations of the roundings of both sides (8 bits a block, half, BF16; on a GPU also TF32, half "
                   "sums and half scales), and a sum of k terms in single precision",
                   {}};
    for (const ggml_type type : weight_types()) {
        for (const int64_t n : {1, 7, 512}) found.cases.push_back(weights_case(type, 512, n == 512 ? 32 : 64, n));
    }
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
        found.cases.push_back(weights_case(type, 64, 33, 2));  // neither rows nor columns fill a tile
        found.cases.push_back(weights_case(type, 2048, 576, 3));
    }
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0}) {
        found.cases.push_back(scores_case(type, 1, 1));
        found.cases.push_back(scores_case(type, 7, 3));
        found.cases.push_back(scores_case(type, 70, 1));
    }
    found.cases.push_back({"pooled keys by one head's queries", [](Setup& setup) {
        ggml_tensor* table = setup.reals({64, 700, 1, 1});
        ggml_tensor* keys = ggml_view_2d(setup.context(), table, 64, 256, table->nb[1], 300 * table->nb[1]);
        ggml_tensor* heads = setup.reals({64, 8, 9, 1});
        ggml_tensor* one = ggml_view_2d(setup.context(), heads, 64, 9, heads->nb[2], 5 * heads->nb[1]);
        return product(setup, keys, one, true);
    }});
    return {found, expert_products(found.reason)};
}

}  // namespace assay::operators
