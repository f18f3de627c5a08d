// The table of cases: which route a run takes, and why. Every case is compared with the definition as well.
#include "qsa/suites/fixture.h"

namespace assay::qsa::suites {
namespace {

struct Scene {
    explicit Scene(Policy policy, uint32_t n_cells = 512) : stream(n_cells), tracker(0, kRatio, policy) {}

    std::vector<Row> put(std::initializer_list<Row> rows) {
        for (const Row& row : rows) stream.put(row.cell, row.at, {0});
        return rows;
    }
    // n tokens from a position, in cells from first_cell; `step` apart.
    std::vector<Row> words(int32_t position, uint32_t n, uint32_t first_cell, uint32_t step = 1) {
        std::vector<Row> rows;
        for (uint32_t i = 0; i < n; ++i) {
            rows.push_back(text((first_cell + i * step) % stream.n_cells(), position + static_cast<int32_t>(i)));
            stream.put(rows.back().cell, rows.back().at, {0});
        }
        return rows;
    }
    // An image of 3 x 4 at a position, from row `from` to row `to`.
    std::vector<Row> image(int32_t p, uint32_t first_cell, int32_t from = 0, int32_t to = 3) {
        std::vector<Row> rows;
        for (int32_t y = from; y < to; ++y) {
            for (int32_t x = 0; x < 4; ++x) {
                rows.push_back({first_cell++, {p, p + y, p + x}, true});
                stream.put(rows.back().cell, rows.back().at, {0});
            }
        }
        return rows;
    }
    void another(uint32_t n, uint32_t first_cell) {
        for (uint32_t i = 0; i < n; ++i) {
            const uint32_t cell = first_cell + i;
            stream.put(cell, text(cell, static_cast<int32_t>(i)).at, {1});
        }
    }
    void share(uint32_t begin, uint32_t end) {
        for (uint32_t cell = begin; cell < end; ++cell) stream.join(cell, 1);
        tracker.changed(Change::Copied, INT32_MAX);
    }
    void run(const std::vector<Row>& rows) {
        tracker.select(stream.cells(), rows);
        tracker.computed();
    }

