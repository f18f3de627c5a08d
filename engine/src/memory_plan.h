// What a model and a session would take, measured on the very objects that would take it: a plan describes every tensor
// and splits every graph, and allocates and reads nothing.
#pragma once

#include <cstdint>

#include "devices.h"

namespace assay {

struct MemoryPlan {
    uint64_t host_bytes = 0;    // weights outside the mapping of the file, caches and compute buffers
    uint64_t device_bytes = 0;  // of the accelerator
    uint64_t compute_bytes = 0; // of both, the compute buffers

    void add(ggml_backend_dev_t device, uint64_t bytes) { (device == devices().cpu ? host_bytes : device_bytes) += bytes; }
};

// Memory for all tensors of a description context; nullptr where there is none. With a plan, an empty buffer of the type
// stands in for it.
BufferHandle allocate_tensors(ggml_context* context, ggml_backend_buffer_type_t type, MemoryPlan* plan);

}  // namespace assay
