// Every kernel that the graphs of both families ask for has a case in operator_suites: sessions of tiny models run here, and
// each of their nodes is looked up. An operator, a type or a layout of a source that no case has fails this test.
#include <dlfcn.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "core_check.h"
#include "core_engine.h"
#include "core_tiny_model.h"
#include "ggml-backend.h"
#include "operators/suites.h"
#include "operators/verdict.h"

namespace {

std::string running;                       // what is computed now
std::map<std::string, std::string> asked;  // signature -> where it was first seen

}  // namespace

// Stands before the library's own function of this name: every graph of the engine goes through it.
extern "C" ggml_status ggml_backend_sched_graph_compute(ggml_backend_sched_t scheduler, ggml_cgraph* graph) {
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const std::string signature = assay::operators::signature(ggml_graph_node(graph, i));
        if (!signature.empty()) asked.emplace(signature, running);
    }
    static const auto compute = reinterpret_cast<ggml_status (*)(ggml_backend_sched_t, ggml_cgraph*)>(
        dlsym(RTLD_NEXT, "ggml_backend_sched_graph_compute"));
    return compute(scheduler, graph);
}

namespace {

using Change = std::function<void(assay_session_settings&)>;

std::vector<int32_t> tokens_of(size_t n) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>((i * i * 31 + i * 7 + 5) % 256));
    return tokens;
}

// Prefill, generation, several sequences in one batch, logits of some, a copy, a shift, a saved state.
void use_llama(const core::ModelHandle& model, const std::string& name) {
    if (!model.load) {
        CHECK_EQUAL(model.load.error, "");
        return;
    }
    for (const int32_t kv : {ASSAY_KV_F32, ASSAY_KV_F16, ASSAY_KV_Q8_0}) {
        for (const bool is_flash : {true, false}) {
            for (const bool is_unified : {true, false}) {
                if (kv == ASSAY_KV_Q8_0 && !is_flash) continue;
                running = name + ", kv_type " + std::to_string(kv) + (is_flash ? ", flash" : ", plain") +
                          (is_unified ? ", unified" : ", split");
                assay_session_settings settings = core::small_settings();
                settings.kv_type = kv;
                settings.flash_attention = is_flash;
                settings.kv_unified = is_unified;
                settings.n_seq = 4;
                core::SessionHandle session(model, settings);
                CHECK_EQUAL(session.made.error, "");
                CHECK_EQUAL(session.extend(tokens_of(20)).error, "");
                CHECK_EQUAL(session.extend({7}).error, "");
                CHECK_EQUAL(session.extend(tokens_of(3), 1).error, "");
                CHECK_EQUAL(session.decode({{1, 21, 0, true}, {2, 3, 1, false}, {3, 4, 1, true}, {3, 0, 2, false}}).error, "");
                CHECK_EQUAL(session.decode({{1, 22, 0, false}}).error, "");
                CHECK_EQUAL(session.copy(0, 3).error, "");
                CHECK_EQUAL(session.remove(0, 3, 9).error, "");
                session.shift(0, 9, -1, -6);
                CHECK_EQUAL(session.extend({9}).error, "");
                CHECK_EQUAL(session.restore(2, session.save(1)).error, "");
                CHECK_EQUAL(session.extend({9, 8}, 2).error, "");
            }
        }
    }
}

void draft_some(const core::SessionHandle& session) {
    int32_t last = 3;
    for (int i = 0; i < 6; ++i) {
        int32_t tokens[7];
        assay_draft_round_result result{};
        result.struct_size = sizeof result;
        const core::Outcome outcome = core::outcome([&](char* error, size_t size) {
            return assay_draft_round(session.get(), 0, last, 20, 3, 0.0F, nullptr, tokens, nullptr, &result, error, size);
        });
        CHECK_EQUAL(outcome.error, "");
        if (!outcome) return;
        last = tokens[result.n_tokens - 1];
    }
}

void show_image(core::SessionHandle& session, bool is_wide, uint32_t n_rows, uint32_t n_text) {
    const size_t width = is_wide ? 96 : 64;
    std::vector<float> embeddings(n_rows * width);
    for (size_t i = 0; i < embeddings.size(); ++i) embeddings[i] = std::sin(static_cast<float>(i) * 0.37F);
    const size_t n = n_rows + n_text;
    const int32_t first = session.last(0) + 1;
    std::vector<int32_t> tokens(n);
    std::vector<int32_t> positions(3 * n);
    for (size_t i = 0; i < n; ++i) {
        const bool is_image = i < n_rows;
        const auto place = static_cast<int32_t>(i);
        tokens[i] = is_image ? -1 : static_cast<int32_t>(i * 11 % 400);
        const int32_t text = first + 4 + place - static_cast<int32_t>(n_rows);
        positions[i] = is_image ? first : text;
        positions[n + i] = is_image ? first + place / 4 : text;
        positions[2 * n + i] = is_image ? first + place % 4 : text;
    }
    const std::vector<int32_t> sequences(n, 0);
    const std::vector<uint8_t> wanted(n, 1);
    const assay_rows batch{sizeof(assay_rows), static_cast<uint32_t>(n), 3,       tokens.data(), embeddings.data(),
                           positions.data(),   sequences.data(),         wanted.data()};
    CHECK_EQUAL(core::outcome([&](char* error, size_t size) {
                    return assay_decode_rows(session.get(), &batch, nullptr, error, size);
                }).error,
                "");
}

