// Sequences in a session: however the tokens are cut, placed or edited, the logits are those of the sequence.
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "core_check.h"
#include "core_engine.h"
#include "core_tiny_model.h"

namespace {

// Weights and rows in single precision: ways of computing the same thing differ by summation order only.
constexpr double kSame = 1e-4;

using Entry = core::SessionHandle::Entry;

class Fixture {
public:
    Fixture() {
        core::TinyModel({}).write(file_.path());
        model = std::make_unique<core::ModelHandle>(file_.path());
        CHECK_EQUAL(model->load.error, "");
    }
    std::unique_ptr<core::ModelHandle> model;

private:
    core::TemporaryFile file_;
};

// Logits of the last of `tokens`, computed alone in a fresh session.
std::vector<float> alone(const core::ModelHandle& model, const std::vector<int32_t>& tokens) {
    core::SessionHandle session(model, core::small_settings());
    CHECK_EQUAL(session.extend(tokens).error, "");
    return session.logits(static_cast<uint32_t>(tokens.size() - 1));
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

void check_cutting(const core::ModelHandle& model) {
    const std::vector<int32_t> tokens = core::some_tokens(80);
    for (const bool flash : {true, false}) {
        assay_session_settings settings = core::small_settings();
        settings.flash_attention = flash;
        settings.n_ubatch = 80;
        core::SessionHandle whole(model, settings);
        CHECK_EQUAL(whole.extend(tokens).error, "");
        for (const uint32_t n_ubatch : {1U, 7U, 64U}) {
            settings.n_ubatch = n_ubatch;
            core::SessionHandle cut(model, settings);
            CHECK_EQUAL(cut.extend(tokens).error, "");
            for (uint32_t i = 0; i < tokens.size(); ++i)
                CHECK_BELOW(core::distance(whole.logits(i), cut.logits(i)), kSame);
            CHECK_EQUAL(cut.work().n_graphs, (tokens.size() + n_ubatch - 1) / n_ubatch);
        }
        core::SessionHandle single(model, settings);
        for (uint32_t i = 0; i < tokens.size(); ++i) {
            CHECK_EQUAL(single.extend({tokens[i]}).error, "");
            CHECK_BELOW(core::distance(whole.logits(i), single.logits(0)), kSame);
        }
    }
}

void check_logits_on_request(const core::ModelHandle& model) {
    core::SessionHandle all(model, core::small_settings());
    core::SessionHandle some(model, core::small_settings());
    const std::vector<int32_t> tokens = core::some_tokens(12);
    all.extend(tokens);
    std::vector<Entry> entries;
    for (int32_t i = 0; i < 12; ++i) entries.push_back({tokens[static_cast<size_t>(i)], i, 0, i == 3 || i == 10});
    CHECK_EQUAL(some.decode(entries).error, "");
    for (uint32_t i = 0; i < 12; ++i) {
        if (i == 3 || i == 10)
            CHECK_BELOW(core::distance(all.logits(i), some.logits(i)), kSame);
        else
            CHECK(assay_logits(some.get(), i) == nullptr);
    }
    CHECK(assay_logits(some.get(), 12) == nullptr);
    // Without any logits the cache is still complete.
    for (Entry& entry : entries) entry.wants_logits = false;
    core::SessionHandle none(model, core::small_settings());
    CHECK_EQUAL(none.decode(entries).error, "");
    CHECK(assay_logits(none.get(), 11) == nullptr);
    none.extend({5});
    all.extend({5});
    CHECK_BELOW(core::distance(all.logits(0), none.logits(0)), kSame);
    CHECK(none.work().n_flops < all.work().n_flops);
}

// Several sequences of different lengths in mixed batches, split and unified, against each alone.
void check_streams(const core::ModelHandle& model) {
    for (const bool flash : {true, false}) {
        for (const bool is_unified : {false, true}) {
            assay_session_settings settings = core::small_settings();
            settings.n_seq = 4;
            settings.n_ctx = is_unified ? 300 : 96;
            settings.kv_unified = is_unified;
            settings.flash_attention = flash;
            core::SessionHandle session(model, settings);
            std::map<int32_t, std::vector<int32_t>> texts;
            const auto add = [&](const std::vector<std::pair<int32_t, int32_t>>& lengths) {
                std::vector<Entry> entries;
                // Interleaved, so that grouping by stream has something to do.
                for (int32_t round = 0;; ++round) {
                    const size_t before = entries.size();
                    for (const auto& [sequence, n] : lengths) {
                        if (round >= n) continue;
                        const int32_t position = static_cast<int32_t>(texts[sequence].size());
                        const int32_t token = (position * 13 + sequence * 57 + 3) % 256;
                        texts[sequence].push_back(token);
                        entries.push_back({token, position, sequence});
                    }
                    if (entries.size() == before) break;
                }
                CHECK_EQUAL(session.decode(entries).error, "");
                std::map<int32_t, uint32_t> last;
                for (uint32_t i = 0; i < entries.size(); ++i) last[entries[i].sequence] = i;
                for (const auto& [sequence, i] : last)
                    CHECK_BELOW(core::distance(alone(model, texts[sequence]), session.logits(i)), kSame);
            };
            add({{2, 9}});
            add({{0, 5}, {1, 5}, {3, 70}});
            add({{0, 1}, {1, 1}, {2, 1}, {3, 1}});
            add({{0, 1}, {3, 1}, {1, 4}});
            add({{3, 2}, {0, 17}});
            for (int32_t sequence = 0; sequence < 4; ++sequence) {
                CHECK_EQUAL(session.last(sequence), static_cast<int32_t>(texts[sequence].size()) - 1);
                CHECK_EQUAL(session.cells(sequence), texts[sequence].size());
            }
        }
    }
}

void check_remove_copy_keep(const core::ModelHandle& model) {
    const std::vector<int32_t> prefix = core::some_tokens(20, 1);
    for (const bool is_unified : {false, true}) {
        assay_session_settings settings = core::small_settings();
        settings.n_seq = 3;
        settings.kv_unified = is_unified;
        core::SessionHandle session(model, settings);
        CHECK_EQUAL(session.extend(prefix, 0).error, "");
        CHECK_EQUAL(session.copy(0, 2).error, "");
        CHECK_EQUAL(session.copy(0, 1, 0, 15).error, "");
        CHECK_EQUAL(session.last(2), 19);
        CHECK_EQUAL(session.cells(1), 15U);
        CHECK_EQUAL(session.copy(0, 2).status, static_cast<int>(ASSAY_INVALID));
        // Three continuations that do not see each other.
        const std::vector<int32_t> head(prefix.begin(), prefix.begin() + 15);
        session.extend({7, 8}, 0);
        CHECK_BELOW(core::distance(alone(model, joined(prefix, {7, 8})), session.logits(1)), kSame);
        session.extend({9}, 2);
        CHECK_BELOW(core::distance(alone(model, joined(prefix, {9})), session.logits(0)), kSame);
        session.extend({10, 11, 12}, 1);
        CHECK_BELOW(core::distance(alone(model, joined(head, {10, 11, 12})), session.logits(2)), kSame);
        // Trimming a tail and going on with another.
        CHECK_EQUAL(session.remove(0, 18, -1).error, "");
        CHECK_EQUAL(session.last(0), 17);
        session.extend({99}, 0);
        CHECK_BELOW(
            core::distance(alone(model, joined({prefix.begin(), prefix.begin() + 18}, {99})), session.logits(0)),
            kSame);
        // The others still have their tokens.
        session.extend({13}, 2);
        CHECK_BELOW(core::distance(alone(model, joined(prefix, {9, 13})), session.logits(0)), kSame);
        CHECK_EQUAL(session.keep(2).error, "");
        CHECK_EQUAL(session.last(0), -1);
        CHECK_EQUAL(session.cells(1), 0U);
        CHECK_EQUAL(session.cells(2), 22U);
        session.extend({14}, 2);
        CHECK_BELOW(core::distance(alone(model, joined(prefix, {9, 13, 14})), session.logits(0)), kSame);
        // Freed cells are used again, in the middle of others.
        session.extend(core::some_tokens(30, 5), 0);
        CHECK_BELOW(core::distance(alone(model, core::some_tokens(30, 5)), session.logits(29)), kSame);
    }
}

// Random edits of a split and a unified session side by side, against a plain model of who has which tokens.
void check_random_edits(const core::ModelHandle& model) {
    assay_session_settings settings = core::small_settings();
    settings.n_seq = 3;
    core::SessionHandle split(model, settings);
    settings.kv_unified = true;
    settings.n_ctx = 3 * 96;
    core::SessionHandle unified(model, settings);
    std::vector<std::vector<int32_t>> texts(3);
    uint32_t state = 42;
    const auto random = [&](uint32_t n) {
        state = state * 1664525U + 1013904223U;
        return (state >> 8) % n;
    };
    for (int step = 0; step < 150; ++step) {
        const auto sequence = static_cast<int32_t>(random(3));
        std::vector<int32_t>& text = texts[static_cast<size_t>(sequence)];
        const uint32_t kind = random(10);
        if (kind < 6) {
            const std::vector<int32_t> more = core::some_tokens(1 + random(kind < 3 ? 1 : 12), random(1000));
            if (text.size() + more.size() > 90) continue;
            text = joined(text, more);
            for (core::SessionHandle* session : {&split, &unified}) {
                CHECK_EQUAL(session->extend(more, sequence).error, "");
                CHECK_BELOW(core::distance(alone(model, text), session->logits(static_cast<uint32_t>(more.size() - 1))),
                            kSame);
            }
        } else if (kind < 8) {
            const auto keep = static_cast<int32_t>(random(static_cast<uint32_t>(text.size()) + 1));
            text.resize(static_cast<size_t>(keep));
            for (core::SessionHandle* session : {&split, &unified})
                CHECK_EQUAL(session->remove(sequence, keep, -1).error, "");
        } else if (kind == 8) {
            const auto target = static_cast<int32_t>((static_cast<uint32_t>(sequence) + 1 + random(2)) % 3);
            for (core::SessionHandle* session : {&split, &unified}) {
                CHECK_EQUAL(session->remove(target, 0, -1).error, "");
                CHECK_EQUAL(session->copy(sequence, target).error, "");
            }
            texts[static_cast<size_t>(target)] = text;
        } else {
            for (core::SessionHandle* session : {&split, &unified}) {
                const std::vector<uint8_t> saved = session->save(sequence);
                CHECK_EQUAL(session->restore(sequence, saved).error, "");
                CHECK(session->save(sequence) == saved);
            }
        }
        for (int32_t i = 0; i < 3; ++i) {
            for (core::SessionHandle* session : {&split, &unified}) {
                CHECK_EQUAL(session->cells(i), texts[static_cast<size_t>(i)].size());
                CHECK_EQUAL(session->last(i), static_cast<int32_t>(texts[static_cast<size_t>(i)].size()) - 1);
            }
        }
    }
}

void check_shift(const core::ModelHandle& model) {
    const std::vector<int32_t> tokens = core::some_tokens(20, 3);
    for (const int32_t kv : {ASSAY_KV_F32, ASSAY_KV_F16, ASSAY_KV_Q8_0}) {
        const double limit = kv == ASSAY_KV_F32 ? 2e-4 : kv == ASSAY_KV_F16 ? 0.02 : 0.1;
        assay_session_settings settings = core::small_settings();
        settings.kv_type = kv;
        settings.n_ubatch = 8;  // more rows than one shift graph takes
        core::SessionHandle still(model, settings);
        core::SessionHandle moved(model, settings);
        still.extend(tokens);
        moved.extend(tokens);
        // Attention depends on differences of positions only: moving everything changes nothing.
        CHECK_EQUAL(moved.shift(0, 0, -1, 31).error, "");
        CHECK_EQUAL(moved.last(0), 50);
        still.extend({77});
        moved.extend({77});
        CHECK_BELOW(core::distance(still.logits(0), moved.logits(0)), limit);
        CHECK_EQUAL(moved.shift(0, 0, -1, -31).error, "");
        CHECK_EQUAL(moved.last(0), 20);
        still.extend({78});
        moved.extend({78});
        CHECK_BELOW(core::distance(still.logits(0), moved.logits(0)), limit);
        // Moving only the tail does change something: the check above could fail.
        core::SessionHandle apart(model, settings);
        apart.extend(tokens);
        CHECK_EQUAL(apart.shift(0, 10, -1, 40).error, "");
        core::SessionHandle near(model, settings);
        near.extend(tokens);
        apart.extend({77});
        near.extend({77});
        CHECK(core::distance(near.logits(0), apart.logits(0)) > 10 * limit);
        // Closing a gap: positions follow, order stays.
        CHECK_EQUAL(near.remove(0, 4, 9).error, "");
        CHECK_EQUAL(near.shift(0, 9, -1, -5).error, "");
        CHECK_EQUAL(near.last(0), 15);
        CHECK_EQUAL(near.cells(0), 16U);
        CHECK_EQUAL(near.extend({79}).error, "");
        // Onto positions that stay, below zero: refused, nothing moved.
        CHECK_EQUAL(near.shift(0, 10, -1, -3).status, static_cast<int>(ASSAY_INVALID));
        CHECK_EQUAL(near.shift(0, 0, -1, -1).status, static_cast<int>(ASSAY_INVALID));
        CHECK_EQUAL(near.last(0), 16);
    }
    assay_session_settings settings = core::small_settings();
    settings.n_seq = 2;
    settings.kv_unified = true;
    core::SessionHandle shared(model, settings);
    shared.extend(tokens);
    shared.copy(0, 1);
    CHECK_EQUAL(shared.shift(0, 0, -1, 1).status, static_cast<int>(ASSAY_UNSUPPORTED));
}

void check_errors(const core::ModelHandle& model) {
    assay_session_settings settings = core::small_settings();
    settings.n_ctx = 10;
    settings.n_seq = 2;
    settings.n_ubatch = 4;
    core::SessionHandle session(model, settings);
    session.extend({1, 2, 3});
    const auto status = [&](const std::vector<Entry>& entries) { return session.decode(entries).status; };
    CHECK_EQUAL(status({}), static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(status({{-1, 3, 0}}), static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(status({{288, 3, 0}}), static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(status({{1, 3, 2}}), static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(status({{1, 3, -1}}), static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(status({{1, 2, 0}}), static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(status({{1, 4, 0}}), static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(status({{1, -1, 1}}), static_cast<int>(ASSAY_INVALID));
    CHECK_CONTAINS(session.decode({{1, 3, 0}, {1, 3, 0}}).error,
                   "entry 1 of the batch: position 3 of sequence 0, 4 is next");
    CHECK_EQUAL(session.last(0), 2);
    // Full: all or nothing, over several ubatches.
    std::vector<Entry> many;
    for (int32_t i = 0; i < 8; ++i) many.push_back({5, 3 + i, 0});
    const core::Outcome full = session.decode(many);
    CHECK_EQUAL(full.status, static_cast<int>(ASSAY_FULL));
    CHECK_CONTAINS(full.error, "needs 8 cells");
    CHECK_EQUAL(session.cells(0), 3U);
    CHECK(assay_logits(session.get(), 0) == nullptr);
    many.pop_back();
    CHECK_EQUAL(session.decode(many).error, "");
    CHECK_EQUAL(session.cells(0), 10U);
    // Cancelled: the added cells are gone and the session goes on.
    const volatile int raised = 1;
    CHECK_EQUAL(session.decode({{1, 0, 1}, {2, 1, 1}}, &raised).status, static_cast<int>(ASSAY_CANCELLED));
    CHECK_EQUAL(session.cells(1), 0U);
    CHECK_EQUAL(session.decode({{1, 0, 1}, {2, 1, 1}}).error, "");
    CHECK_BELOW(core::distance(alone(model, {1, 2}), session.logits(1)), kSame);

    CHECK_EQUAL(session.remove(2, 0, -1).status, static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(session.remove(0, 5, 2).status, static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(session.copy(0, 7).status, static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(session.keep(-1).status, static_cast<int>(ASSAY_INVALID));
    CHECK_EQUAL(session.last(9), -1);
    CHECK_EQUAL(assay_decode(nullptr, nullptr, nullptr, nullptr, 0), static_cast<int>(ASSAY_INVALID));

    const auto refused = [&](const std::function<void(assay_session_settings&)>& change, int needed) {
        assay_session_settings wrong = core::small_settings();
        change(wrong);
        core::SessionHandle bad(model, wrong);
        CHECK_EQUAL(bad.made.status, needed);
        CHECK(!bad.made.error.empty() && bad.get() == nullptr);
    };
    refused([](assay_session_settings& s) { s.n_ctx = 0; }, ASSAY_INVALID);
    refused([](assay_session_settings& s) { s.n_seq = 0; }, ASSAY_INVALID);
    refused([](assay_session_settings& s) { s.n_seq = 257; }, ASSAY_INVALID);
    refused([](assay_session_settings& s) { s.n_ubatch = 0; }, ASSAY_INVALID);
    refused([](assay_session_settings& s) { s.n_threads = 0; }, ASSAY_INVALID);
    refused([](assay_session_settings& s) { s.n_threads_batch = 513; }, ASSAY_INVALID);
    refused([](assay_session_settings& s) { s.kv_type = 3; }, ASSAY_INVALID);
    refused([](assay_session_settings& s) { s.struct_size = 1000; }, ASSAY_INVALID);
    refused(
        [](assay_session_settings& s) {
            s.kv_type = ASSAY_KV_Q8_0;
            s.flash_attention = false;
        },
        ASSAY_UNSUPPORTED);
}

// A flag that is raised while the graph runs: whatever the timing, the call is all or nothing.
void check_cancel_during_decode(const core::ModelHandle& model) {
    assay_session_settings settings = core::small_settings();
    settings.n_ctx = 512;
    settings.n_ubatch = 100;
    core::SessionHandle session(model, settings);
    std::vector<Entry> entries;
    for (int32_t i = 0; i < 500; ++i) entries.push_back({i % 256, i, 0});
    int n_cancelled = 0;
    for (int round = 0; round < 8; ++round) {
        volatile int flag = 0;
        std::thread raise([&] {
            std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
            flag = 1;
        });
        const core::Outcome result = session.decode(entries, &flag);
        raise.join();
        if (result.status == ASSAY_CANCELLED) {
            ++n_cancelled;
            CHECK_EQUAL(session.cells(0), 0U);
        } else {
            CHECK_EQUAL(result.error, "");
            CHECK_EQUAL(session.cells(0), 500U);
            session.remove(0, 0, -1);
        }
    }
    // The first round raises the flag at once, in a decode of five graphs.
    CHECK(n_cancelled > 0);
    session.extend({1, 2});
    CHECK_BELOW(core::distance(alone(model, {1, 2}), session.logits(1)), kSame);
}

void check_work(const core::ModelHandle& model) {
    assay_session_settings settings = core::small_settings();
    settings.n_ubatch = 32;
    const auto run = [&](core::SessionHandle& session) {
        session.extend(core::some_tokens(40));
        for (int32_t i = 0; i < 20; ++i) session.extend({i});
        return session.work();
    };
    core::SessionHandle first(model, settings);
    core::SessionHandle second(model, settings);
    const assay_work a = run(first);
    const assay_work b = run(second);
    CHECK_EQUAL(std::memcmp(&a, &b, sizeof a), 0);
    CHECK_EQUAL(a.n_decode_calls, 21U);
    CHECK_EQUAL(a.n_graphs, 22U);
    CHECK_EQUAL(a.n_tokens_evaluated, 60U);
    CHECK(a.n_allocations > 0 && a.n_cells_visited > 0 && a.n_mapping_steps > 0);
    // Generation keeps its graph: 41 to 60 cells fit into one view.
    CHECK_EQUAL(a.n_graph_reuses, 19U);
    // A second round is the same work without the allocations.
    assay_work_reset(first.get());
    first.remove(0, 0, -1);
    const assay_work again = run(first);
    CHECK_EQUAL(again.n_flops, a.n_flops);
    CHECK_EQUAL(again.n_weight_bytes_read, a.n_weight_bytes_read);
    CHECK_EQUAL(again.n_allocations, 0U);

    // One generation step by hand: products and attention over the 64 viewed cells.
    core::SessionHandle step(model, settings);
    step.extend({1});
    assay_work_reset(step.get());
    step.extend({2});
    const core::TinyShape s;
    const auto n = [](int64_t value) { return static_cast<uint64_t>(value); };
    const uint64_t kv = n(s.n_head_kv * s.n_head_size());
    const uint64_t layer = n(s.n_embd * s.n_embd * 2 + s.n_embd * s.n_ff * 3) + 2 * n(s.n_embd) * kv;
    const uint64_t attention = n(s.n_head) * 64 * n(s.n_head_size()) * 2;
    CHECK_EQUAL(step.work().n_flops, 2 * (n(s.n_layer) * (layer + attention) + n(s.n_embd * s.n_vocab)));
    // Every weight once, and one row of the embedding more.
    const uint64_t norms = n(s.n_embd * (2 * s.n_layer + 1));
    CHECK_EQUAL(step.work().n_weight_bytes_read,
                4 * (n(s.n_layer) * layer + n(s.n_embd * s.n_vocab) + norms + n(s.n_embd)));
}

void check_fill(const core::ModelHandle& model) {
    for (const bool is_unified : {false, true}) {
        assay_session_settings settings = core::small_settings();
        settings.n_seq = 2;
        settings.kv_unified = is_unified;
        core::SessionHandle session(model, settings);
        session.extend(core::some_tokens(30), 1);  // rows that are not zero
        CHECK_EQUAL(session.remove(1, 0, -1).error, "");
        CHECK_EQUAL(session.fill(1, 30).error, "");
        CHECK_EQUAL(session.last(1), 29);
        CHECK_EQUAL(session.work().n_tokens_evaluated, 30U);
        CHECK_EQUAL(session.fill(1, 1).status, static_cast<int>(ASSAY_INVALID));
        CHECK_EQUAL(session.fill(0, 97).status, static_cast<int>(ASSAY_FULL));
        CHECK_EQUAL(session.extend({3}, 1).error, "");
        const std::vector<float> filled = session.logits(0);
        // Zero rows wherever they lie give the same result.
        core::SessionHandle fresh(model, settings);
        CHECK_EQUAL(fresh.fill(0, 30).error, "");
        fresh.extend({3}, 0);
        CHECK_BELOW(core::distance(filled, fresh.logits(0)), kSame);
    }
}

}  // namespace

int main() {
    const Fixture fixture;
    const core::ModelHandle& model = *fixture.model;
    if (!model.load) return 1;
    check_cutting(model);
    check_logits_on_request(model);
    check_streams(model);
    check_remove_copy_keep(model);
    check_random_edits(model);
    check_shift(model);
    check_errors(model);
    check_cancel_during_decode(model);
    check_work(model);
    check_fill(model);
    return core::finish("core_session");
}
