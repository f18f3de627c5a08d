#include "probe.h"

#include <csetjmp>
#include <csignal>

#include <cmath>
#include <map>
#include <mutex>
#include <vector>

#include "ggml-cpu.h"

namespace assay {
namespace {

// One block of every quantised type divides the row, and the sizes reach the paths for one and for many columns.
constexpr int64_t kRowSize = 512;
constexpr int64_t kRows = 64;
constexpr int64_t kColumns[] = {1, 40};

thread_local sigjmp_buf* escape = nullptr;

void leave_probe(int signal) {
    if (escape != nullptr) siglongjmp(*escape, 1);
    // Not ours: let the next execution of the instruction do what it would have done.
    std::signal(signal, SIG_DFL);
}

// Catches SIGILL in this thread for its lifetime.
class IllegalInstructionGuard {
public:
    explicit IllegalInstructionGuard(sigjmp_buf& target) {
        struct sigaction action{};
        action.sa_handler = leave_probe;
        sigemptyset(&action.sa_mask);
        sigaction(SIGILL, &action, &previous_);
        escape = &target;
    }
    ~IllegalInstructionGuard() {
        escape = nullptr;
        sigaction(SIGILL, &previous_, nullptr);
    }
    IllegalInstructionGuard(const IllegalInstructionGuard&) = delete;
    IllegalInstructionGuard& operator=(const IllegalInstructionGuard&) = delete;

private:
    struct sigaction previous_{};
};

std::vector<float> pseudo_random(size_t n, uint32_t state) {
    std::vector<float> values(n);
    for (float& value : values) {
        state = state * 1664525U + 1013904223U;
        value = static_cast<float>(state >> 8) / 8388608.0F - 1.0F;
    }
    return values;
}

struct Product {
    ContextHandle context = make_description_context(8);
    BufferHandle weight_buffer;
    BufferHandle buffer;
    ContextHandle graph_context;
    ggml_tensor* result = nullptr;
    ggml_cgraph* graph = nullptr;
};

// weights [kRowSize, kRows] times inputs [kRowSize, n]; false where that cannot be computed or allocated.
bool prepare(Product& product, ggml_backend_buffer_type_t buffer_type, ggml_type type,
             const std::vector<uint8_t>& weights, int64_t n) {
    ggml_context* context = product.context.get();
    ggml_tensor* weight = ggml_new_tensor_2d(context, type, kRowSize, kRows);
    product.weight_buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(context, buffer_type));
    if (!product.weight_buffer) return false;
    product.graph_context.reset(
        ggml_init({8 * ggml_tensor_overhead() + ggml_graph_overhead_custom(8, false), nullptr, true}));
    if (!product.graph_context) return false;
    ggml_tensor* input = ggml_new_tensor_2d(product.graph_context.get(), GGML_TYPE_F32, kRowSize, n);
    product.result = ggml_mul_mat(product.graph_context.get(), weight, input);
    // Some buffers cannot even be filled with types that they have no layout for.
    if (!ggml_backend_dev_supports_op(devices().cpu, product.result)) return false;
    ggml_backend_tensor_set(weight, weights.data(), 0, weights.size());
    product.graph = ggml_new_graph_custom(product.graph_context.get(), 8, false);
    ggml_build_forward_expand(product.graph, product.result);
    product.buffer.reset(
        ggml_backend_alloc_ctx_tensors_from_buft(product.graph_context.get(), ggml_backend_cpu_buffer_type()));
    if (!product.buffer) return false;
    const std::vector<float> values = pseudo_random(static_cast<size_t>(kRowSize * n), 7);
    ggml_backend_tensor_set(input, values.data(), 0, values.size() * sizeof(float));
    return true;
}

// A CPU back end that computes in the calling thread, because only there the signal can be caught. It brings its
// own pool: one that ggml makes for a single graph would be lost when a signal leaves the graph.
class SingleThread {
public:
    SingleThread() {
        const Devices& all = devices();
        const auto set_threads = all.cpu_function<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads");
        const auto new_pool = all.cpu_function<decltype(&ggml_threadpool_new)>("ggml_threadpool_new");
        const auto set_pool =
            all.cpu_function<decltype(&ggml_backend_cpu_set_threadpool)>("ggml_backend_cpu_set_threadpool");
        free_pool_ = all.cpu_function<decltype(&ggml_threadpool_free)>("ggml_threadpool_free");
        if (set_threads == nullptr || new_pool == nullptr || set_pool == nullptr || free_pool_ == nullptr) return;
        backend_.reset(ggml_backend_dev_init(all.cpu, nullptr));
        if (!backend_) return;
        ggml_threadpool_params params = ggml_threadpool_params_default(1);
        pool_ = new_pool(&params);
        set_threads(backend_.get(), 1);
        set_pool(backend_.get(), pool_);
    }
    ~SingleThread() {
        backend_.reset();
        if (pool_ != nullptr) free_pool_(pool_);
    }
    SingleThread(const SingleThread&) = delete;
    SingleThread& operator=(const SingleThread&) = delete;
    ggml_backend_t get() const { return pool_ == nullptr ? nullptr : backend_.get(); }

private:
    BackendHandle backend_;
    ggml_threadpool* pool_ = nullptr;
    decltype(&ggml_threadpool_free) free_pool_ = nullptr;
};

bool compute(ggml_backend_t backend, ggml_cgraph* graph) {
    sigjmp_buf target;
    // Made before the jump is set, so that its destructor runs on both ways out.
    const IllegalInstructionGuard guard(target);
    if (sigsetjmp(target, 1) != 0) return false;
    return ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS;
}

bool agrees(const Product& tried, const Product& plain) {
    const auto n = static_cast<size_t>(ggml_nelements(plain.result));
    std::vector<float> a(n);
    std::vector<float> b(n);
    ggml_backend_tensor_get(tried.result, a.data(), 0, n * sizeof(float));
    ggml_backend_tensor_get(plain.result, b.data(), 0, n * sizeof(float));
    double difference = 0;
    double size = 0;
    for (size_t i = 0; i < n; ++i) {
        difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
        size += std::pow(static_cast<double>(b[i]), 2);
    }
    // Written so that NaN fails. Activations are quantised to 8 bits on both sides, possibly in other blocks.
    return std::sqrt(difference) <= 0.02 * std::sqrt(size);
}

bool try_product(ggml_backend_buffer_type_t buffer_type, ggml_type type) {
    if (ggml_quantize_requires_imatrix(type)) return false;
    std::vector<uint8_t> weights(ggml_row_size(type, kRowSize) * kRows);
    const std::vector<float> values = pseudo_random(static_cast<size_t>(kRowSize * kRows), 3);
    if (ggml_quantize_chunk(type, values.data(), weights.data(), 0, kRows, kRowSize, nullptr) != weights.size())
        return false;
    const SingleThread backend;
    if (backend.get() == nullptr) return false;
    for (const int64_t n : kColumns) {
        Product tried;
        Product plain;
        if (!prepare(tried, buffer_type, type, weights, n)) return false;
        if (!prepare(plain, ggml_backend_cpu_buffer_type(), type, weights, n)) return false;
        if (!compute(backend.get(), plain.graph) || !compute(backend.get(), tried.graph) || !agrees(tried, plain))
            return false;
    }
    return true;
}

}  // namespace

bool product_works(ggml_backend_buffer_type_t buffer_type, ggml_type type) {
    static std::mutex mutex;
    static std::map<std::pair<ggml_backend_buffer_type_t, ggml_type>, bool> answers;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto key = std::make_pair(buffer_type, type);
    const auto known = answers.find(key);
    if (known != answers.end()) return known->second;
    return answers[key] = try_product(buffer_type, type);
}

}  // namespace assay
