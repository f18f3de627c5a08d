// The norm at the row counts where a 16-bit grid ends, against double precision; the fault norm-65535 is caught.
#include "core_check.h"
#include "devices.h"
#include "norm.h"

// The same source with the fault compiled in, under another name.
#define ASSAY_FAULT_NORM_65535
#define rms_rows rms_rows_with_fault
#define check_norm check_norm_with_fault
namespace assay {
ggml_tensor* rms_rows_with_fault(ggml_context* context, ggml_tensor* x, ggml_tensor* weight, float epsilon);
NormCheck check_norm_with_fault(uint32_t n_rows, uint32_t width, bool on_accelerator);
}  // namespace assay
#include "../src/norm.cpp"
#undef rms_rows
#undef check_norm

int main() {
    constexpr double kLimit = 1e-6;
    constexpr uint32_t kWidth = 128;
    for (const bool on_accelerator : {false, true}) {
        if (on_accelerator && assay::devices().accelerator == nullptr) {
            std::printf("accelerator: none, NOT RUN\n");
            continue;
        }
        for (const uint32_t n_rows : {65535U, 65536U, 131072U}) {
            const assay::NormCheck found = assay::check_norm(n_rows, kWidth, on_accelerator);
            std::printf("%s %u rows: error %.2e, %.2f ms\n", on_accelerator ? "accelerator" : "cpu", n_rows,
                        found.worst_error, static_cast<double>(found.elapsed_ns) * 1e-6);
            CHECK_BELOW(found.worst_error, kLimit);
        }
    }
    CHECK_BELOW(assay::check_norm_with_fault(65535, kWidth, false).worst_error, kLimit);
    CHECK(assay::check_norm_with_fault(65536, kWidth, false).worst_error > 0.1);
    return core::finish("core_norm");
}
