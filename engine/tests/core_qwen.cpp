// Sessions of qwen4exp over the C interface: ways of computing the same thing agree, and what fails changes nothing.
// The values themselves are compared with two other implementations in tests/engine/test_qwen_*.py.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>

#include "core_check.h"
#include "core_engine.h"

namespace {

constexpr double kSame = 1e-4;
using Entry = core::SessionHandle::Entry;

assay_session_settings settings_of(const std::function<void(assay_session_settings&)>& change = {}) {
    assay_session_settings settings = core::small_settings();
    settings.n_ctx = 256;
    if (change) change(settings);
    return settings;
}

std::vector<int32_t> tokens_of(size_t n, uint32_t salt = 0) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>((i * i * 31 + i * 7 + salt * 113 + 5) % 480));
    return tokens;
}

std::vector<float> alone(const core::ModelHandle& model, const std::vector<int32_t>& tokens) {
    core::SessionHandle session(model, settings_of());
    CHECK_EQUAL(session.extend(tokens).error, "");
    return session.logits(static_cast<uint32_t>(tokens.size() - 1));
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

void check_cutting(const core::ModelHandle& model) {
    const std::vector<int32_t> tokens = tokens_of(120);
    const std::vector<float> needed = alone(model, tokens);
    for (const bool is_flash : {false, true}) {
        for (const bool is_plain : {false, true}) {
            for (const uint32_t n_ubatch : {1U, 7U, 64U, 512U}) {
                core::SessionHandle session(model, settings_of([&](assay_session_settings& s) {
                                                s.n_ubatch = n_ubatch;
                                                s.flash_attention = is_flash;
                                                s.plain_operators = is_plain;
                                                s.strip_bytes = n_ubatch == 64 ? 1 : s.strip_bytes;
                                            }));
                CHECK_EQUAL(session.made.error, "");
                CHECK_EQUAL(session.extend(tokens).error, "");
                CHECK_BELOW(core::distance(needed, session.logits(119)), kSame);
            }
        }
    }
}

void check_sequences(const core::ModelHandle& model) {
    const std::vector<int32_t> a = tokens_of(70);
    const std::vector<int32_t> b = tokens_of(51, 1);
    for (const bool is_unified : {false, true}) {
        core::SessionHandle session(model, settings_of([&](assay_session_settings& s) {
                                        s.n_seq = 5;
                                        s.kv_unified = is_unified;
                                        s.n_ctx = 600;
                                    }));
        std::vector<Entry> entries;
        for (int32_t i = 0; i < 70; ++i) {
            entries.push_back({a[static_cast<size_t>(i)], i, 0});
            if (i < 51) entries.push_back({b[static_cast<size_t>(i)], i, 3});
        }
        CHECK_EQUAL(session.decode(entries).error, "");
        CHECK_EQUAL(session.copy(0, 1).error, "");
        CHECK_EQUAL(session.copy(1, 4).error, "");
        CHECK_CONTAINS(session.copy(0, 3).error, "not empty");
        // Four sequences go on in one batch, two of them on common ground.
        for (int32_t i = 0; i < 6; ++i)
            CHECK_EQUAL(session.decode({{5 + i, 70 + i, 0}, {9 + i, 70 + i, 1}, {9 + i, 51 + i, 3}, {2, 70 + i, 4}}).error, "");
        CHECK_BELOW(core::distance(alone(model, joined(a, {5, 6, 7, 8, 9, 10})), session.logits(0)), kSame);
        CHECK_BELOW(core::distance(alone(model, joined(a, {9, 10, 11, 12, 13, 14})), session.logits(1)), kSame);
        CHECK_BELOW(core::distance(alone(model, joined(b, {9, 10, 11, 12, 13, 14})), session.logits(2)), kSame);
        CHECK_EQUAL(session.keep(1).error, "");
        CHECK_EQUAL(session.cells(0), 0U);
        CHECK_EQUAL(session.last(1), 75);
        CHECK_EQUAL(session.extend({44}, 1).error, "");
        CHECK_BELOW(core::distance(alone(model, joined(a, {9, 10, 11, 12, 13, 14, 44})), session.logits(0)), kSame);
    }
}

void check_failures(const core::ModelHandle& model) {
    core::SessionHandle session(model, settings_of([](assay_session_settings& s) {
                                    s.n_ubatch = 16;
                                    s.n_draft = 3;
                                }));
    const std::vector<int32_t> tokens = tokens_of(60);
    CHECK_EQUAL(session.extend(tokens).error, "");
    const std::vector<uint8_t> state = session.save(0);
    CHECK(!state.empty());
    const auto is_unchanged = [&] { return session.save(0) == state; };

    const volatile int raised = 1;
    std::vector<Entry> more;
    for (int32_t i = 0; i < 40; ++i) more.push_back({i, 60 + i, 0});
    CHECK_EQUAL(session.decode(more, &raised).status, static_cast<int>(ASSAY_CANCELLED));
    CHECK(is_unchanged());
    for (int32_t i = 40; i < 200; ++i) more.push_back({i, 60 + i, 0});
    CHECK_EQUAL(session.decode(more).status, static_cast<int>(ASSAY_FULL));
    CHECK_EQUAL(session.decode({{1, 59, 0}}).status, static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(session.decode({{512, 60, 0}}).status, static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(session.decode({{1, 60, 1}}).status, static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(session.decode({}).status, static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(session.remove(0, 20, 30).status, static_cast<int>(ASSAY_UNSUPPORTED));
    CHECK_EQUAL(session.remove(0, 40, -1).status, static_cast<int>(ASSAY_UNSUPPORTED));
    CHECK_EQUAL(session.shift(0, 0, -1, 4).status, static_cast<int>(ASSAY_UNSUPPORTED));
    CHECK_EQUAL(session.fill(0, 4).status, static_cast<int>(ASSAY_INVALID));
    for (size_t at = 0; at < state.size(); at += 97) {
        std::vector<uint8_t> bad = state;
        bad[at] ^= 4;
        CHECK_EQUAL(session.restore(0, bad).status, static_cast<int>(ASSAY_FILE));
    }
    for (size_t size = 1; size < state.size(); size += 1009) {
        CHECK_EQUAL(session.restore(0, {state.begin(), state.begin() + static_cast<ptrdiff_t>(size)}).status,
                    static_cast<int>(ASSAY_FILE));
    }
    CHECK(is_unchanged());
    // What goes on is what would have gone on.
    CHECK_EQUAL(session.extend({7, 8, 9}).error, "");
    CHECK_BELOW(core::distance(alone(model, joined(tokens, {7, 8, 9})), session.logits(2)), kSame);
    CHECK_EQUAL(session.remove(0, 61, -1).error, "");
    CHECK_EQUAL(session.extend({11}).error, "");
    CHECK_BELOW(core::distance(alone(model, joined(tokens, {7, 11})), session.logits(0)), kSame);
    CHECK_EQUAL(session.restore(0, state).error, "");
    CHECK(is_unchanged());
    CHECK_EQUAL(session.remove(0, 0, -1).error, "");
    CHECK_EQUAL(session.cells(0), 0U);
    CHECK_EQUAL(session.restore(0, session.save(0)).error, "");
}

void check_settings(const core::ModelHandle& model) {
    const auto refused = [&](const char* words, const std::function<void(assay_session_settings&)>& change) {
        const core::SessionHandle session(model, settings_of(change));
        CHECK_CONTAINS(session.made.error, words);
    };
    refused("n_draft is 7", [](assay_session_settings& s) { s.n_draft = 7; });
    refused("n_rollback is 65", [](assay_session_settings& s) { s.n_rollback = 65; });
    refused("ple_cache_bytes is 8", [](assay_session_settings& s) { s.ple_cache_bytes = 8; });
    refused("n_ubatch is 9000", [](assay_session_settings& s) { s.n_ubatch = 9000; });
    refused("kv_type is 5", [](assay_session_settings& s) { s.kv_type = 5; });
    refused("n_seq is 0", [](assay_session_settings& s) { s.n_seq = 0; });
    // One cell, one token: as small as it gets.
    core::SessionHandle tiny(model, settings_of([](assay_session_settings& s) { s.n_ctx = s.n_ubatch = 1; }));
    CHECK_EQUAL(tiny.extend({3}).error, "");
    CHECK_EQUAL(tiny.extend({3}).status, static_cast<int>(ASSAY_FULL));
}

void check_drafts(const core::ModelHandle& model) {
    const std::vector<int32_t> prompt = tokens_of(40, 2);
    const auto best = [](const std::vector<float>& row) {
        return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
    };
    core::SessionHandle plain(model, settings_of());
    plain.extend(prompt);
    std::vector<int32_t> needed = {best(plain.logits(39))};
    while (needed.size() < 30) {
        plain.extend({needed.back()});
        needed.push_back(best(plain.logits(0)));
    }
    core::SessionHandle session(model, settings_of([](assay_session_settings& s) { s.n_draft = 6; }));
    session.extend(prompt);
    std::vector<int32_t> found = {best(session.logits(39))};
    uint32_t n_drafted = 0;
    while (found.size() < 30) {
        int32_t tokens[7];
        assay_draft_round_result result{};
        result.struct_size = sizeof result;
        const core::Outcome outcome = core::outcome([&](char* error, size_t size) {
            return assay_draft_round(session.get(), 0, found.back(), 30 - static_cast<uint32_t>(found.size()), 6, 0.0F,
                                     nullptr, tokens, nullptr, &result, error, size);
        });
        CHECK_EQUAL(outcome.error, "");
        if (!outcome) return;
        found.insert(found.end(), tokens, tokens + result.n_tokens);
        n_drafted += result.n_drafted;
    }
    CHECK(found == needed);
    CHECK(n_drafted > 0);
    CHECK_EQUAL(session.work().n_drafted, n_drafted);
}

void check_image(const core::ModelHandle& model) {
    constexpr uint32_t kRows = 12;  // 3 x 4 at position 5
    std::vector<float> embeddings(size_t{kRows} * 64);
    for (size_t i = 0; i < embeddings.size(); ++i) embeddings[i] = std::sin(static_cast<float>(i) * 0.37F);
    std::vector<int32_t> tokens(5 + kRows + 6);
    std::vector<int32_t> positions(3 * tokens.size());
    const size_t n = tokens.size();
    for (size_t i = 0; i < n; ++i) {
        const bool is_image = i >= 5 && i < 5 + kRows;
        const auto place = static_cast<int32_t>(i - 5);
        tokens[i] = is_image ? -1 : static_cast<int32_t>(i * 11 % 400);
        // The text goes on at 5 + max(3, 4).
        const int32_t text = static_cast<int32_t>(i < 5 ? i : i - kRows + 4);
        positions[i] = is_image ? 5 : text;
        positions[n + i] = is_image ? 5 + place / 4 : text;
        positions[2 * n + i] = is_image ? 5 + place % 4 : text;
    }
    const std::vector<int32_t> sequences(n, 0);
    const std::vector<uint8_t> wanted(n, 1);
    std::vector<std::vector<float>> rows;
    for (const uint32_t n_ubatch : {64U, 5U, 1U}) {
        core::SessionHandle session(model, settings_of([&](assay_session_settings& s) {
                                        s.n_ubatch = n_ubatch;
                                        s.n_draft = 2;
                                    }));
        const assay_rows batch{sizeof(assay_rows), static_cast<uint32_t>(n), 3, tokens.data(), embeddings.data(),
                               positions.data(), sequences.data(), wanted.data()};
        CHECK_EQUAL(core::outcome([&](char* error, size_t size) {
                        return assay_decode_rows(session.get(), &batch, nullptr, error, size);
                    }).error,
                    "");
        rows.push_back(session.logits(static_cast<uint32_t>(n - 1)));
        CHECK_BELOW(core::distance(rows.front(), rows.back()), kSame);
        CHECK_EQUAL(session.cells(0), static_cast<uint32_t>(n));
        const std::vector<uint8_t> state = session.save(0);
        CHECK_EQUAL(session.restore(0, state).error, "");
        CHECK(session.save(0) == state);
    }
}

void check_capture(const core::ModelHandle& model) {
    core::SessionHandle session(model, settings_of());
    CHECK_EQUAL(core::outcome([&](char* error, size_t size) {
                    return assay_capture_start(session.get(), "*", UINT64_MAX, error, size);
                }).error,
                "");
    session.extend(tokens_of(50));
    CHECK(assay_capture_count(session.get()) > 10);
    assay_captured captured{};
    captured.struct_size = sizeof captured;
    CHECK_EQUAL(assay_capture_get(session.get(), 0, &captured, nullptr, 0), static_cast<int>(ASSAY_OK));
    CHECK(captured.data != nullptr && captured.size_bytes > 0);
    CHECK(assay_capture_get(session.get(), 100000, &captured, nullptr, 0) != ASSAY_OK);
    assay_capture_stop(session.get());
    CHECK_EQUAL(assay_capture_count(session.get()), 0U);
    CHECK_CONTAINS(assay_session_info(session.get()), "route_reasons");
}

}  // namespace

int main(int argc, char** argv) {
    const std::filesystem::path models =
        std::filesystem::path(argc > 1 ? argv[1] : "tests/engine/golden").lexically_normal().parent_path() / "models";
    for (const char* name : {"tiny-a.gguf", "tiny-b.gguf"}) {
        const core::ModelHandle model((models / name).string());
        if (!model.load) {
            std::printf("core_qwen: %s\n", model.load.error.c_str());
            return 77;
        }
        check_cutting(model);
        check_sequences(model);
        check_failures(model);
        check_settings(model);
        check_drafts(model);
        check_image(model);
        check_capture(model);
    }
    return core::finish("core_qwen");
}