    Stream stream;
    Tracker tracker;
};

struct Entry {
    const char* name;
    Policy policy;
    Route route;
    Reason reason;
    std::vector<Row> (*play)(Scene&);  // returns the rows of the run that counts; they are not selected yet
};

constexpr Policy kRank = Policy::Rank;
constexpr Policy kBucket = Policy::Bucket;

std::vector<Row> first_text(Scene& scene) { return scene.words(0, 30, 0); }
std::vector<Row> after_image(Scene& scene) {
    scene.run(scene.words(0, 30, 0));
    scene.run(scene.image(30, 30));
    return scene.words(34, 9, 60);
}
std::vector<Row> image_rows(Scene& scene) {
    scene.run(scene.words(0, 30, 0));
    return scene.image(30, 30);
}
std::vector<Row> at_image(Scene& scene) {
    scene.run(scene.words(0, 30, 0));
    scene.run(scene.image(30, 30, 0, 2));
    return scene.image(30, 50, 2, 3);
}
std::vector<Row> mixed(Scene& scene) {
    std::vector<Row> rows = scene.words(0, 30, 0);
    for (const Row& row : scene.image(30, 30)) rows.push_back(row);
    for (const Row& row : scene.words(34, 5, 60)) rows.push_back(row);
    return rows;
}
std::vector<Row> spatial_token(Scene& scene) {
    scene.run(scene.words(0, 30, 0));
    return scene.put({{30, {30, 31, 32}}});
}
std::vector<Row> fourth_zero(Scene& scene) {
    scene.run(scene.words(0, 30, 0));
    std::vector<Row> rows = scene.words(30, 5, 30);
    for (Row& row : rows) row.fourth = 0;
    return rows;
}
std::vector<Row> fourth_equal(Scene& scene) {
    scene.run(scene.words(0, 30, 0));
    std::vector<Row> rows = scene.words(30, 5, 30);
    for (Row& row : rows) row.fourth = row.at.t;
    return rows;
}
std::vector<Row> several(Scene& scene) {
    scene.another(40, 100);
    scene.run(scene.words(0, 30, 0));
    return scene.words(30, 3, 30);
}
std::vector<Row> fragmented(Scene& scene) { return scene.words(0, 60, 17, 77); }
std::vector<Row> shared(Scene& scene) {
    scene.run(scene.words(0, 32, 0));
    scene.share(0, 32);
    return scene.words(32, 1, 40);
}
std::vector<Row> unshared(Scene& scene) {
    scene.run(shared(scene));
    for (uint32_t cell = 0; cell < 32; ++cell) scene.stream.leave(cell, 1);
    scene.tracker.changed(Change::Copied, INT32_MAX);
    return scene.words(33, 1, 41);
}
std::vector<Row> unshared_later(Scene& scene) {
    scene.run(unshared(scene));
    return scene.words(34, 1, 42);
}
std::vector<Row> holes(Scene& scene) {
    scene.run(scene.words(0, 30, 0));
    return scene.words(41, 5, 30);
}
std::vector<Row> holes_beside(Scene& scene) {
    scene.another(40, 100);
    return holes(scene);
}
std::vector<Row> gap(Scene& scene) {
    std::vector<Row> rows = scene.words(0, 30, 0);
    for (const Row& row : scene.words(37, 5, 30)) rows.push_back(row);
    return rows;
}
std::vector<Row> restored(Scene& scene) {
    scene.words(0, 30, 0);
    scene.tracker.changed(Change::Restored);
    return scene.words(30, 1, 30);
}
std::vector<Row> restored_later(Scene& scene) {
    scene.run(restored(scene));
    return scene.words(31, 1, 31);
}
std::vector<Row> removed(Scene& scene) {
    scene.run(scene.words(0, 30, 0));
    for (uint32_t cell = 8; cell < 12; ++cell) scene.stream.leave(cell, 0);
    scene.tracker.changed(Change::Removed, 8);
    return scene.words(30, 1, 30);
}
std::vector<Row> removed_later(Scene& scene) {
    scene.run(removed(scene));
    return scene.words(31, 1, 31);
}
std::vector<Row> rolled_back(Scene& scene) {
    scene.run(scene.words(0, 30, 0));
    for (uint32_t cell = 20; cell < 30; ++cell) scene.stream.leave(cell, 0);
    scene.tracker.truncate(20);
    return scene.words(20, 4, 40);
}
std::vector<Row> failed(Scene& scene) {
    scene.run(scene.words(0, 30, 0));
    scene.tracker.changed(Change::Failed);
    return scene.words(30, 1, 30);
}
std::vector<Row> out_of_order(Scene& scene) {
    scene.run(scene.words(10, 30, 0));
    return scene.words(2, 4, 40);
}
std::vector<Row> twins(Scene& scene) {
    scene.run(scene.words(0, 30, 0));
    return scene.words(29, 1, 40);
}
std::vector<Row> long_context(Scene& scene) {
    scene.run(scene.words(0, 30, 0));
    return scene.words(30, 513, 262400 - 513);
}
std::vector<Row> image_beside(Scene& scene) {
    scene.another(40, 100);
    return after_image(scene);
}
std::vector<Row> image_elsewhere(Scene& scene) {
    for (int32_t i = 0; i < 12; ++i) scene.stream.put(100 + static_cast<uint32_t>(i), {5, 5 + i / 4, 5 + i % 4}, {1});
    scene.run(scene.words(0, 30, 0));
    return scene.words(30, 3, 30);
}
std::vector<Row> split(Scene& scene) {
    scene.run(scene.words(0, 30, 0));
    scene.share(0, 30);
    return scene.words(30, 4, 40);
}

const Entry kTable[] = {
    {"text", kRank, Route::Guarded, Reason::Tracked, first_text},
    {"text after an image", kRank, Route::Guarded, Reason::Tracked, after_image},
    {"an image", kRank, Route::General, Reason::ImageRows, image_rows},
    {"a query at an image's position", kRank, Route::General, Reason::ImageRows, at_image},
    {"text and an image in one run", kRank, Route::General, Reason::ImageRows, mixed},
    {"a token with 2-D coordinates", kRank, Route::General, Reason::ImageRows, spatial_token},
    {"text as [p, p, p, 0]", kRank, Route::Guarded, Reason::Tracked, fourth_zero},
    {"text as [p, p, p, p]", kRank, Route::Guarded, Reason::Tracked, fourth_equal},
    {"text beside another sequence", kRank, Route::Guarded, Reason::Tracked, several},
    {"text after an image, beside another sequence", kRank, Route::Guarded, Reason::Tracked, image_beside},
    {"fragmented cells", kRank, Route::Guarded, Reason::Tracked, fragmented},
    {"cells shared with another sequence", kRank, Route::General, Reason::SharedCells, shared},
    {"cells no longer shared, first run", kRank, Route::General, Reason::Copied, unshared},
    {"cells no longer shared, later", kRank, Route::Guarded, Reason::Tracked, unshared_later},
    {"positions that skip an image (draft)", kRank, Route::Guarded, Reason::Tracked, holes},
    {"a gap inside the run", kRank, Route::General, Reason::GapInRun, gap},
    {"first run after a restore", kRank, Route::General, Reason::Restored, restored},
    {"later runs after a restore", kRank, Route::Guarded, Reason::Tracked, restored_later},
    {"first run after a removal in the middle", kRank, Route::General, Reason::Removed, removed},
    {"later runs after a removal in the middle", kRank, Route::Guarded, Reason::Tracked, removed_later},
    {"after a rollback", kRank, Route::Guarded, Reason::Tracked, rolled_back},
    {"first run after a failed one", kRank, Route::General, Reason::Failed, failed},
    {"rows before the end of the prefix", kRank, Route::General, Reason::OutOfOrder, out_of_order},
    {"two cells with the same coordinates", kRank, Route::General, Reason::EqualCoordinates, twins},
    {"513 queries in 262,400 cells", kRank, Route::Guarded, Reason::Tracked, long_context},
    {"text", kBucket, Route::Guarded, Reason::Tracked, first_text},
    {"text after an image", kBucket, Route::Guarded, Reason::Tracked, after_image},
    {"an image", kBucket, Route::Masked, Reason::QueryAtImage, image_rows},
    {"a query at an image's position", kBucket, Route::Masked, Reason::QueryAtImage, at_image},
    {"text and an image in one run", kBucket, Route::Masked, Reason::QueryAtImage, mixed},
    {"text as [p, p, p, 0]", kBucket, Route::Guarded, Reason::Tracked, fourth_zero},
    {"text beside another sequence", kBucket, Route::Guarded, Reason::Tracked, several},
    {"text after an image, beside another sequence", kBucket, Route::Masked, Reason::ImageBesideOthers, image_beside},
    {"text, another sequence has an image", kBucket, Route::Guarded, Reason::Tracked, image_elsewhere},
    {"positions that skip an image (draft)", kBucket, Route::Guarded, Reason::Tracked, holes},
    {"positions that skip an image, beside another sequence", kBucket, Route::General, Reason::NotAlone, holes_beside},
    {"whole blocks shared with another sequence", kBucket, Route::General, Reason::SharedCells, shared},
    {"a block shared in part", kBucket, Route::Masked, Reason::SplitBlock, split},
};

Case check(const Entry& entry) {
    return run_case(std::string(name(entry.policy)) + ": " + entry.name, [&](Case& into) {
        Scene scene(entry.policy, entry.play == long_context ? 262400 : 512);
        const std::vector<Row> rows = entry.play(scene);
        scene.tracker.reset_counters();
        scene.tracker.select(scene.stream.cells(), rows);
        const Selection& selection = scene.tracker.selection();
        const bool is_general_only = std::string_view(path()) == "general-only";
        const bool is_replaced = is_general_only && entry.route == Route::Guarded;
        const Route route = is_replaced ? Route::General : entry.route;
        const Reason reason = is_replaced ? Reason::GeneralOnly : entry.reason;
        into.expect(selection.route == route, std::string("the route is ") + name(selection.route));
        into.expect(selection.reason == reason, std::string("the reason is ") + name(selection.reason));
        const Counters& counters = scene.tracker.counters();
        into.expect(counters.runs[static_cast<size_t>(route)] == 1, "the route is counted");
        into.expect(counters.reasons[static_cast<size_t>(reason)] == 1, "and the reason");
        into.expect(counters.n_scans == (route == Route::Guarded ? 0 : 1), "and the scan");
        if (rows.size() < 500) {
            compare(into, scene.stream, scene.tracker, rows, false);
            compare(into, scene.stream, scene.tracker, rows, true);
        }
    });
}

}  // namespace

Suite routes() {
    Suite suite{"routes", {}, ""};
    for (const Entry& entry : kTable) suite.cases.push_back(check(entry));
    return suite;
}

std::vector<RouteLine> route_table() {
    std::vector<RouteLine> lines;
    for (const Entry& entry : kTable) {
        lines.push_back({name(entry.policy), entry.name, name(entry.route), name(entry.reason)});
    }
    return lines;
}

}  // namespace assay::qsa::suites
