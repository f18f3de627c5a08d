// Saved state of one sequence of qwen4exp.
//
// Layout, little-endian: a header that names itself, the model, the cache layout and the checksums; then, in rank order,
// coordinates and token of every cell; the rows of every attention layer (keys, values, raw indexer keys); the newest
// recurrent row; and where the session drafts, the trunk's newest residual and the cells and rows of the draft cache.
// Cell numbers, sequence ids and pooled keys are not in it, so a state saved again after restoring has the same bytes.
#include <bit>
#include <cstddef>
#include <cstring>

#include "qwen_session.h"
#include "state_header.h"

namespace assay {
namespace {

constexpr char kMagic[8] = {'A', 'S', 'S', 'A', 'Y', 'Q', '4', 'E'};
constexpr uint32_t kVersion = 1;

struct Header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint64_t model_hash;
    uint32_t row_type;        // ggml_type of keys and values
    uint32_t draft_row_type;  // GGML_TYPE_COUNT without drafts
    uint64_t cell_bytes;
    uint64_t draft_cell_bytes;
    uint64_t recurrent_bytes;
    uint64_t residual_bytes;
    uint32_t n_cells;
    uint32_t n_draft_cells;
    uint64_t payload_bytes;
    uint64_t payload_checksum;
    uint64_t header_checksum;  // of all bytes before it
};
static_assert(sizeof(Header) == 96 && std::endian::native == std::endian::little);

struct SavedCell {
    int32_t t, y, x, token;
};

void save_cells(const IndexedCache& cache, uint32_t sequence, uint8_t*& out) {
    for (const uint32_t cell : cache.cells.order(sequence)) {
        const Coordinates at = cache.cells.at(sequence, cell);
        const SavedCell saved{at.t, at.y, at.x, cache.cells.token(sequence, cell)};
        std::memcpy(out, &saved, sizeof saved);
        out += sizeof saved;
    }
    cache.read(sequence, out);
    out += cache.cell_bytes() * cache.cells.order(sequence).size();
}

std::vector<SavedCell> load_cells(const uint8_t* in, uint32_t n, uint32_t n_vocab) {
    std::vector<SavedCell> cells(n);
    if (n > 0) std::memcpy(cells.data(), in, n * sizeof(SavedCell));
    Coordinates last{-1, -1, -1};
    for (const SavedCell& cell : cells) {
        const Coordinates at{cell.t, cell.y, cell.x};
        const bool is_in_range = cell.t >= 0 && cell.y >= 0 && cell.x >= 0 && cell.t < INT32_MAX - 1 &&
                                 cell.y < INT32_MAX - 1 && cell.x < INT32_MAX - 1;
        if (!is_in_range || at <= last) refuse("its positions are not rising");
        if (cell.token < -1 || (cell.token >= 0 && static_cast<uint32_t>(cell.token) >= n_vocab))
            refuse("it holds token " + std::to_string(cell.token));
        last = at;
    }
    return cells;
}

void restore_cells(IndexedCache& cache, uint32_t sequence, const std::vector<SavedCell>& cells, const uint8_t* rows) {
    for (const SavedCell& cell : cells) {
        Coordinates at{cell.t, cell.y, cell.x};
#if defined(ASSAY_FAULT_STATE_LOSES_POSITIONS)
        at.y = at.x = 0;
#endif
        cache.cells.add(sequence, at, cell.token);
    }
    cache.write(sequence, rows);
}

void check_cells(const IndexedCache& cache, uint32_t sequence, uint32_t n) {
    const uint32_t n_free = cache.cells.n_free(sequence) + cache.cells.n_own_alone(sequence);
    if (n > n_free) {
        throw Failure(ASSAY_FULL,
                      "the state has " + std::to_string(n) + " cells, " + std::to_string(n_free) + " are free");
    }
}

size_t bytes_of_cells(uint64_t n, uint64_t cell_bytes) { return n * (sizeof(SavedCell) + cell_bytes); }

Header describe(const Model& model, const IndexedCache& cache, const RecurrentRows& recurrent, const Draft* draft,
                uint32_t n_cells, uint32_t n_draft_cells) {
    Header header{};
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    header.version = kVersion;
    header.header_bytes = sizeof(Header);
    header.model_hash = model.shape_hash();
    header.row_type = static_cast<uint32_t>(cache.type());
    header.draft_row_type = static_cast<uint32_t>(draft == nullptr ? GGML_TYPE_COUNT : draft->cache().type());
    header.cell_bytes = cache.cell_bytes();
    header.draft_cell_bytes = draft == nullptr ? 0 : draft->cache().cell_bytes();
    header.recurrent_bytes = recurrent.row_bytes();
    header.residual_bytes = draft == nullptr ? 0 : model.qwen()->shape().hcn() * sizeof(float);
    header.n_cells = n_cells;
    header.n_draft_cells = n_draft_cells;
    header.payload_bytes = bytes_of_cells(n_cells, header.cell_bytes) + header.recurrent_bytes +
                           header.residual_bytes + bytes_of_cells(n_draft_cells, header.draft_cell_bytes);
    return header;
}

void check_header(const Header& found, const Header& needed, size_t size) {
    if (found.model_hash != needed.model_hash) refuse("it belongs to another model");
    if ((found.draft_row_type == GGML_TYPE_COUNT) != (needed.draft_row_type == GGML_TYPE_COUNT)) {
        refuse(found.draft_row_type == GGML_TYPE_COUNT ? "it was saved without drafts, this session drafts"
                                                       : "it was saved with drafts, this session has none");
    }
    if (found.row_type != needed.row_type || found.draft_row_type != needed.draft_row_type) {
        refuse(std::string("it holds ") +
               (found.row_type < GGML_TYPE_COUNT ? ggml_type_name(static_cast<ggml_type>(found.row_type)) : "unknown") +
               " rows, this session has " + ggml_type_name(static_cast<ggml_type>(needed.row_type)) +
               ", or their drafts differ");
    }
    if (found.cell_bytes != needed.cell_bytes || found.draft_cell_bytes != needed.draft_cell_bytes ||
        found.recurrent_bytes != needed.recurrent_bytes || found.residual_bytes != needed.residual_bytes ||
        found.payload_bytes != needed.payload_bytes || found.n_draft_cells > found.n_cells) {
        refuse("its cache layout differs from this session's");
    }
    if (size != sizeof(Header) + found.payload_bytes) {
        refuse("it has " + std::to_string(size) + " bytes and says " +
               std::to_string(sizeof(Header) + found.payload_bytes) + "; it is truncated or has something appended");
    }
}

}  // namespace

