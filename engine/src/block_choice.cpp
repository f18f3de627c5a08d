#include "block_choice.h"

#include <algorithm>
#include <cstring>

#include "qsa/qsa.h"

namespace assay {
namespace {

constexpr float kHiddenBlock = -1e30F;

// Of the first `limit` scores the k largest, the earlier of equals first, as rising ordinals; the rest of `out` is 0.
void keep_largest(const float* scores, int64_t limit, int64_t k, int32_t* out, std::vector<int32_t>& order) {
    if (limit <= k) {
        for (int64_t i = 0; i < k; ++i) out[i] = i < limit ? static_cast<int32_t>(i) : 0;
        return;
    }
    for (int64_t i = 0; i < limit; ++i) order[static_cast<size_t>(i)] = static_cast<int32_t>(i);
    const auto is_before = [scores](int32_t a, int32_t b) {
        return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
    };
    std::nth_element(order.begin(), order.begin() + k, order.begin() + limit, is_before);
    std::sort(order.begin(), order.begin() + k);
    std::copy_n(order.begin(), k, out);
}

// userdata: one std::vector<int32_t> a thread, each as long as a row of scores.
void compute_kept(ggml_tensor* out, int ith, int nth, void* userdata) {
    const ggml_tensor* scores = out->src[0];
    const ggml_tensor* visible = out->src[1];
    auto& order = (*static_cast<SelectScratch*>(userdata))[static_cast<size_t>(ith)];
    for (int64_t query = ith; query < out->ne[1]; query += nth) {
        const auto at = static_cast<size_t>(query);
        const auto* row = reinterpret_cast<const float*>(static_cast<const char*>(scores->data) + at * scores->nb[1]);
        float limit = 0.0F;
        std::memcpy(&limit, static_cast<const char*>(visible->data) + at * visible->nb[1], sizeof limit);
        auto* kept = reinterpret_cast<int32_t*>(static_cast<char*>(out->data) + at * out->nb[1]);
        keep_largest(row, std::min(static_cast<int64_t>(limit), scores->ne[0]), out->ne[0], kept, order);
    }
}

// Sources: scores and biases [blocks, queries], and one ordinal a block that may be kept. userdata as above.
void compute_mask(ggml_tensor* out, int ith, int nth, void* userdata) {
    const ggml_tensor* scores = out->src[0];
    const ggml_tensor* bias = out->src[1];
    const int64_t n = scores->ne[0];
    const int64_t n_kept = out->src[2]->ne[0];
    auto& order = (*static_cast<SelectScratch*>(userdata))[static_cast<size_t>(ith)];
    for (int64_t query = ith; query < out->ne[1]; query += nth) {
        const auto row = [query](const ggml_tensor* tensor) {
            return reinterpret_cast<float*>(static_cast<char*>(tensor->data) + static_cast<size_t>(query) * tensor->nb[1]);
        };
        const float* score = row(scores);
        const float* own_bias = row(bias);
        float* mask = row(out);
        int64_t n_competing = 0;
        for (int64_t i = 0; i < n; ++i) {
            mask[i] = own_bias[i] >= qsa::kAlways ? 0.0F : kHiddenBlock;
            if (own_bias[i] == 0.0F) order[static_cast<size_t>(n_competing++)] = static_cast<int32_t>(i);
        }
        const int64_t k = std::min(n_kept, n_competing);
        std::nth_element(order.begin(), order.begin() + k, order.begin() + n_competing, [score](int32_t a, int32_t b) {
            return score[a] > score[b] || (score[a] == score[b] && a < b);
        });
        for (int64_t i = 0; i < k; ++i) mask[order[static_cast<size_t>(i)]] = 0.0F;
    }
}

}  // namespace

ggml_tensor* below(ggml_context* context, ggml_tensor* limits, int64_t n) {
    ggml_tensor* columns = ggml_arange(context, 0.0F, static_cast<float>(n), 1.0F);
    ggml_tensor* grid = ggml_repeat_4d(context, columns, n, limits->ne[1], 1, 1);
    // step(x) is 1 for x > 0, and limit - column is at least 1 for columns below the limit.
    return ggml_step(context, ggml_neg(context, ggml_sub(context, grid, limits)));
}

ggml_tensor* keep_mask(ggml_context* context, ggml_tensor* scores, ggml_tensor* bias, int64_t n_kept, SelectScratch& scratch) {
    ggml_tensor* sources[] = {scores, bias, ggml_arange(context, 0.0F, static_cast<float>(n_kept), 1.0F)};
    return ggml_custom_4d(context, GGML_TYPE_F32, scores->ne[0], scores->ne[1], 1, 1, sources, 3, compute_mask,
                          GGML_N_TASKS_MAX, &scratch);
}

ggml_tensor* keep_blocks(ggml_context* context, ggml_tensor* scores, ggml_tensor* visible, int64_t n_kept,
                         SelectScratch& scratch) {
    ggml_tensor* sources[] = {scores, visible};
    return ggml_custom_4d(context, GGML_TYPE_I32, n_kept, scores->ne[1], 1, 1, sources, 2, compute_kept, GGML_N_TASKS_MAX,
                          &scratch);
}

// The same of operators that every back end has. Sorting may order equals as it likes, so it only finds the threshold;
// among equals to it the running count decides, and the ordinals come out by sorting distinct keys.
ggml_tensor* keep_blocks_plain(ggml_context* context, ggml_tensor* scores, ggml_tensor* visible, int64_t k) {
    const int64_t n = scores->ne[0];
    const int64_t n_queries = scores->ne[1];
    // Scores are at least 0. Blocks that are not visible get -1.
    ggml_tensor* is_visible = below(context, visible, n);
    ggml_tensor* masked = ggml_add(context, ggml_mul(context, scores, is_visible), ggml_scale_bias(context, is_visible, 1.0F, -1.0F));
    ggml_tensor* order = ggml_argsort(context, masked, GGML_SORT_ORDER_DESC);
    ggml_tensor* kth = ggml_view_2d(context, order, 1, n_queries, order->nb[1], static_cast<size_t>(k - 1) * sizeof(int32_t));
    ggml_tensor* threshold = ggml_get_rows(context, ggml_reshape_3d(context, masked, 1, n, n_queries), ggml_cont(context, kth));
    ggml_tensor* over = ggml_sub(context, masked, ggml_reshape_2d(context, threshold, 1, n_queries));
    ggml_tensor* is_above = ggml_step(context, over);
    ggml_tensor* is_below = ggml_step(context, ggml_neg(context, over));
    // 1 - above - below
    ggml_tensor* is_equal = ggml_scale_bias(context, ggml_add(context, is_above, is_below), -1.0F, 1.0F);
    ggml_tensor* room = ggml_scale_bias(context, ggml_sum_rows(context, is_above), -1.0F, static_cast<float>(k));
    // The running count of equals is whole, so half a unit separates counts up to the room from those past it.
    ggml_tensor* excess = ggml_scale_bias(context, ggml_sub(context, ggml_cumsum(context, is_equal), room), -1.0F, 0.5F);
    ggml_tensor* is_kept = ggml_add(context, is_above, ggml_mul(context, is_equal, ggml_step(context, excess)));
    ggml_tensor* falling =
        ggml_scale_bias(context, ggml_arange(context, 0.0F, static_cast<float>(n), 1.0F), -1.0F, static_cast<float>(n));
    ggml_tensor* keys = ggml_mul(context, is_kept, ggml_repeat_4d(context, falling, n, n_queries, 1, 1));
    // Blocks that are not kept have the key 0 and come last.
    ggml_tensor* rising = ggml_argsort(context, keys, GGML_SORT_ORDER_DESC);
    return ggml_cont(context, ggml_view_2d(context, rising, k, n_queries, rising->nb[1], 0));
}

}  // namespace assay
