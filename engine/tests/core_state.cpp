// Saved states: exact round trips, and a refusal with text for everything that is not one.
#include <cstring>

#include "core_check.h"
#include "core_engine.h"
#include "core_tiny_model.h"

namespace {

void check_round_trip(const core::ModelHandle& model, int32_t kv_type) {
    const std::vector<int32_t> tokens = core::some_tokens(21, 8);
    assay_session_settings settings = core::small_settings();
    settings.kv_type = kv_type;
    settings.n_seq = 2;
    core::SessionHandle source(model, settings);
    source.extend(tokens, 1);
    const std::vector<uint8_t> saved = source.save(1);
    CHECK_EQUAL(saved.size(), assay_state_size(source.get(), 1));
    source.extend({5}, 1);
    const std::vector<float> needed = source.logits(0);
    for (const bool is_unified : {false, true}) {
        settings.kv_unified = is_unified;
        core::SessionHandle target(model, settings);
        // The target has other tokens before, and neighbours that must stay.
        target.extend(core::some_tokens(9, 2), 0);
        target.extend(core::some_tokens(30, 3), 1);
        CHECK_EQUAL(target.restore(1, saved).error, "");
        CHECK_EQUAL(target.last(1), 20);
        CHECK_EQUAL(target.cells(0), 9U);
        CHECK(target.save(1) == saved);
        target.extend({5}, 1);
        // The rows are the same bytes, but in other cells, and attention adds them in the order of the cells.
        CHECK_BELOW(core::distance(needed, target.logits(0)), 1e-4);
        CHECK_EQUAL(target.restore(0, saved).error, "");
        CHECK(target.save(0) == saved);
    }
    core::SessionHandle same(model, settings);
    CHECK_EQUAL(same.restore(1, saved).error, "");
    same.extend({5}, 1);
    CHECK(same.logits(0) == needed);
}

void check_empty(const core::ModelHandle& model) {
    core::SessionHandle session(model, core::small_settings());
    const std::vector<uint8_t> saved = session.save(0);
    CHECK(!saved.empty());
    session.extend({1, 2});
    CHECK_EQUAL(session.restore(0, saved).error, "");
    CHECK_EQUAL(session.last(0), -1);
}

void check_refusals(const core::ModelHandle& model, const core::ModelHandle& other) {
    assay_session_settings settings = core::small_settings();
    core::SessionHandle session(model, settings);
    session.extend(core::some_tokens(6));
    const std::vector<uint8_t> saved = session.save(0);
    session.remove(0, 0, -1);
    session.extend({9, 8, 7});
    const std::vector<uint8_t> before = session.save(0);
    const auto refuse = [&](core::SessionHandle& target, const std::vector<uint8_t>& data, int status,
                            const char* part) {
        const core::Outcome result = target.restore(0, data);
        CHECK_EQUAL(result.status, status);
        CHECK_CONTAINS(result.error, part);
    };
    for (size_t length = 1; length < saved.size(); length += length < 200 ? 1 : 61) {
        CHECK_EQUAL(session.restore(0, {saved.begin(), saved.begin() + static_cast<std::ptrdiff_t>(length)}).status,
                    static_cast<int>(ASSAY_FILE));
    }
    std::vector<uint8_t> longer = saved;
    longer.push_back(0);
    refuse(session, longer, ASSAY_FILE, "appended");
    for (size_t i = 0; i < saved.size(); i += i < 200 ? 1 : 17) {
        for (const uint8_t bit : {0x01, 0x80}) {
            std::vector<uint8_t> flipped = saved;
            flipped[i] ^= bit;
            CHECK_EQUAL(session.restore(0, flipped).status, static_cast<int>(ASSAY_FILE));
        }
    }
    // None of it touched the sequence.
    CHECK(session.save(0) == before);

    core::SessionHandle stranger(other, settings);
    refuse(stranger, saved, ASSAY_FILE, "another model");
    settings.kv_type = ASSAY_KV_F16;
    core::SessionHandle half(model, settings);
    refuse(half, saved, ASSAY_FILE, "f16");
    settings.kv_type = ASSAY_KV_F32;
    settings.n_ctx = 5;
    core::SessionHandle small(model, settings);
    small.extend({1, 2, 3, 4, 5});
    refuse(small, saved, ASSAY_FULL, "6 cells");
    CHECK_EQUAL(small.cells(0), 5U);

    std::vector<uint8_t> buffer(assay_state_size(session.get(), 0) - 1);
    char error[200];
    size_t written = 0;
    CHECK_EQUAL(assay_state_save(session.get(), 0, buffer.data(), buffer.size(), &written, error, sizeof error),
                static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(assay_state_save(session.get(), 3, buffer.data(), buffer.size(), &written, error, sizeof error),
                static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(assay_state_size(session.get(), 3), 0U);
    CHECK_EQUAL(assay_state_restore(session.get(), 0, nullptr, 10, error, sizeof error),
                static_cast<int>(ASSAY_INVALID));
}

}  // namespace

int main() {
    const core::TemporaryFile file;
    core::TinyModel({}).write(file.path());
    const core::TemporaryFile renamed;
    core::TinyModel({}).write(renamed.path(),
                              [](gguf_context* opened) { gguf_set_val_str(opened, "general.name", "other"); });
    const core::ModelHandle model(file.path());
    const core::ModelHandle other(renamed.path());
    CHECK_EQUAL(model.load.error + other.load.error, "");
    if (!model.load || !other.load) return 1;
    for (const int32_t kv : {ASSAY_KV_F32, ASSAY_KV_F16, ASSAY_KV_Q8_0}) check_round_trip(model, kv);
    check_empty(model);
    check_refusals(model, other);
    return core::finish("core_state");
}
