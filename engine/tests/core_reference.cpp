// Logits against a computation in double precision of the same stored weights.
#include "core_check.h"
#include "core_engine.h"
#include "core_tiny_model.h"

namespace {

constexpr size_t kTokens = 24;

struct Case {
    const char* name;
    core::TinyShape shape;
    // Limit of core::distance. Products with quantised weights quantise activations to 8 bits, those with half
    // precision weights round activations to half precision; exact ones differ by summation order only.
    double limit;
};

double worst_distance(const std::vector<std::vector<double>>& reference, const core::SessionHandle& session) {
    double worst = 0;
    for (uint32_t i = 0; i < reference.size(); ++i) {
        const std::vector<float> row = session.logits(i);
        const double found = core::distance(reference[i], std::vector<double>(row.begin(), row.end()));
        if (!(found <= worst)) worst = found;
    }
    return worst;
}

// Asks by loading: without an accelerator that is an error that says so.
bool has_accelerator() {
    static const bool found = [] {
        const core::TemporaryFile file;
        core::TinyModel({}).write(file.path());
        assay_model_settings settings = assay_model_defaults();
        settings.n_gpu_layers = 99;
        const core::ModelHandle model(file.path(), settings);
        if (!model.load) CHECK_CONTAINS(model.load.error, "has no accelerator");
        std::printf("accelerator: %s\n", model.load ? "yes" : "none, so layers on it were NOT RUN");
        return static_cast<bool>(model.load);
    }();
    return found;
}

void check_case(const Case& item) {
    const core::TinyModel tiny(item.shape);
    const core::TemporaryFile file;
    tiny.write(file.path());
    const std::vector<int32_t> tokens = core::some_tokens(kTokens, item.shape.seed);
    const auto reference = tiny.logits(tokens);
    struct Placement {
        bool use_mmap;
        int32_t n_gpu_layers;
    };
    // On the host mapped and copied; partly and wholly on an accelerator where the ggml in use has one.
    for (const Placement placement : {Placement{true, 0}, {false, 0}, {true, 1}, {true, 99}}) {
        if (placement.n_gpu_layers > 0 && !has_accelerator()) continue;
        assay_model_settings model_settings = assay_model_defaults();
        model_settings.use_mmap = placement.use_mmap;
        model_settings.n_gpu_layers = placement.n_gpu_layers;
        const core::ModelHandle model(file.path(), model_settings);
        CHECK_EQUAL(std::string(item.name) + ": " + model.load.error, std::string(item.name) + ": ");
        if (!model.load) return;
        // Accelerators multiply in reduced precision.
        const double base = placement.n_gpu_layers > 0 ? item.limit + 0.1 : item.limit;
        for (const bool flash : {true, false}) {
            for (const int32_t kv : {ASSAY_KV_F32, ASSAY_KV_F16, ASSAY_KV_Q8_0}) {
                if (kv == ASSAY_KV_Q8_0 && !flash) continue;
                assay_session_settings settings = core::small_settings();
                settings.flash_attention = flash;
                settings.kv_type = kv;
                core::SessionHandle session(model, settings);
                CHECK_EQUAL(session.made.error, "");
                CHECK_EQUAL(session.extend(tokens).error, "");
                const double rows = kv == ASSAY_KV_F32 ? 0.0 : kv == ASSAY_KV_F16 ? 0.02 : 0.06;
                const double found = worst_distance(reference, session);
                if (!(found < base + rows)) {
                    std::fprintf(stderr, "case %s, flash %d, rows %d, mmap %d, accelerated layers %d:\n", item.name,
                                 flash, kv, placement.use_mmap, placement.n_gpu_layers);
                }
                CHECK_BELOW(found, base + rows);
            }
        }
    }
}

core::TinyShape shape_with(const std::function<void(core::TinyShape&)>& change) {
    core::TinyShape shape;
    change(shape);
    return shape;
}

}  // namespace

int main() {
    using core::TinyShape;
    std::vector<Case> cases = {
        {"llama", {}, 1e-4},
        {"llama, own output", shape_with([](TinyShape& s) {
             s.is_tied = false;
             s.seed = 2;
         }),
         1e-4},
        {"llama, partial rotation", shape_with([](TinyShape& s) {
             s.n_rot = 16;
             s.seed = 3;
         }),
         1e-4},
        {"llama, rope factors", shape_with([](TinyShape& s) {
             s.has_rope_factors = true;
             s.rope_base = 500000.0F;
         }),
         1e-4},
        {"llama, as many key heads", shape_with([](TinyShape& s) {
             s.n_head_kv = 8;
             s.seed = 4;
         }),
         1e-4},
        {"llama, larger heads", shape_with([](TinyShape& s) {
             s.n_head = 4;
             s.seed = 5;
         }),
         1e-4},
        {"llama, one layer", shape_with([](TinyShape& s) { s.n_layer = 1; }), 1e-4},
        {"llama, no products to join", shape_with([](TinyShape& s) { s.is_scattered = true; }), 1e-4},
        {"llama, embedding of another type", shape_with([](TinyShape& s) {
             s.type = GGML_TYPE_Q4_1;
             s.embedding_type = GGML_TYPE_Q8_0;
         }),
         0.15},
        {"llama with biases", shape_with([](TinyShape& s) { s.has_biases = true; }), 1e-4},
        {"qwen2", shape_with([](TinyShape& s) {
             s.architecture = "qwen2";
             s.has_biases = true;
         }),
         1e-4},
        {"qwen3", shape_with([](TinyShape& s) {
             s.architecture = "qwen3";
             s.has_head_norms = true;
         }),
         1e-4},
    };
    const std::pair<ggml_type, double> types[] = {
        {GGML_TYPE_F16, 0.02},  {GGML_TYPE_BF16, 0.1},  {GGML_TYPE_Q8_0, 0.15}, {GGML_TYPE_Q4_0, 0.15},
        {GGML_TYPE_Q4_1, 0.15}, {GGML_TYPE_Q4_K, 0.15}, {GGML_TYPE_Q5_K, 0.15}, {GGML_TYPE_Q6_K, 0.15},
    };
    for (const auto& [type, limit] : types) {
        cases.push_back({ggml_type_name(type), shape_with([type = type](TinyShape& s) { s.type = type; }), limit});
    }
    for (const Case& item : cases) check_case(item);
    return core::finish("core_reference");
}
