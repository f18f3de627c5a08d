// The trial of weight buffers accepts what computes and refuses what does not.
#include <csignal>

#include "core_check.h"
#include "probe.h"

int main() {
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
                                 GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K}) {
        CHECK(assay::product_works(ggml_backend_cpu_buffer_type(), type));
    }
    // A type that cannot be tried is not trusted.
    CHECK(!assay::product_works(ggml_backend_cpu_buffer_type(), GGML_TYPE_IQ1_S));
    // Whatever the extra layouts of this host do, the process survives and the handler is put back.
    const auto handler = [](int) {};
    std::signal(SIGILL, handler);
    for (ggml_backend_buffer_type_t extra : assay::devices().cpu_extra) {
        for (const ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q8_0}) {
            const bool works = assay::product_works(extra, type);
            std::printf("%s with %s: %s\n", ggml_backend_buft_name(extra), ggml_type_name(type),
                        works ? "works" : "refused");
            CHECK_EQUAL(assay::product_works(extra, type), works);
        }
    }
    CHECK(std::signal(SIGILL, SIG_DFL) == static_cast<void (*)(int)>(handler));
    return core::finish("core_probe");
}
