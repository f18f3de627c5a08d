// What a tracker makes of cells that changed without it: restored, copied, removed, given back.
#include "qsa/suites/fixture.h"

namespace assay::qsa::suites {
namespace {

constexpr uint32_t kCells = 64;

// A token, an image of 2 x 2, two tokens: seven cells, and the next position is 5.
const std::vector<Coordinates> kSpatial = {{0, 0, 0}, {1, 1, 1}, {1, 1, 2}, {1, 2, 1}, {1, 2, 2}, {3, 3, 3}, {4, 4, 4}};

// The cell that gets the i-th of a sequence's coordinates: backwards, so that cell order is no rank order.
uint32_t backwards(uint32_t i) { return kCells - 1 - 3 * i; }

struct Bench {
    explicit Bench(Policy policy = Policy::Rank) : stream(kCells), stamps(kCells), tracker(0, kRatio, policy) {}

    // Takes cells for rows that are written now.
    std::vector<Row> put(std::span<const Coordinates> at, const std::function<uint32_t(uint32_t)>& cell_of) {
        std::vector<Row> rows;
        for (uint32_t i = 0; i < at.size(); ++i) {
            const uint32_t cell = cell_of(i);
            stream.put(cell, at[i], {0});
            stamps[cell] = ++clock;
            rows.push_back({cell, at[i], at[i].t != at[i].y || at[i].t != at[i].x});
        }
        return rows;
    }
    std::vector<Row> put_text(uint32_t first_cell, int32_t position, uint32_t n) {
        std::vector<Coordinates> at;
        for (uint32_t i = 0; i < n; ++i) at.push_back(text(0, position + static_cast<int32_t>(i)).at);
        return put(at, [&](uint32_t i) { return first_cell + i; });
    }
    void run(Case& into, std::span<const Row> rows) {
        tracker.select(stream.cells(), rows);
        compare(into, stream, tracker, rows, false);
        compare(into, stream, tracker, rows, true);
        held.write(tracker.selection(), stamps);
        held.check(into, tracker.selection(), stamps);
        tracker.computed();
        into.expect(!tracker.is_tracked() || tracker.equals_rebuilt(stream.cells()), "the prefix equals one rebuilt");
    }

