// The guarded path and the scan give the same bytes, over a grid of shapes; the receipt has a digest of all of them.
#include <array>
#include <cstring>

#include "qsa/suites/fixture.h"

namespace assay::qsa::suites {
namespace {

enum class Beside { Nobody, Another, AnotherFragmented };

// FNV-1a over the inputs, so that two builds can be compared case by case.
struct Digest {
    uint64_t value = 0xcbf29ce484222325ULL;

    template <class T>
    void add(std::span<const T> data) {
        const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
        for (size_t i = 0; i < data.size_bytes(); ++i) value = (value ^ bytes[i]) * 0x100000001b3ULL;
    }
};

uint64_t digest(Tracker& tracker, bool is_mask_form) {
    const Selection& selection = tracker.selection();
    Digest out;
    out.add(selection.own_cells);
    out.add(selection.block_cells);
    out.add(selection.block_at);
    if (is_mask_form) {
        const Masks masks = tracker.masks();
        out.add(masks.block_bias);
        out.add(masks.block_of_cell);
        out.add(masks.cell_mask);
    } else {
        out.add(selection.visible_cells);
        out.add(selection.visible_blocks);
        out.add(selection.tail_cells);
    }
    return out.value;
}

struct Shape {
    int32_t offset;
    uint32_t n_tail, n_queries;
    Beside beside;
    bool is_mask_form;
};

Case check(const Shape& shape, Digest& all) {
    static constexpr const char* kBeside[] = {"alone", "beside another", "fragmented beside another"};
    const std::string name = "offset " + std::to_string(shape.offset) + ", tail " + std::to_string(shape.n_tail) +
                             ", " + std::to_string(shape.n_queries) + " queries, " +
                             kBeside[static_cast<size_t>(shape.beside)] + (shape.is_mask_form ? ", mask" : ", count");
    return run_case(name, [&](Case& into) {
        constexpr uint32_t kCells = 2048;
        Stream stream(kCells);
        uint32_t n_taken = 0;
        const auto take = [&] {
            return shape.beside == Beside::AnotherFragmented ? (3 + 1021 * n_taken++) % kCells : n_taken++;
        };
        if (shape.beside != Beside::Nobody) {
            for (int32_t t = 0; t < 200; ++t) {
                const uint32_t cell = take();
                stream.put(cell, text(cell, t).at, {1});
            }
        }
        const uint32_t n_own = 1024 + shape.n_tail;
        std::vector<Row> rows;
        for (uint32_t i = 0; i < n_own; ++i) {
            rows.push_back(text(take(), shape.offset + static_cast<int32_t>(i)));
            stream.put(rows.back().cell, rows.back().at, {0});
        }
        const std::span<const Row> history = std::span(rows).first(n_own - shape.n_queries);
        const std::span<const Row> queries = std::span(rows).last(shape.n_queries);
        for (Policy policy : {Policy::Rank, Policy::Bucket}) {
            Tracker guarded(0, kRatio, policy), general(0, kRatio, policy);
            guarded.select(stream.cells(), history);
            guarded.computed();
            guarded.select(stream.cells(), queries);
            general.changed(Change::Restored);
            general.select(stream.cells(), queries);
            into.expect(general.selection().route != Route::Guarded, "the other one scans");
            const bool is_regular = policy == Policy::Rank || shape.offset == 0 || shape.beside == Beside::Nobody;
            const bool is_built = std::string_view(path()) == "guarded";
            into.expect((guarded.selection().route == Route::Guarded) == (is_regular && is_built), "one is guarded");
            const uint64_t bytes = digest(guarded, shape.is_mask_form);
            into.expect(bytes == digest(general, shape.is_mask_form), "the same bytes both ways");
            all.add(std::span<const uint64_t>(&bytes, 1));
        }
    });
}

}  // namespace

Suite equality() {
    Suite suite{"equality", {}, ""};
    Digest all;
    for (int32_t offset : {0, 1, 3, 3000}) {
        for (uint32_t n_tail : {0U, 1U, 2U, 3U}) {
            for (uint32_t n_queries : {1U, 7U, 512U}) {
                for (Beside beside : {Beside::Nobody, Beside::Another, Beside::AnotherFragmented}) {
                    for (bool is_mask_form : {false, true}) {
                        suite.cases.push_back(check({offset, n_tail, n_queries, beside, is_mask_form}, all));
                    }
                }
            }
        }
    }
    char text[20];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(all.value));
    suite.digest = text;
    return suite;
}

}  // namespace assay::qsa::suites
