#include "norm.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

#include "devices.h"
#include "failure.h"

namespace assay {
namespace {

constexpr float kEpsilon = 1e-6F;

// Numbers between -1 and 1 that look random and are the same everywhere.
float made_up(uint64_t i) {
    uint64_t z = (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30U)) * UINT64_C(0xBF58476D1CE4E5B9);
    return static_cast<float>(static_cast<int32_t>(z >> 32U)) / 2147483648.0F;
}

}  // namespace

ggml_tensor* rms_rows(ggml_context* context, ggml_tensor* x, ggml_tensor* weight, float epsilon) {
#if defined(ASSAY_FAULT_NORM_65535)
    // Rows past the largest grid of some devices stay as they are.
    if (ggml_nrows(x) > 65535) {
        const int64_t n_rows = ggml_nrows(x);
        ggml_tensor* flat = ggml_reshape_2d(context, ggml_cont(context, x), x->ne[0], n_rows);
        ggml_tensor* first = ggml_view_2d(context, flat, x->ne[0], 65535, flat->nb[1], 0);
        ggml_tensor* rest = ggml_view_2d(context, flat, x->ne[0], n_rows - 65535, flat->nb[1], 65535 * flat->nb[1]);
        flat = ggml_concat(context, ggml_rms_norm(context, first, epsilon), rest, 1);
        return ggml_mul(context, ggml_reshape_4d(context, flat, x->ne[0], x->ne[1], x->ne[2], x->ne[3]), weight);
    }
#endif
    return ggml_mul(context, ggml_rms_norm(context, x, epsilon), weight);
}

NormCheck check_norm(uint32_t n_rows, uint32_t width, bool on_accelerator) {
    if (n_rows == 0 || width == 0 || width > 65536 || n_rows > (1U << 24))
        throw Failure(ASSAY_INVALID, "a norm of " + std::to_string(n_rows) + " rows of " + std::to_string(width));
    const Devices& all = devices();
    if (on_accelerator && all.accelerator == nullptr)
        throw Failure(ASSAY_UNSUPPORTED, "the ggml in use has no accelerator");
    const BackendHandle backend(ggml_backend_dev_init(on_accelerator ? all.accelerator : all.cpu, nullptr));
    if (!backend) throw Failure(ASSAY_MEMORY, "cannot start the back end: " + take_ggml_error());
    const ContextHandle context(ggml_init({16 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
    ggml_tensor* x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, width, n_rows);
    ggml_tensor* weight = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, width);
    ggml_tensor* out = rms_rows(context.get(), x, weight, kEpsilon);
    ggml_cgraph* graph = ggml_new_graph(context.get());
    ggml_build_forward_expand(graph, out);
    const BufferHandle buffer(ggml_backend_alloc_ctx_tensors(context.get(), backend.get()));
    if (!buffer) throw Failure(ASSAY_MEMORY, "cannot allocate the rows: " + take_ggml_error());

    std::vector<float> values(size_t{n_rows} * width);
    for (size_t i = 0; i < values.size(); ++i) values[i] = made_up(i);
    std::vector<float> weights(width);
    for (uint32_t i = 0; i < width; ++i) weights[i] = 1.0F + 0.25F * made_up(UINT64_C(1) << 40U | i);
    ggml_backend_tensor_set(x, values.data(), 0, values.size() * sizeof(float));
    ggml_backend_tensor_set(weight, weights.data(), 0, weights.size() * sizeof(float));
    NormCheck found;
    const auto start = std::chrono::steady_clock::now();
    if (ggml_backend_graph_compute(backend.get(), graph) != GGML_STATUS_SUCCESS)
        throw Failure(ASSAY_INTERNAL, "a back end failed: " + take_ggml_error());
    found.elapsed_ns = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count());
    std::vector<float> row(width);
    for (uint32_t r = 0; r < n_rows; ++r) {
        const float* source = values.data() + size_t{r} * width;
        double sum = 0.0;
        for (uint32_t i = 0; i < width; ++i) sum += static_cast<double>(source[i]) * source[i];
        const double scale = 1.0 / std::sqrt(sum / width + static_cast<double>(kEpsilon));
        ggml_backend_tensor_get(out, row.data(), size_t{r} * width * sizeof(float), width * sizeof(float));
        for (uint32_t i = 0; i < width; ++i) {
            const double error = std::fabs(static_cast<double>(row[i]) - scale * source[i] * weights[i]);
            if (!(error <= found.worst_error))
                found.worst_error = std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
        }
    }
    return found;
}

}  // namespace assay
