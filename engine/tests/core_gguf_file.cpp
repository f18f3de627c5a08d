// Malformed files: every one is an error with text, or a model that computes; none ends the process.
#include "core_check.h"
#include "core_engine.h"
#include "core_tiny_model.h"

namespace {

core::TinyShape small_shape() {
    core::TinyShape shape;
    shape.n_layer = 1;
    shape.n_embd = 64;
    shape.n_head = 2;
    shape.n_head_kv = 1;
    shape.n_ff = 64;
    return shape;
}

std::string error_of_edit(const std::function<void(gguf_context*)>& edit, const std::vector<std::string>& left_out = {},
                          const core::TinyShape& shape = small_shape()) {
    const core::TemporaryFile file;
    core::TinyModel(shape).write(file.path(), edit, left_out);
    const core::ModelHandle model(file.path());
    CHECK((model.get() == nullptr) == !model.load);
    return model.load.error;
}

// A file that loads must also compute without ending the process; the result is not looked at.
void use(const core::ModelHandle& model) {
    assay_session_settings settings = core::small_settings();
    settings.n_ctx = 8;
    settings.n_ubatch = 4;
    core::SessionHandle session(model, settings);
    if (session.made) session.decode({{1, 0, 0}, {2, 1, 0}});
}

void check_missing_and_wrong() {
    CHECK_EQUAL(error_of_edit(nullptr), "");
    for (const char* key : {"general.architecture", "llama.block_count", "llama.context_length",
                            "llama.embedding_length", "llama.feed_forward_length", "llama.attention.head_count",
                            "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.tokens"}) {
        CHECK_CONTAINS(error_of_edit([&](gguf_context* file) { gguf_remove_key(file, key); }), key);
    }
    for (const std::string& name : core::TinyModel(small_shape()).tensor_names()) {
        CHECK_CONTAINS(error_of_edit(nullptr, {name}), "'" + name + "'");
    }
    const auto count_error = [](const char* key, uint32_t value) {
        return error_of_edit([&](gguf_context* file) { gguf_set_val_u32(file, key, value); });
    };
    CHECK_CONTAINS(count_error("llama.embedding_length", 96), "has the shape");
    CHECK_CONTAINS(count_error("llama.feed_forward_length", 96), "has the shape");
    CHECK_CONTAINS(count_error("llama.block_count", 2), "blk.1.");
    CHECK_CONTAINS(count_error("llama.attention.head_count", 0), "llama.attention.head_count");
    CHECK_CONTAINS(count_error("llama.attention.head_count_kv", 3), "no multiple");
    CHECK_CONTAINS(count_error("llama.rope.dimension_count", 5), "even");
    CHECK_CONTAINS(count_error("llama.rope.dimension_count", 64), "llama.rope.dimension_count");
    CHECK_CONTAINS(count_error("llama.vocab_size", 7), "vocab_size");
    CHECK_CONTAINS(count_error("llama.expert_count", 8), "experts");
    CHECK_CONTAINS(count_error("tokenizer.ggml.bos_token_id", 288), "tokenizer.ggml.bos_token_id");
    CHECK_CONTAINS(count_error("general.architecture", 3), "a string");
    const auto text_error = [](const char* key, const char* value) {
        return error_of_edit([&](gguf_context* file) { gguf_set_val_str(file, key, value); });
    };
    CHECK_CONTAINS(text_error("general.architecture", "mamba"), "'mamba' is not supported, known are llama");
    CHECK_CONTAINS(text_error("llama.rope.scaling.type", "yarn"), "rope scaling of type 'yarn'");
    CHECK_EQUAL(text_error("llama.rope.scaling.type", "none"), "");
    CHECK_CONTAINS(text_error("llama.block_count", "1"), "llama.block_count");
    CHECK_CONTAINS(text_error("tokenizer.ggml.model", "t5"), "tokenizer");
    CHECK_CONTAINS(error_of_edit([](gguf_context* file) {
                       gguf_set_val_f32(file, "llama.attention.layer_norm_rms_epsilon", NAN);
                   }),
                   "layer_norm_rms_epsilon");
    CHECK_CONTAINS(error_of_edit([](gguf_context* file) { gguf_set_val_f32(file, "llama.rope.scaling.factor", 4.0F); }),
                   "rope scaling");
    const std::vector<uint32_t> heads = {2, 1};
    CHECK_CONTAINS(error_of_edit([&](gguf_context* file) {
                       gguf_set_arr_data(file, "llama.attention.head_count_kv", GGUF_TYPE_UINT32, heads.data(),
                                         heads.size());
                   }),
                   "different numbers of heads");
    // A tensor that the graph would ignore.
    core::TinyShape biased = small_shape();
    biased.has_head_norms = true;
    CHECK_CONTAINS(error_of_edit(nullptr, {}, biased), "is not part of the architecture");
}

void check_status_codes() {
    const core::ModelHandle missing("/nonexistent/model.gguf");
    CHECK_EQUAL(missing.load.status, static_cast<int>(ASSAY_FILE));
    CHECK_CONTAINS(missing.load.error, "/nonexistent/model.gguf");
    const core::ModelHandle folder("/");
    CHECK_EQUAL(folder.load.status, static_cast<int>(ASSAY_FILE));
    const core::TemporaryFile empty;
    CHECK_EQUAL(core::ModelHandle(empty.path()).load.status, static_cast<int>(ASSAY_FILE));
    empty.write({'G', 'G', 'M', 'L', 0, 0, 0, 0});
    CHECK_CONTAINS(core::ModelHandle(empty.path()).load.error, "magic");
    const core::TemporaryFile file;
    core::TinyModel(small_shape()).write(file.path());
    assay_model_settings settings = assay_model_defaults();
    settings.struct_size = 0;
    CHECK_EQUAL(core::ModelHandle(file.path(), settings).load.status, static_cast<int>(ASSAY_INVALID));
    settings = assay_model_defaults();
    settings.n_gpu_layers = -1;
    CHECK_EQUAL(core::ModelHandle(file.path(), settings).load.status, static_cast<int>(ASSAY_INVALID));
    char tiny_error[4];
    assay_model* model = nullptr;
    CHECK_EQUAL(assay_model_load("/nonexistent", nullptr, &model, tiny_error, sizeof tiny_error),
                static_cast<int>(ASSAY_FILE));
    CHECK_EQUAL(std::string(tiny_error).size(), 3U);
    CHECK_EQUAL(assay_model_load("/nonexistent", nullptr, &model, nullptr, 0), static_cast<int>(ASSAY_FILE));
}

// Where the data of the tensors begins: everything before is structure.
size_t header_size(const core::TemporaryFile& file) {
    gguf_context* opened = gguf_init_from_file(file.path().c_str(), {true, nullptr});
    const size_t size = gguf_get_data_offset(opened);
    gguf_free(opened);
    return size;
}

void check_truncations() {
    const core::TemporaryFile file;
    core::TinyModel(small_shape()).write(file.path());
    const std::vector<char> bytes = file.read();
    const size_t header = header_size(file);
    const core::TemporaryFile cut;
    // Every length of the header; then the data in coarse steps. A file without its last padding is whole.
    for (size_t length = 0; length + 32 < bytes.size(); length += length < header ? 1 : 997) {
        cut.write(std::vector<char>(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)));
        const core::ModelHandle model(cut.path());
        CHECK_EQUAL(model.load.status, static_cast<int>(ASSAY_FILE));
        CHECK(!model.load.error.empty());
    }
}

