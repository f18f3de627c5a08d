// Batches: however a conversation is cut into runs and wherever its cells lie, its queries get the same choice; a run
// whose rows do not stand in the cells is refused and changes nothing.
#include <array>
#include <stdexcept>

#include "qsa/suites/fixture.h"

namespace assay::qsa::suites {
namespace {

constexpr uint32_t kTokens = 150;
constexpr uint32_t kCells = 512;

enum class Layout { Contiguous, Wrapped, Fragmented };

uint32_t cell_of(Layout layout, uint32_t i) {
    switch (layout) {
        case Layout::Contiguous: return i;
        case Layout::Wrapped: return (kCells - 40 + i) % kCells;
        case Layout::Fragmented: break;
    }
    return (11 + 77 * i) % kCells;
}

// Text, an image of 3 x 3 after 60 tokens, text.
std::vector<Coordinates> conversation() {
    std::vector<Coordinates> at;
    for (int32_t t = 0; t < 60; ++t) at.push_back({t, t, t});
    for (int32_t y = 0; y < 3; ++y) {
        for (int32_t x = 0; x < 3; ++x) at.push_back({60, 60 + y, 60 + x});
    }
    for (int32_t t = 63; at.size() < kTokens; ++t) at.push_back({t, t, t});
    return at;
}

Case batch(Layout layout, uint32_t n_batch, bool has_others) {
    static constexpr const char* kNames[] = {"contiguous", "wrapped", "fragmented"};
    const std::string name = std::string(kNames[static_cast<size_t>(layout)]) + " cells, runs of " +
                             std::to_string(n_batch) + (has_others ? ", interleaved with another" : "");
    return run_case(name, [&](Case& into) {
        Stream stream(kCells);
        std::array<Tracker, 2> trackers{Tracker(0, kRatio), Tracker(1, kRatio)};
        const std::vector<Coordinates> at = conversation();
        uint32_t n_taken = 0;
        for (uint32_t begin = 0; begin < at.size(); begin += n_batch) {
            for (uint32_t sequence = 0; sequence < (has_others ? 2U : 1U); ++sequence) {
                std::vector<Row> rows;
                for (uint32_t i = begin; i < std::min<size_t>(begin + n_batch, at.size()); ++i) {
                    const uint32_t cell = cell_of(layout, n_taken++);
                    rows.push_back({cell, at[i], i >= 60 && i < 69});
                    stream.put(cell, at[i], {sequence});
                }
                Tracker& tracker = trackers[sequence];
                tracker.select(stream.cells(), rows);
                compare(into, stream, tracker, rows, false);
                // By rank the choice is the same in every layout and cut.
                for (uint32_t i = 0; i < rows.size(); ++i) {
                    const auto rank = static_cast<int32_t>(begin + i);
                    into.expect(tracker.selection().visible_cells[i] == rank + 1, "a query sees its rank");
                    into.expect(tracker.selection().visible_blocks[i] == (rank + 1) / static_cast<int32_t>(kRatio),
                                "and the complete blocks up to it");
                }
                tracker.computed();
            }
        }
    });
}

Case refusal(const char* name, const std::function<Row(Stream&)>& make_row) {
    return run_case(std::string("refused: ") + name, [&](Case& into) {
        Stream stream(kCells);
        Tracker tracker(0, kRatio);
        std::vector<Row> rows;
        for (uint32_t i = 0; i < 9; ++i) {
            rows.push_back(text(i, static_cast<int32_t>(i)));
            stream.put(i, rows.back().at, {0});
        }
        tracker.select(stream.cells(), rows);
        tracker.computed();
        const uint64_t n_runs = tracker.counters().runs[0];
        const Row bad = make_row(stream);
        bool was_refused = false;
        try {
            tracker.select(stream.cells(), {&bad, 1});
        } catch (const std::invalid_argument&) { was_refused = true; }
        into.expect(was_refused, "the run is refused");
        into.expect(tracker.counters().runs[0] == n_runs && tracker.selection().n_own == 9, "and changes nothing");
        if (!stream.is_free(100)) stream.leave(100, 1);
        const Row next = text(9, 9);
        stream.put(9, next.at, {0});
        tracker.select(stream.cells(), {&next, 1});
        compare(into, stream, tracker, {&next, 1}, false);
    });
}

}  // namespace

Suite allocation() {
    Suite suite{"allocation", {}, ""};
    for (Layout layout : {Layout::Contiguous, Layout::Wrapped, Layout::Fragmented}) {
        for (uint32_t n_batch : {1U, 7U, 32U, kTokens}) {
            for (bool has_others : {false, true}) suite.cases.push_back(batch(layout, n_batch, has_others));
        }
    }
    suite.cases.push_back(refusal("a free cell", [](Stream&) { return text(100, 9); }));
    suite.cases.push_back(refusal("a cell outside the stream", [](Stream&) { return text(kCells, 9); }));
    suite.cases.push_back(refusal("other coordinates", [](Stream& stream) {
        stream.put(100, text(100, 10).at, {1});
        return text(100, 9);
    }));
    suite.cases.push_back(refusal("another sequence's cell", [](Stream& stream) {
        stream.put(100, text(100, 9).at, {1});
        return text(100, 9);
    }));
    suite.cases.push_back(refusal("a negative position", [](Stream& stream) {
        stream.put(100, text(100, -1).at, {1});
        return text(100, -1);
    }));
    return suite;
}

}  // namespace assay::qsa::suites
