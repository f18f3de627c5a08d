#include "devices.h"

#include <cstdlib>
#include <utility>

#include "failure.h"

namespace assay {
namespace {

thread_local std::string last_ggml_error;

// ggml writes to stderr by default. Its errors belong to the caller of the C interface, and the rest is noise
// in a measured process.
void keep_errors(ggml_log_level level, const char* text, void*) {
    if (level != GGML_LOG_LEVEL_ERROR || text == nullptr) return;
    last_ggml_error = text;
    while (!last_ggml_error.empty() && last_ggml_error.back() == '\n') last_ggml_error.pop_back();
}

Devices find_devices() {
    ggml_log_set(keep_errors, nullptr);
    // Builds of ggml with loadable back ends register none by themselves.
    if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == nullptr) ggml_backend_load_all();
    Devices found;
    found.cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (found.cpu == nullptr) throw Failure(ASSAY_INTERNAL, "the ggml in use has no CPU back end");
    found.accelerator = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
    if (found.accelerator == nullptr) found.accelerator = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU);
    const auto extra = found.cpu_function<ggml_backend_dev_get_extra_bufts_t>("ggml_backend_dev_get_extra_bufts");
    if (extra != nullptr) {
        for (auto* type = extra(found.cpu); type != nullptr && *type != nullptr; ++type)
            found.cpu_extra.push_back(*type);
    }
    return found;
}

}  // namespace

const Devices& devices() {
    static const Devices found = find_devices();
    return found;
}

std::string take_ggml_error() { return std::exchange(last_ggml_error, {}); }

void need_memory(size_t bytes) {
    // Aligned as ggml's own, and with what its tables of a graph take beside the block.
    constexpr size_t slack_bytes = 64 * 1024;
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes + slack_bytes) != 0) throw Failure(ASSAY_MEMORY, "an allocation of " + std::to_string(bytes) + " bytes failed");
    std::free(memory);
}

ContextHandle make_description_context(size_t n_tensors) {
    const ggml_init_params params = {n_tensors * ggml_tensor_overhead(), nullptr, true};
    need_memory(params.mem_size);
    ContextHandle context(ggml_init(params));
    if (!context)
        throw Failure(ASSAY_MEMORY, "cannot allocate the descriptions of " + std::to_string(n_tensors) + " tensors");
    return context;
}

}  // namespace assay
