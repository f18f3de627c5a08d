// Conversations that share a stream: blocks keyed by position alone take the cells of another one.
#include "qsa/suites/fixture.h"

namespace assay::qsa::suites {
namespace {

struct Layout {
    uint32_t n_sequences;
    bool is_fragmented, has_shared_prefix, has_tails, is_mask_form;
    int32_t offset;
};

constexpr uint32_t kCells = 64;
constexpr uint32_t kShared = 8;  // tokens of the shared prefix, two blocks

std::string describe(const Layout& layout) {
    return std::to_string(layout.n_sequences) + " sequences, offset " + std::to_string(layout.offset) + ", " +
           flags({{"fragmented", layout.is_fragmented},
                  {"shared prefix", layout.has_shared_prefix},
                  {"tails", layout.has_tails},
                  {"block bias", layout.is_mask_form}});
}

// Lays the conversations out, then decodes one token of each and compares it and the whole prompt with the definition.
void check(Case& into, const Layout& layout, Policy policy) {
    Stream stream(kCells);
    uint32_t n_taken = 0;
    const auto take = [&] {
        // 27 and 64 have no common divisor: every cell once, neighbours far apart.
        return layout.is_fragmented ? (5 + 27 * n_taken++) % kCells : n_taken++;
    };
    const uint32_t n_shared = layout.has_shared_prefix ? kShared : 0;
    const uint32_t n_prompt = layout.has_tails ? 21 : 19;  // with the decoded token: 22 has a tail of two, 20 none
    std::vector<std::vector<Row>> rows(layout.n_sequences);
    const auto position = [&](uint32_t i) { return layout.offset + static_cast<int32_t>(i); };
    for (uint32_t i = 0; i < n_shared; ++i) {
        const uint32_t cell = take();
        stream.put(cell, text(cell, position(i)).at, {0});
        if (layout.n_sequences > 1) stream.join(cell, 1);
        for (auto& own : rows) own.push_back(text(cell, position(i)));
    }
    std::vector<Tracker> trackers;
    for (uint32_t sequence = 0; sequence < layout.n_sequences; ++sequence) {
        trackers.emplace_back(sequence, kRatio, policy);
        // Without another conversation the prefix was shared with one that has left.
        if (n_shared > 0) trackers.back().changed(Change::Copied);
        for (uint32_t i = n_shared; i < n_prompt; ++i) {
            const uint32_t cell = take();
            rows[sequence].push_back(text(cell, position(i)));
            stream.put(cell, rows[sequence].back().at, {sequence});
        }
    }
    for (uint32_t sequence = 0; sequence < layout.n_sequences; ++sequence) {
        Tracker& tracker = trackers[sequence];
        const std::span<const Row> prompt = std::span(rows[sequence]).subspan(n_shared);
        tracker.select(stream.cells(), prompt);
        compare(into, stream, tracker, prompt, layout.is_mask_form);
        tracker.computed();
    }
    for (uint32_t sequence = 0; sequence < layout.n_sequences; ++sequence) {
        const Row row = text(take(), position(n_prompt));
        stream.put(row.cell, row.at, {sequence});
        trackers[sequence].select(stream.cells(), {&row, 1});
        compare(into, stream, trackers[sequence], {&row, 1}, layout.is_mask_form);
        trackers[sequence].computed();
    }
}

Case check_both(const Layout& layout) {
    return run_case(describe(layout), [&](Case& into) {
        check(into, layout, Policy::Rank);
        check(into, layout, Policy::Bucket);
    });
}

}  // namespace

Suite reproducer() {
    Suite suite{"reproducer", {}, ""};
    for (uint32_t bits = 0; bits < 16; ++bits) {
        suite.cases.push_back(
            check_both({2, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, 0}));
    }
    return suite;
}

Suite mapping() {
    Suite suite{"mapping", {}, ""};
    for (uint32_t n_sequences : {1U, 2U}) {
        for (int32_t offset : {0, 3}) {
            for (uint32_t bits = 0; bits < 16; ++bits) {
                suite.cases.push_back(check_both(
                    {n_sequences, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, offset}));
            }
        }
    }
    return suite;
}

}  // namespace assay::qsa::suites
