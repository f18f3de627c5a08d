// Tries a weight buffer type before it is trusted with a model.
#pragma once

#include "devices.h"

namespace assay {

// Whether a matrix product with weights of `type` in `buffer_type` works on this host: it runs, and its result
// is that of the plain layout within the error of quantised activations. Answered once a process for each pair.
//
// supports_op is not enough. GCC 12 drops most of the tile configuration that ggml's AMX product stores before
// it loads it (the intrinsic claims to read 8 of its 64 bytes), and such a build raises SIGILL in the first
// prefill of a host with AMX.
bool product_works(ggml_backend_buffer_type_t buffer_type, ggml_type type);

}  // namespace assay
