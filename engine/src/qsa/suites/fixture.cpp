#include "qsa/suites/fixture.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <set>

namespace assay::qsa::suites {

Stream::Stream(uint32_t n_cells) : t_(n_cells, kFree), y_(n_cells), x_(n_cells), sets_(n_cells) {}

void Stream::put(uint32_t cell, Coordinates at, std::initializer_list<uint32_t> sequences) {
    n_used_ += is_free(cell);
    t_[cell] = at.t;
    y_[cell] = at.y;
    x_[cell] = at.x;
    sets_[cell].reset();
    for (uint32_t sequence : sequences) sets_[cell].set(sequence);
}

void Stream::leave(uint32_t cell, uint32_t sequence) {
    sets_[cell].reset(sequence);
    if (sets_[cell].any()) return;
    t_[cell] = kFree;
    --n_used_;
}

Cells Stream::cells() const { return {n_cells(), n_used_, t_.data(), y_.data(), x_.data(), sets_.data()}; }

std::vector<uint32_t> Stream::own(uint32_t sequence) const {
    std::vector<uint32_t> cells;
    for (uint32_t cell = 0; cell < n_cells(); ++cell) {
        if (owns(cell, sequence)) cells.push_back(cell);
    }
    std::sort(cells.begin(), cells.end(), [&](uint32_t a, uint32_t b) { return at(a) < at(b); });
    return cells;
}

Row text(uint32_t cell, int32_t position) { return {cell, {position, position, position}}; }

Choice define(const Stream& stream, uint32_t sequence, Coordinates query, Policy policy) {
    const std::vector<uint32_t> own = stream.own(sequence);
    std::vector<uint32_t> visible;
    for (uint32_t cell : own) {
        if (stream.at(cell) <= query) visible.push_back(cell);
    }
    bool is_alone = true, repeats = false;
    for (uint32_t cell = 0; cell < stream.n_cells(); ++cell) {
        if (!stream.is_free(cell)) is_alone = is_alone && stream.set(cell).count() == 1 && stream.owns(cell, sequence);
    }
    for (size_t i = 1; i < own.size(); ++i) repeats = repeats || stream.at(own[i]).t == stream.at(own[i - 1]).t;

    Choice choice;
    choice.n_visible = static_cast<uint32_t>(visible.size());
    if (policy == Policy::Rank || (repeats && is_alone)) {
        size_t i = 0;
        for (; i + kRatio <= visible.size(); i += kRatio) {
            choice.blocks.emplace_back(visible.begin() + i, visible.begin() + i + kRatio);
            choice.rope.push_back(stream.at(visible[i]));
        }
        choice.tail.assign(visible.begin() + i, visible.end());
        return choice;
    }
    const int32_t width = kRatio;
    const int32_t tail_start = (query.t + 1) / width * width;
    std::map<std::pair<int32_t, std::string>, std::vector<uint32_t>> groups;
    for (uint32_t cell : visible) {
        groups[{stream.at(cell).t / width, stream.set(cell).to_string()}].push_back(cell);
    }
    for (const auto& [key, cells] : groups) {
        const int32_t start = key.first * width;
        std::set<int32_t> slots;
        for (uint32_t cell : cells) slots.insert(stream.at(cell).t % width);
        if (start >= tail_start) {
            choice.tail.insert(choice.tail.end(), cells.begin(), cells.end());
        } else if (slots.size() == kRatio && cells.size() == kRatio) {
            choice.blocks.push_back(cells);
            choice.rope.push_back({start, start, start});
        } else {
            choice.always.insert(choice.always.end(), cells.begin(), cells.end());
        }
    }
    return choice;
}

namespace {

std::vector<uint32_t> sorted(std::vector<uint32_t> cells) {
    std::sort(cells.begin(), cells.end());
    return cells;
}

// The cells that the bias form "mask" keeps for a query whatever the scores, and its competing blocks.
void compare_masks(Case& into, const Stream& stream, const Selection& selection, const Masks& masks, uint32_t query,
                   Coordinates at, const Choice& choice, uint32_t sequence) {
    const float* bias = masks.block_bias.data() + static_cast<size_t>(query) * masks.n_columns;
    const float* mask = masks.cell_mask.data() + static_cast<size_t>(query) * masks.n_window;
    uint32_t n_competing = 0;
    for (uint32_t block = 0; block < masks.n_columns; ++block) {
        into.expect(!std::isnan(bias[block]), "no bias is NaN");
        n_competing += block < selection.n_blocks && bias[block] == 0.0F;
    }
    into.expect(n_competing == choice.blocks.size(), "as many blocks compete as are visible");
    std::vector<uint32_t> always;
    for (uint32_t cell = 0; cell < masks.n_window; ++cell) {
        const bool is_visible = stream.owns(cell, sequence) && stream.at(cell) <= at;
        into.expect((mask[cell] == 0.0F) == is_visible, "a cell is masked unless the query sees it");
        const int32_t block = masks.block_of_cell[cell];
        into.expect((block >= 0) == stream.owns(cell, sequence), "exactly the own cells stand in a block");
        if (block < 0) continue;
        if (block < static_cast<int32_t>(selection.n_blocks)) {
            const auto members = selection.block_cells.subspan(static_cast<size_t>(block) * kRatio, kRatio);
            into.expect(std::find(members.begin(), members.end(), static_cast<int32_t>(cell)) != members.end(),
                        "the block of a cell contains it");
        }
        if (is_visible && bias[block] > 0.0F && std::isfinite(bias[block])) always.push_back(cell);
    }
    std::vector<uint32_t> kept = choice.tail;
    kept.insert(kept.end(), choice.always.begin(), choice.always.end());
    into.expect(sorted(always) == sorted(kept), "the tail, and the cells of no block, have a finite positive bias");
}

}  // namespace

void compare(Case& into, const Stream& stream, Tracker& tracker, std::span<const Row> rows, bool is_mask_form) {
    const Selection& selection = tracker.selection();
    const uint32_t sequence = tracker.sequence();
    for (int32_t cell : selection.block_cells) {
        into.expect(stream.owns(static_cast<uint32_t>(cell), sequence), "a block holds only the sequence's own cells");
    }
    for (uint32_t query = 0; query < rows.size(); ++query) {
        const Choice choice = define(stream, sequence, rows[query].at, tracker.policy());
        if (is_mask_form) {
            compare_masks(into, stream, selection, tracker.masks(), query, rows[query].at, choice, sequence);
            continue;
        }
        into.expect(selection.visible_cells[query] == static_cast<int32_t>(choice.n_visible), "visible cells");
        into.expect(selection.visible_blocks[query] == static_cast<int32_t>(choice.blocks.size()), "visible blocks");
        for (size_t block = 0; block < choice.blocks.size() && block < selection.n_blocks; ++block) {
            const auto members = selection.block_cells.subspan(block * kRatio, kRatio);
            into.expect(std::equal(members.begin(), members.end(), choice.blocks[block].begin()),
                        "the members of a block, in order");
            into.expect(selection.block_at[block] == choice.rope[block], "the rope position of a block");
        }
        std::vector<uint32_t> tail;
        for (int32_t cell : selection.tail_cells.subspan(query * (kRatio - 1), kRatio - 1)) {
            if (cell >= 0) tail.push_back(static_cast<uint32_t>(cell));
        }
        into.expect(sorted(tail) == sorted(choice.tail), "the tail");
    }
}

void Held::write(const Selection& selection, const std::vector<uint64_t>& stamps) {
    own_.resize(selection.n_own);
    blocks_.resize(selection.block_cells.size());
    rope_.resize(selection.n_blocks);
    pooled_.resize(selection.block_cells.size());
    std::copy(selection.own_cells.begin() + selection.first_new_own, selection.own_cells.end(),
              own_.begin() + selection.first_new_own);
    const size_t first_new = static_cast<size_t>(selection.first_new_block) * selection.ratio;
    std::copy(selection.block_cells.begin() + first_new, selection.block_cells.end(), blocks_.begin() + first_new);
    std::copy(selection.block_at.begin() + selection.first_new_block, selection.block_at.end(),
              rope_.begin() + selection.first_new_block);
    for (size_t i = static_cast<size_t>(selection.first_stale_block) * selection.ratio; i < blocks_.size(); ++i) {
        pooled_[i] = stamps[blocks_[i]];
    }
}

void Held::check(Case& into, const Selection& selection, const std::vector<uint64_t>& stamps) const {
    into.expect(std::equal(own_.begin(), own_.end(), selection.own_cells.begin(), selection.own_cells.end()),
                "the graphs hold the sequence's cells");
    into.expect(std::equal(blocks_.begin(), blocks_.end(), selection.block_cells.begin(), selection.block_cells.end()),
                "the graphs hold the members of every block");
    into.expect(std::equal(rope_.begin(), rope_.end(), selection.block_at.begin(), selection.block_at.end()),
                "the graphs hold the rope position of every block");
    bool is_current = true;
    for (size_t i = 0; i < blocks_.size(); ++i) {
        is_current = is_current && pooled_[i] == stamps[selection.block_cells[i]];
    }
    into.expect(is_current, "every pooled key is that of its members' present rows");
}

Case run_case(std::string name, const std::function<void(Case&)>& body) {
    Case out{std::move(name), {}};
    try {
        body(out);
    } catch (const std::exception& error) { out.problems.push_back(std::string("threw: ") + error.what()); }
    return out;
}

std::string flags(std::initializer_list<std::pair<const char*, bool>> named) {
    std::string text;
    for (const auto& [name, is_set] : named) {
        if (!text.empty()) text += ", ";
        text += (is_set ? "" : "no ") + std::string(name);
    }
    return text;
}

}  // namespace assay::qsa::suites