void use_qwen(const core::ModelHandle& model, const std::string& name, const Change& change, bool has_drafts) {
    running = name;
    assay_session_settings settings = core::small_settings();
    settings.n_ctx = 660;
    settings.n_seq = 3;
    if (!has_drafts) settings.n_rollback = 2;
    change(settings);
    if (has_drafts && !settings.bucket_policy) settings.n_draft = 3;
    core::SessionHandle session(model, settings);
    CHECK_EQUAL(session.made.error, "");
    if (!session.made) return;
    CHECK_EQUAL(core::outcome([&](char* error, size_t size) {
                    return assay_capture_start(session.get(), "*", UINT64_MAX, error, size);
                }).error,
                "");
    CHECK_EQUAL(session.extend(tokens_of(120)).error, "");
    CHECK_EQUAL(session.extend({3}).error, "");
    CHECK_EQUAL(session.extend(tokens_of(9), 1).error, "");
    CHECK_EQUAL(session.copy(0, 2).error, "");
    CHECK_EQUAL(session.decode({{1, 121, 0, true}, {2, 9, 1, false}, {3, 10, 1, true}, {4, 121, 2, false}}).error, "");
    CHECK_EQUAL(session.decode({{1, 122, 0, false}, {2, 123, 0, false}}).error, "");
    if (settings.n_draft > 0) draft_some(session);
    show_image(session, !has_drafts, 12, 0);
    show_image(session, !has_drafts, 12, 6);
    CHECK_EQUAL(session.extend(tokens_of(5)).error, "");
    CHECK_EQUAL(session.restore(1, session.save(0)).error, "");
    CHECK_EQUAL(session.extend(tokens_of(5), 1).error, "");
}

void use_all(const std::filesystem::path& models) {
    for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
        core::TinyShape shape;
        shape.architecture = architecture;
        shape.has_biases = std::string(architecture) == "qwen2";
        shape.has_head_norms = std::string(architecture) == "qwen3";
        for (const bool is_varied : {false, true}) {
            shape.is_scattered = is_varied;
            shape.has_rope_factors = is_varied && std::string(architecture) == "llama";
            shape.is_tied = !is_varied;
            const core::TemporaryFile file;
            core::TinyModel(shape).write(file.path());
            use_llama(core::ModelHandle(file.path()), std::string(architecture) + (is_varied ? " scattered" : ""));
        }
    }
    const Change changes[] = {
        [](assay_session_settings&) {},
        [](assay_session_settings& s) { s.plain_operators = true; },
        [](assay_session_settings& s) { s.flash_attention = false; },
        [](assay_session_settings& s) { s.flash_attention = false; s.plain_operators = true; s.strip_bytes = 1; },
        [](assay_session_settings& s) { s.bucket_policy = true; },
        [](assay_session_settings& s) { s.bucket_policy = true; s.flash_attention = false; s.kv_unified = true; },
        [](assay_session_settings& s) { s.strip_bytes = 1; s.kv_unified = true; s.reserved_layout = true; },
        [](assay_session_settings& s) { s.kv_type = ASSAY_KV_F16; s.draft_kv_type = ASSAY_KV_F16; s.n_draft_vocab = 100; },
        [](assay_session_settings& s) { s.kv_type = ASSAY_KV_F16; s.flash_attention = false; },
        [](assay_session_settings& s) { s.kv_type = ASSAY_KV_Q8_0; s.draft_kv_type = ASSAY_KV_Q8_0; },
    };
    for (const char* file : {"tiny-a", "tiny-b", "tiny-c"}) {
        const core::ModelHandle model((models / (std::string(file) + ".gguf")).string());
        CHECK_EQUAL(model.load.error, "");
        if (!model.load) continue;
        for (size_t i = 0; i < std::size(changes); ++i)
            use_qwen(model, std::string(file) + ", settings " + std::to_string(i), changes[i], std::string(file) != "tiny-c");
    }
}

}  // namespace

int main(int argc, char** argv) {
    use_all(std::filesystem::path(argc > 1 ? argv[1] : "tests/engine/golden").lexically_normal().parent_path() / "models");
    std::set<std::string> covered;
    for (const auto& op : assay::operators::all_operators()) {
        for (const auto& one : op.cases) covered.insert(assay::operators::signature(one, {}));
    }
    CHECK(asked.size() > 60);
    // A lookup that finds everything would show nothing.
    CHECK(asked.contains("SSM_CONV(f32, f32) -> f32") && asked.contains("MUL_MAT(f32, f32 rows) -> f32"));
    CHECK(!covered.contains("SSM_CONV(f32, f32 rows) -> f32"));
    for (const auto& [signature, where] : asked)
        core::check(covered.contains(signature), __FILE__, __LINE__, "no case of operator_suites has " + signature + ", of " + where);
    // Weights come in any type that this ggml reads.
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const auto type = static_cast<ggml_type>(i);
        if (type != GGML_TYPE_F32 && ggml_get_type_traits(type)->to_float == nullptr) continue;
        const std::string name = ggml_type_name(type);
        CHECK(covered.contains("MUL_MAT(" + name + ", f32) -> f32"));
        CHECK(covered.contains("MUL_MAT_ID(" + name + ", f32, i32) -> f32"));
        CHECK(covered.contains("GET_ROWS(" + name + ", i32) -> f32"));
    }
    return core::finish("core_operators");
}
