// A cache without rows, what its graphs would hold, and the definitions once more, slowly: what every suite stands on.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "qsa/qsa.h"

namespace assay::qsa::suites {

constexpr uint32_t kRatio = 4;

// One case of a suite: its name, and what was wrong (nothing, when it passed).
struct Case {
    std::string name;
    std::vector<std::string> problems;

    void expect(bool holds, const std::string& what) {
        if (!holds) problems.push_back(what);
    }
};

struct Suite {
    const char* name;
    std::vector<Case> cases;
    std::string digest;  // of the inputs, or ""
};

class Stream {
public:
    explicit Stream(uint32_t n_cells);
    void put(uint32_t cell, Coordinates at, std::initializer_list<uint32_t> sequences);
    void join(uint32_t cell, uint32_t sequence) { sets_[cell].set(sequence); }
    void leave(uint32_t cell, uint32_t sequence);  // frees the cell when nobody is left
    bool is_free(uint32_t cell) const { return t_[cell] == kFree; }
    bool owns(uint32_t cell, uint32_t sequence) const { return !is_free(cell) && sets_[cell].test(sequence); }
    const Sequences& set(uint32_t cell) const { return sets_[cell]; }
    Coordinates at(uint32_t cell) const { return {t_[cell], y_[cell], x_[cell]}; }
    uint32_t n_cells() const { return static_cast<uint32_t>(t_.size()); }
    Cells cells() const;
    // The sequence's cells in rank order.
    std::vector<uint32_t> own(uint32_t sequence) const;

private:
    std::vector<int32_t> t_, y_, x_;
    std::vector<Sequences> sets_;
    uint32_t n_used_ = 0;
};

Row text(uint32_t cell, int32_t position);

// What a query may choose from, by definition.
struct Choice {
    std::vector<std::vector<uint32_t>> blocks;  // that compete, members in order
    std::vector<Coordinates> rope;
    std::vector<uint32_t> tail;
    std::vector<uint32_t> always;  // cells of no block that only the bias form "mask" keeps
    uint32_t n_visible = 0;
};
Choice define(const Stream& stream, uint32_t sequence, Coordinates query, Policy policy);

// Compares a selection with the definition in the bias form "count" or "mask".
void compare(Case& into, const Stream& stream, Tracker& tracker, std::span<const Row> rows, bool is_mask_form);

// The tables and pooled keys of one sequence as graphs hold them, written only as far as selections ask.
class Held {
public:
    // Takes what the selection asks for. `stamps`: by cell, when its row was written.
    void write(const Selection& selection, const std::vector<uint64_t>& stamps);
    // Whether everything held is what a scan would write now.
    void check(Case& into, const Selection& selection, const std::vector<uint64_t>& stamps) const;

private:
    std::vector<int32_t> own_, blocks_;
    std::vector<Coordinates> rope_;
    std::vector<uint64_t> pooled_;  // [n_blocks, ratio]: stamps of the members when the key was made
};

// Runs a case; what it throws is a problem of the case.
Case run_case(std::string name, const std::function<void(Case&)>& body);
std::string flags(std::initializer_list<std::pair<const char*, bool>> named);

Suite reproducer();
Suite mapping();
Suite state();
Suite allocation();
Suite equality();
Suite prefix();
Suite routes();

struct RouteLine {
    const char *policy, *name, *route, *reason;
};
std::vector<RouteLine> route_table();  // what the suite `routes` expects of a build with the guarded path

}  // namespace assay::qsa::suites