void check_flips() {
    const core::TemporaryFile file;
    core::TinyModel(small_shape()).write(file.path());
    const std::vector<char> bytes = file.read();
    const size_t header = header_size(file);
    const core::TemporaryFile flipped;
    size_t n_refused = 0;
    size_t n_loaded = 0;
    for (size_t i = 0; i < header; ++i) {
        constexpr int kPatterns[] = {0x01, 0x80, 0xFF};
        std::vector<char> changed = bytes;
        changed[i] = static_cast<char>(changed[i] ^ kPatterns[i % 3]);
        flipped.write(changed);
        const core::ModelHandle model(flipped.path());
        if (model.load) {
            ++n_loaded;
            use(model);
        } else {
            ++n_refused;
            CHECK(!model.load.error.empty() && model.load.error.find('\n') == std::string::npos);
        }
    }
    // Names in free text load, structure does not.
    CHECK(n_refused > header / 8);
    CHECK(n_loaded > 0);
}

// What gguf.h aborts on: an empty key and a zero dimension.
void check_fields_that_abort_elsewhere() {
    const core::TemporaryFile file;
    core::TinyModel(small_shape()).write(file.path());
    const std::vector<char> bytes = file.read();
    const std::string text(bytes.begin(), bytes.end());
    std::vector<char> changed = bytes;
    const size_t key = text.find("general.architecture");
    changed[key - 8] = 0;
    file.write(changed);
    CHECK_CONTAINS(core::ModelHandle(file.path()).load.error, "0 bytes");
    changed = bytes;
    const size_t tensor = text.find("output_norm.weight");
    changed[tensor + 18 + 4] = 0;  // after the name: dimension count (4 bytes), then the first dimension (64)
    file.write(changed);
    CHECK_CONTAINS(core::ModelHandle(file.path()).load.error, "has the size 0");
    file.write(bytes);
    CHECK_EQUAL(core::ModelHandle(file.path()).load.error, "");
    CHECK_CONTAINS(
        error_of_edit([](gguf_context* opened) { gguf_set_val_str(opened, "tokenizer.ggml.add_bos_token", "yes"); }),
        "a boolean");
}

}  // namespace

int main() {
    check_missing_and_wrong();
    check_status_codes();
    check_truncations();
    check_flips();
    check_fields_that_abort_elsewhere();
    return core::finish("core_gguf_file");
}
