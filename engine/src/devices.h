// What the ggml in use can compute on: the CPU device with its extra buffer types, and an accelerator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ggml-backend.h"

namespace assay {

struct Devices {
    ggml_backend_dev_t cpu = nullptr;
    ggml_backend_dev_t accelerator = nullptr;  // the first GPU, else the first integrated GPU, else none
    // Buffer types of the CPU that hold weights in a layout of their own (AMX, repacked blocks), best first.
    std::vector<ggml_backend_buffer_type_t> cpu_extra;

    // A function that the CPU back end offers by name; nullptr where it has none.
    template <class Function>
    Function cpu_function(const char* name) const {
        return reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), name));
    }
};

// The devices of this process, found once. Throws Failure(ASSAY_INTERNAL) where ggml has no CPU back end.
const Devices& devices();

// The last error that ggml logged in this thread, without a newline; cleared by the call.
std::string take_ggml_error();

struct BackendDeleter {
    void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
};
struct BufferDeleter {
    void operator()(ggml_backend_buffer_t buffer) const { ggml_backend_buffer_free(buffer); }
};
struct ContextDeleter {
    void operator()(ggml_context* context) const { ggml_free(context); }
};
struct SchedulerDeleter {
    void operator()(ggml_backend_sched_t sched) const { ggml_backend_sched_free(sched); }
};
using BackendHandle = std::unique_ptr<ggml_backend, BackendDeleter>;
using BufferHandle = std::unique_ptr<ggml_backend_buffer, BufferDeleter>;
using ContextHandle = std::unique_ptr<ggml_context, ContextDeleter>;
using SchedulerHandle = std::unique_ptr<ggml_backend_sched, SchedulerDeleter>;

// Throws Failure(ASSAY_MEMORY) where so many bytes cannot be had now. ggml ends the process when the memory of its own
// descriptions is refused; asking just before turns nearly all of these into an error.
void need_memory(size_t bytes);

// A context that holds only descriptions of n tensors, never their data.
ContextHandle make_description_context(size_t n_tensors);

}  // namespace assay
