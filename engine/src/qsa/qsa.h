// Which cells the queries of sparse attention may choose from: blocks, tails, and how they are found.
//
// The library knows no tensor, no weight, no thread and no file. Everything is per run: the tokens of one sequence in
// one ubatch, whose cells have been taken (coordinates and sequence set stand in them) before select() is called.
//
//   tracker.select(cells, rows)   ->  Selection: tables of the sequence, and per query what it may choose from
//   tracker.masks()               ->  the same as biases over blocks and cells, made only when asked for
//   tracker.computed()                the run of the last select() is computed: tables are written, keys are pooled
//
// docs/engine-qsa.md names every input exactly: type, shape, padding, order.
#pragma once

#include <bitset>
#include <compare>
#include <cstdint>
#include <memory>
#include <span>

#define ASSAY_QSA_API __attribute__((visibility("default")))

namespace assay::qsa {

inline constexpr uint32_t kMaxSequences = 256;
inline constexpr int32_t kFree = INT32_MAX;      // position of a free cell
inline constexpr float kAlways = 1e9F;           // bias of a block that every selection keeps, outside the budget
inline constexpr uint32_t kBiasPadding = 32;     // columns of block_bias come in multiples of this
inline constexpr uint32_t kWindowPadding = 256;  // columns of cell_mask too, unless the stream has fewer cells
using Sequences = std::bitset<kMaxSequences>;

// Rank order of a sequence's cells is the lexicographic order of (t, y, x). Text at position p: (p, p, p).
struct Coordinates {
    int32_t t = 0, y = 0, x = 0;
    auto operator<=>(const Coordinates&) const = default;
};

enum class Policy : uint8_t {
    Rank,    // block b is the ranks [b r, b r + r) of the sequence's own cells
    Bucket,  // blocks are keyed by (sequence set, t / r), as the forks have it, with their image rule
};

// How the inputs of a run were found. Counted for every run, each with a reason.
enum class Route : uint8_t {
    Guarded,  // from the tracked prefix, in time proportional to the run
    General,  // by a scan of the stream's cells
    Masked,   // by a scan, and only masks() is exact. Bucket policy only: rank blocks never need it
};

enum class Reason : uint8_t {
    Tracked,            // guarded: the run extends the tracked prefix
    GeneralOnly,        // the library was built without the guarded path
    ImageRows,          // the run holds embeddings or 2-D coordinates
    GapInRun,           // positions inside the run are not consecutive
    OutOfOrder,         // rows that neither extend the prefix nor repeat its end
    OutsideWindow,      // a cell of the prefix lies past the cells given
    SharedCells,        // a cell of the sequence belongs to another sequence too
    EqualCoordinates,   // two cells of the sequence have the same coordinates
    NotAlone,           // bucket policy: image or holes, and other sequences stand in the stream
    Copied,             // first run after a change of the cells from outside
    Restored,
    Removed,
    Failed,
    QueryAtImage,       // masked: a query stands at an image's own position
    ImageBesideOthers,  // masked: the sequence has an image, and other sequences stand in the stream
    SplitBlock,         // masked: the cells of one bucket belong to different sequence sets
    Count_,
};

ASSAY_QSA_API const char* name(Policy policy);
ASSAY_QSA_API const char* name(Route route);    // guarded, general, masked
ASSAY_QSA_API const char* name(Reason reason);  // tracked, general-only, image-rows, ...
// Known faults and options that this very library was compiled with, separated by commas; "" for a normal build.
ASSAY_QSA_API const char* faults();
ASSAY_QSA_API const char* path();  // "guarded" or "general-only"

// One token of a run, whose cell has been taken.
struct Row {
    uint32_t cell = 0;
    Coordinates at;
    bool is_image = false;  // came as an embedding
    int32_t fourth = 0;     // the fourth position row: 0 for text in most callers, p in some. Never looked at
};

// The cells of one stream. t[i] == kFree: cell i is free, and its other entries mean nothing.
struct Cells {
    uint32_t n_cells = 0;  // length of the arrays; every used cell lies below
    uint32_t n_used = 0;
    const int32_t* t = nullptr;
    const int32_t* y = nullptr;
    const int32_t* x = nullptr;
    const Sequences* sequences = nullptr;
    uint32_t end = UINT32_MAX;  // a scan may stop here: one past the last used cell, or leave it
};

// Spans stay valid until the next event or select() of the tracker. Types and order are those of the tensors.
struct Selection {
    Route route = Route::Guarded;
    Reason reason = Reason::Tracked;
    uint32_t n_queries = 0;
    uint32_t n_own = 0;     // cells of the sequence after this run
    uint32_t n_blocks = 0;  // complete blocks of the sequence after this run
    uint32_t ratio = 0;
    // Tables, kept from run to run: only the entries from first_new_* on differ from those of the last computed run.
    std::span<const int32_t> own_cells;     // i32 [n_own]: rank -> cell
    std::span<const int32_t> block_cells;   // i32 [n_blocks, ratio]: members in rank order; rows by ordinal
    std::span<const Coordinates> block_at;  // i32 [n_blocks, 3]: rope position (t, y, x) of the pooled key
    uint32_t first_new_own = 0;
    uint32_t first_new_block = 0;
    // Pooled keys of [first_stale_block, n_blocks) must be made by this run. Their rows are (sequence, ordinal).
    uint32_t first_stale_block = 0;
    // Per query, in the order of the rows given. Bias form "count".
    std::span<const int32_t> visible_cells;   // i32 [n_queries]: ranks 0 .. v - 1 of own_cells are visible
    std::span<const int32_t> visible_blocks;  // i32 [n_queries]: blocks 0 .. v - 1 compete for the budget
    std::span<const int32_t> tail_cells;      // i32 [n_queries, ratio - 1]: always attended; -1: absent
};

// Bias form "mask" of the last selection: score[q][b] + block_bias[q][b] ranks the blocks, a cell takes part if its
// block is kept, and cell_mask[q][c] is added to its attention score. Blocks with kAlways are kept beside the budget.
struct Masks {
    uint32_t n_columns = 0;  // n_blocks + 1, padded
    uint32_t n_window = 0;   // columns of cell_mask
    // f32 [n_queries, n_columns]: 0, -inf or kAlways; column n_blocks is the spare block of the own cells that stand in
    // no complete block; then -inf.
    std::span<const float> block_bias;
    std::span<const int32_t> block_of_cell;  // i32 [n_window]: ordinal, n_blocks (spare), -1: no cell of the sequence
    std::span<const float> cell_mask;        // f32 [n_queries, n_window]: 0 where visible, else -inf
};

struct Counters {
    uint64_t runs[3] = {};                                       // by Route
    uint64_t reasons[static_cast<size_t>(Reason::Count_)] = {};  // by Reason
    uint64_t n_scans = 0;                                        // runs that fell back to a scan of the cells
    uint64_t n_recoveries = 0;     // scans after which the prefix was tracked again
    uint64_t n_cells_visited = 0;  // by scans
    uint64_t n_mapping_steps = 0;  // entries of tables and per-query inputs read or written, cells visited included
};

// What happened to a sequence's cells other than by its own runs.
enum class Change : uint8_t {
    Copied,    // the sequence received another one's cells, or shares cells with another one now, or no longer does
    Restored,  // the cells and their rows came from a saved state
    Removed,   // cells were removed elsewhere than at the end
    Failed,    // a run was not computed, and its cells may be gone
};

// The tracked prefix of one sequence in one stream, and what of its tables the graphs hold.
class ASSAY_QSA_API Tracker {
public:
    // ratio: cells in a block, at least 2. A new tracker stands for a sequence without cells.
    Tracker(uint32_t sequence, uint32_t ratio, Policy policy = Policy::Rank);
    Tracker(Tracker&&) noexcept;
    Tracker& operator=(Tracker&&) noexcept;
    ~Tracker();

    // The cells with position >= t were removed: seq_rm(t, end), a rollback. truncate(0): all of them.
    void truncate(int32_t t);
    // Another change. Pooled keys of blocks with a member at position >= stale_from are made anew (INT32_MAX: none,
    // where rows were not written, as at the source of a copy). The next run scans the cells, once.
    void changed(Change what, int32_t stale_from = 0);

    // The inputs of a run. The rows are in the cells already; each row has another cell. Throws std::invalid_argument
    // when a row's cell is not in the stream, is free, holds other coordinates or not this sequence.
    const Selection& select(const Cells& cells, std::span<const Row> rows);
    const Selection& selection() const;
    // The last selection in bias form "mask". O(queries x (blocks + cells)).
    Masks masks();
    // The run was computed. Without this call the next selection repeats what it asked to be written and pooled.
    void computed();

    uint32_t sequence() const;
    Policy policy() const;
    bool is_tracked() const;  // false: the next run scans
    // Is the kept prefix, in every field, what one rebuilt from these cells would be? O(cells): a check, not a step.
    bool equals_rebuilt(const Cells& cells) const;
    const Counters& counters() const;
    void reset_counters();

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace assay::qsa
