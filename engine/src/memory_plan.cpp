#include "memory_plan.h"

#include "ggml-alloc.h"

namespace assay {

BufferHandle allocate_tensors(ggml_context* context, ggml_backend_buffer_type_t type, MemoryPlan* plan) {
    if (plan == nullptr) return BufferHandle(ggml_backend_alloc_ctx_tensors_from_buft(context, type));
    // Extra buffer types of the CPU name no device, or the CPU.
    ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
    plan->add(device == nullptr ? devices().cpu : device, ggml_backend_alloc_ctx_tensors_from_buft_size(context, type));
    BufferHandle stand_in(ggml_backend_buft_alloc_buffer(type, 0));
    for (ggml_tensor* tensor = ggml_get_first_tensor(context); tensor != nullptr && stand_in;
         tensor = ggml_get_next_tensor(context, tensor)) {
        tensor->buffer = stand_in.get();
    }
    return stand_in;
}

}  // namespace assay