size_t QwenSession::state_size(int32_t sequence) const {
    const uint32_t id = check_sequence(sequence);
    return sizeof(Header) + describe(model_, *cache_, *recurrent_, draft_.get(), n_cells_of(id),
                                     draft_ ? draft_->n_cells(id) : 0)
                                .payload_bytes;
}

size_t QwenSession::save_state(int32_t sequence, uint8_t* data, size_t size) const {
    const uint32_t id = check_sequence(sequence);
    if (held_ && held_->sequence == id) throw Failure(ASSAY_INVALID, "a verification waits for draft_accept");
    Header header =
        describe(model_, *cache_, *recurrent_, draft_.get(), n_cells_of(id), draft_ ? draft_->n_cells(id) : 0);
    const size_t needed = sizeof header + header.payload_bytes;
    if (data == nullptr || size < needed) {
        throw Failure(ASSAY_INVALID,
                      "the state needs " + std::to_string(needed) + " bytes, the buffer has " + std::to_string(size));
    }
    uint8_t* out = data + sizeof header;
    save_cells(*cache_, id, out);
    recurrent_->read(recurrent_->current(id), out);
    out += header.recurrent_bytes;
    if (draft_) {
        std::memset(out, 0, header.residual_bytes);
        if (!draft_->residuals(id).empty())
            std::memcpy(out, draft_->residuals(id).front()->data(), header.residual_bytes);
        out += header.residual_bytes;
        save_cells(draft_->cache(), id, out);
    }
    header.payload_checksum = checksum(data + sizeof header, header.payload_bytes);
    header.header_checksum = checksum(&header, offsetof(Header, header_checksum));
    std::memcpy(data, &header, sizeof header);
    return needed;
}

void QwenSession::restore_state(int32_t sequence, const uint8_t* data, size_t size) {
    const uint32_t id = check_sequence(sequence);
    if (data == nullptr) throw Failure(ASSAY_INVALID, "there is no state to restore");
    const Header header = read_state_header<Header>(data, size, kMagic, kVersion);
    const Header needed =
        describe(model_, *cache_, *recurrent_, draft_.get(), header.n_cells, header.n_draft_cells);
    check_header(header, needed, size);
    const uint8_t* in = data + sizeof header;
    if (header.payload_checksum != checksum(in, header.payload_bytes)) refuse("its contents are corrupt (checksum)");
    const uint32_t n_vocab = model_.hyper().n_vocab;
    const std::vector<SavedCell> cells = load_cells(in, header.n_cells, n_vocab);
    const uint8_t* rows = in + cells.size() * sizeof(SavedCell);
    const uint8_t* recurrent = rows + cells.size() * header.cell_bytes;
    const uint8_t* residual = recurrent + header.recurrent_bytes;
    const std::vector<SavedCell> draft_cells =
        load_cells(residual + header.residual_bytes, header.n_draft_cells, n_vocab);
    check_cells(*cache_, id, header.n_cells);
    if (draft_) check_cells(draft_->cache(), id, header.n_draft_cells);

    // Everything that can fail came before the sequence is touched.
    drop(id);
    if (cells.empty()) return;
    restore_cells(*cache_, id, cells, rows);
    recurrent_->write(id, recurrent);
    if (!draft_) return;
    const auto* values = reinterpret_cast<const float*>(residual);
    std::vector<float> newest(header.residual_bytes / sizeof(float));
    std::memcpy(newest.data(), values, header.residual_bytes);
    draft_->set_residuals(id, {std::make_shared<const std::vector<float>>(std::move(newest))});
    restore_cells(draft_->cache(), id, draft_cells,
                  residual + header.residual_bytes + draft_cells.size() * sizeof(SavedCell));
}

}  // namespace assay