    Stream stream;
    std::vector<uint64_t> stamps;
    uint64_t clock = 0;
    Tracker tracker;
    Held held;
};

Case restore(bool is_unified) {
    return run_case(std::string("spatial restore, ") + (is_unified ? "unified" : "split"), [&](Case& into) {
        Bench source, target;
        std::vector<Row> rows = source.put(kSpatial, [](uint32_t i) { return 2 * i; });
        source.run(into, rows);
        // Split: a stream of its own. Unified: another conversation stands in the first cells.
        if (is_unified) {
            for (int32_t t = 0; t < 9; ++t) target.stream.put(static_cast<uint32_t>(t), text(0, t).at, {1});
        }
        std::vector<Coordinates> saved;
        for (uint32_t cell : source.stream.own(0)) saved.push_back(source.stream.at(cell));
        target.put(saved, backwards);
        target.tracker.changed(Change::Restored);
        into.expect(target.stream.own(0).size() == 7, "seven cells are restored");
        for (size_t rank = 0; rank < kSpatial.size(); ++rank) {
            into.expect(target.stream.at(target.stream.own(0)[rank]) == kSpatial[rank], "with their coordinates");
            into.expect(source.stream.at(source.stream.own(0)[rank]) == kSpatial[rank], "and the source is untouched");
        }
        const std::vector<Row> next = source.put_text(40, 5, 1);
        source.run(into, next);
        const std::vector<Row> restored_next = target.put_text(30, 5, 1);
        target.run(into, restored_next);
        const Selection& a = source.tracker.selection();
        const Selection& b = target.tracker.selection();
        into.expect(a.n_blocks == 2 && b.n_blocks == 2, "eight cells are two blocks");
        for (uint32_t block = 0; block < a.n_blocks && block < b.n_blocks; ++block) {
            into.expect(a.block_at[block] == b.block_at[block], "with the rope positions that they had");
            for (uint32_t i = 0; i < kRatio; ++i) {
                into.expect(source.stream.at(a.block_cells[block * kRatio + i]) ==
                                target.stream.at(b.block_cells[block * kRatio + i]),
                            "and members of the same coordinates");
            }
        }
        into.expect(b.first_stale_block == 0, "every pooled key of a restored sequence is made anew");
        into.expect(target.tracker.is_tracked(), "and the prefix is tracked again after one scan");
    });
}

Case change(const char* name, Policy policy, const std::function<void(Case&, Bench&)>& body) {
    return run_case(std::string(name) + ", " + assay::qsa::name(policy), [&](Case& into) {
        Bench bench(policy);
        bench.run(into, bench.put_text(0, 0, 18));
        body(into, bench);
    });
}

}  // namespace

Suite state() {
    Suite suite{"state", {}, ""};
    suite.cases.push_back(restore(false));
    suite.cases.push_back(restore(true));
    for (Policy policy : {Policy::Rank, Policy::Bucket}) {
        suite.cases.push_back(change("copied away and changed apart", policy, [](Case& into, Bench& bench) {
            for (uint32_t cell = 0; cell < 18; ++cell) bench.stream.join(cell, 1);
            bench.tracker.changed(Change::Copied, INT32_MAX);
            bench.run(into, bench.put_text(18, 18, 1));
            into.expect(bench.tracker.selection().reason != Reason::Tracked, "shared cells are scanned");
            for (uint32_t cell = 0; cell < 18; ++cell) bench.stream.leave(cell, 1);
            bench.tracker.changed(Change::Copied, INT32_MAX);
            bench.run(into, bench.put_text(19, 19, 1));
            bench.run(into, bench.put_text(20, 20, 3));
            into.expect(bench.tracker.selection().route != Route::Masked, "and not for ever");
        }));
        suite.cases.push_back(change("a middle part removed", policy, [](Case& into, Bench& bench) {
            for (uint32_t cell = 5; cell < 8; ++cell) bench.stream.leave(cell, 0);
            bench.tracker.changed(Change::Removed, 5);
            bench.run(into, bench.put_text(18, 18, 4));
            bench.run(into, bench.put_text(30, 22, 1));
        }));
        suite.cases.push_back(change("a failed run given back", policy, [](Case& into, Bench& bench) {
            const std::vector<Row> rows = bench.put_text(18, 18, 5);
            bench.tracker.select(bench.stream.cells(), rows);
            for (const Row& row : rows) bench.stream.leave(row.cell, 0);
            bench.tracker.truncate(18);
            bench.run(into, bench.put_text(40, 18, 6));
        }));
        suite.cases.push_back(change("a failed run repeated in its cells", policy, [](Case& into, Bench& bench) {
            const std::vector<Row> rows = bench.put_text(18, 18, 5);
            bench.tracker.select(bench.stream.cells(), rows);
            for (const Row& row : rows) bench.stamps[row.cell] = ++bench.clock;
            bench.run(into, rows);
        }));
        suite.cases.push_back(change("everything removed and begun again", policy, [](Case& into, Bench& bench) {
            for (uint32_t cell = 0; cell < 18; ++cell) bench.stream.leave(cell, 0);
            bench.tracker.truncate(0);
            bench.run(into, bench.put_text(7, 0, 9));
        }));
    }
    return suite;
}

Suite prefix() {
    Suite suite{"prefix", {}, ""};
    for (Policy policy : {Policy::Rank, Policy::Bucket}) {
        for (int32_t depth = 1; depth <= 9; ++depth) {
            suite.cases.push_back(change(("rolled back by " + std::to_string(depth)).c_str(), policy,
                                         [depth](Case& into, Bench& bench) {
                                             const int32_t t = 18 - depth;
                                             for (int32_t cell = t; cell < 18; ++cell) {
                                                 bench.stream.leave(static_cast<uint32_t>(cell), 0);
                                             }
                                             bench.tracker.truncate(t);
                                             bench.run(into, bench.put_text(20, t, 1));
                                             bench.run(into, bench.put_text(30, t + 1, 12));
                                             into.expect(bench.tracker.counters().n_scans == 0 ||
                                                             std::string_view(path()) != "guarded",
                                                         "a rollback needs no scan");
                                         }));
        }
        suite.cases.push_back(change("through an image and past it", policy, [](Case& into, Bench& bench) {
            std::vector<Coordinates> image;
            for (int32_t y = 0; y < 3; ++y) {
                for (int32_t x = 0; x < 4; ++x) image.push_back({18, 18 + y, 18 + x});
            }
            const std::span<const Coordinates> whole(image);
            // The second half lands in lower cells than the first.
            bench.run(into, bench.put(whole.first(6), [](uint32_t i) { return 40 + i; }));
            bench.run(into, bench.put(whole.subspan(6), [](uint32_t i) { return 25 + i; }));
            bench.run(into, bench.put_text(50, 22, 3));
            into.expect(bench.tracker.is_tracked(), "the prefix holds the image");
        }));
        suite.cases.push_back(change("through holes", policy, [](Case& into, Bench& bench) {
            bench.run(into, bench.put_text(20, 31, 3));
            bench.run(into, bench.put_text(24, 50, 7));
            into.expect(bench.tracker.is_tracked(), "the prefix has holes");
        }));
        suite.cases.push_back(change("an insertion inside an image", policy, [](Case& into, Bench& bench) {
            const std::vector<Coordinates> outer = {{18, 18, 18}, {18, 20, 18}};
            const std::vector<Coordinates> inner = {{18, 19, 18}, {18, 19, 19}};
            bench.run(into, bench.put(outer, [](uint32_t i) { return 20 + i; }));
            bench.run(into, bench.put_text(24, 21, 5));
            bench.run(into, bench.put(inner, [](uint32_t i) { return 40 + i; }));
            bench.run(into, bench.put_text(50, 26, 2));
        }));
    }
    return suite;
}

}  // namespace assay::qsa::suites
