// The RMS norm of every row, however many there are.
#pragma once

#include <cstdint>

#include "ggml.h"

namespace assay {

// x / sqrt(mean(x^2) + epsilon) * weight over the fastest dimension.
ggml_tensor* rms_rows(ggml_context* context, ggml_tensor* x, ggml_tensor* weight, float epsilon);

// Computes rms_rows over n_rows made-up rows of `width` elements on the accelerator, where there is one and it is wanted,
// else on the CPU, and compares with double precision.
struct NormCheck {
    double worst_error = 0.0;  // absolute; infinite for a value that is not finite
    uint64_t elapsed_ns = 0;   // of one computation
};
NormCheck check_norm(uint32_t n_rows, uint32_t width, bool on_accelerator);

}  // namespace assay
