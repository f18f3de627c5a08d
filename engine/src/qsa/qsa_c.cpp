#include "qsa/qsa_c.h"

#include <array>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "qsa/qsa.h"

using assay::qsa::Cells;
using assay::qsa::Change;
using assay::qsa::Coordinates;
using assay::qsa::Masks;
using assay::qsa::Policy;
using assay::qsa::Row;
using assay::qsa::Selection;
using assay::qsa::Sequences;
using assay::qsa::Tracker;

struct assay_qsa {
    Tracker tracker;
    std::vector<Row> rows;
};

namespace {

std::string error_text;

int fail(const char* text) {
    error_text = text;
    return -1;
}

// The words of a set lie in memory as the interface gives them.
static_assert(sizeof(Sequences) == 4 * sizeof(uint64_t) && std::is_trivially_copyable_v<Sequences>);

Cells cells_of(const assay_qsa_cells& in) {
    return {in.n_cells, in.n_used, in.t, in.y, in.x, reinterpret_cast<const Sequences*>(in.sequences), in.end};
}

template <class Span>
int64_t hand_out(Span span, const void** data) {
    *data = span.data();
    return static_cast<int64_t>(span.size_bytes());
}

}  // namespace

extern "C" {

assay_qsa* assay_qsa_new(uint32_t sequence, uint32_t ratio, int policy) {
    try {
        if (policy != 0 && policy != 1) throw std::invalid_argument("policy is 0 (rank) or 1 (bucket)");
        return new assay_qsa{Tracker(sequence, ratio, static_cast<Policy>(policy)), {}};
    } catch (const std::exception& error) {
        fail(error.what());
        return nullptr;
    }
}

void assay_qsa_free(assay_qsa* tracker) { delete tracker; }

void assay_qsa_truncate(assay_qsa* tracker, int32_t t) { tracker->tracker.truncate(t); }

int assay_qsa_changed(assay_qsa* tracker, int what, int32_t stale_from) {
    if (what < 0 || what > 3) return fail("a change is a number from 0 to 3");
    tracker->tracker.changed(static_cast<Change>(what), stale_from);
    return 0;
}

void assay_qsa_computed(assay_qsa* tracker) { tracker->tracker.computed(); }

int assay_qsa_select(assay_qsa* tracker, const assay_qsa_cells* cells, const assay_qsa_row* rows, uint32_t n_rows) {
    try {
        tracker->rows.clear();
        for (uint32_t i = 0; i < n_rows; ++i) {
            const assay_qsa_row& row = rows[i];
            tracker->rows.push_back({row.cell, {row.t, row.y, row.x}, row.is_image != 0, row.fourth});
        }
        tracker->tracker.select(cells_of(*cells), tracker->rows);
        return 0;
    } catch (const std::exception& error) { return fail(error.what()); }
}

int64_t assay_qsa_input(assay_qsa* tracker, const char* name, const void** data) {
    const std::string_view wanted = name;
    const Selection& selection = tracker->tracker.selection();
    if (wanted == "own_cells") return hand_out(selection.own_cells, data);
    if (wanted == "block_cells") return hand_out(selection.block_cells, data);
    if (wanted == "block_at") return hand_out(selection.block_at, data);
    if (wanted == "visible_cells") return hand_out(selection.visible_cells, data);
    if (wanted == "visible_blocks") return hand_out(selection.visible_blocks, data);
    if (wanted == "tail_cells") return hand_out(selection.tail_cells, data);
    try {
        if (wanted == "block_bias") return hand_out(tracker->tracker.masks().block_bias, data);
        if (wanted == "block_of_cell") return hand_out(tracker->tracker.masks().block_of_cell, data);
        if (wanted == "cell_mask") return hand_out(tracker->tracker.masks().cell_mask, data);
    } catch (const std::exception& error) { return fail(error.what()); }
    return fail("no input has this name");
}

int64_t assay_qsa_number(const assay_qsa* tracker, const char* name) {
    const Selection& selection = tracker->tracker.selection();
    const assay::qsa::Counters& counters = tracker->tracker.counters();
    const std::array<std::pair<std::string_view, uint64_t>, 12> numbers{{
        {"n_own", selection.n_own},
        {"n_blocks", selection.n_blocks},
        {"n_queries", selection.n_queries},
        {"first_new_own", selection.first_new_own},
        {"first_new_block", selection.first_new_block},
        {"first_stale_block", selection.first_stale_block},
        {"route", static_cast<uint64_t>(selection.route)},
        {"reason", static_cast<uint64_t>(selection.reason)},
        {"n_scans", counters.n_scans},
        {"n_recoveries", counters.n_recoveries},
        {"n_cells_visited", counters.n_cells_visited},
        {"n_mapping_steps", counters.n_mapping_steps},
    }};
    for (const auto& [known, value] : numbers) {
        if (known == name) return static_cast<int64_t>(value);
    }
    return fail("no number has this name");
}

const char* assay_qsa_route(const assay_qsa* tracker) {
    return assay::qsa::name(tracker->tracker.selection().route);
}

const char* assay_qsa_reason(const assay_qsa* tracker) {
    return assay::qsa::name(tracker->tracker.selection().reason);
}

int assay_qsa_compare_rebuilt(const assay_qsa* tracker, const assay_qsa_cells* cells) {
    try {
        if (!tracker->tracker.is_tracked()) return 2;
        return tracker->tracker.equals_rebuilt(cells_of(*cells)) ? 1 : 0;
    } catch (const std::exception& error) { return fail(error.what()); }
}

const char* assay_qsa_faults() { return assay::qsa::faults(); }
const char* assay_qsa_path() { return assay::qsa::path(); }
const char* assay_qsa_error() { return error_text.c_str(); }

}  // extern "C"
