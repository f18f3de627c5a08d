// Saved state of one sequence.
//
// Layout, little-endian: a header that names itself (magic, version, size), the model (hash of shapes and
// name), the cache layout and the checksums; then the positions in rising order; then for each layer the rows
// of keys and the rows of values in that order. Cell numbers and sequence ids are not in it, so a state saved
// again after restoring has the same bytes.
#include <bit>
#include <cstring>

#include "llama_session.h"
#include "state_header.h"

namespace assay {
namespace {

constexpr char kMagic[8] = {'A', 'S', 'S', 'A', 'Y', 'S', 'E', 'Q'};
constexpr uint32_t kVersion = 1;

struct Header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint64_t model_hash;
    uint32_t row_type;  // ggml_type of the rows
    uint32_t n_layers;
    uint32_t key_row_bytes;
    uint32_t value_row_bytes;
    uint32_t n_cells;
    uint32_t reserved;
    uint64_t payload_bytes;
    uint64_t payload_checksum;
    uint64_t header_checksum;  // of all bytes before it
};
static_assert(sizeof(Header) == 72 && std::endian::native == std::endian::little);

// Positions are padded to whole 8 bytes, so that rows begin aligned.
size_t position_bytes(size_t n_cells) { return (n_cells * sizeof(int32_t) + 7) / 8 * 8; }

size_t payload_bytes(const Cache& cache, size_t n_cells) {
    const size_t row_bytes = cache.keys(0)->nb[1] + cache.values(0)->nb[1];
    return position_bytes(n_cells) + n_cells * row_bytes * cache.n_layers();
}

Header describe(const Model& model, const Cache& cache, uint32_t n_cells) {
    Header header{};
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    header.version = kVersion;
    header.header_bytes = sizeof(Header);
    header.model_hash = model.shape_hash();
    header.row_type = static_cast<uint32_t>(cache.type());
    header.n_layers = cache.n_layers();
    header.key_row_bytes = static_cast<uint32_t>(cache.keys(0)->nb[1]);
    header.value_row_bytes = static_cast<uint32_t>(cache.values(0)->nb[1]);
    header.n_cells = n_cells;
    header.payload_bytes = payload_bytes(cache, n_cells);
    return header;
}

void check_header(const Header& found, const Header& needed, size_t size) {
    if (found.model_hash != needed.model_hash) refuse("it belongs to another model");
    if (found.row_type != needed.row_type) {
        refuse(std::string("it holds ") +
               (found.row_type < GGML_TYPE_COUNT ? ggml_type_name(static_cast<ggml_type>(found.row_type)) : "unknown") +
               " rows, this session has " + ggml_type_name(static_cast<ggml_type>(needed.row_type)));
    }
    if (found.n_layers != needed.n_layers || found.key_row_bytes != needed.key_row_bytes ||
        found.value_row_bytes != needed.value_row_bytes || found.payload_bytes != needed.payload_bytes) {
        refuse("its cache layout differs from this session's");
    }
    if (size != sizeof(Header) + found.payload_bytes) {
        refuse("it has " + std::to_string(size) + " bytes and says " +
               std::to_string(sizeof(Header) + found.payload_bytes) + "; it is truncated or has something appended");
    }
}

}  // namespace

size_t LlamaSession::state_size(int32_t sequence) const {
    return sizeof(Header) + payload_bytes(*cache_, cache_->n_cells_of(check_sequence(sequence)));
}

size_t LlamaSession::save_state(int32_t sequence, uint8_t* data, size_t size) const {
    const uint32_t id = check_sequence(sequence);
    const std::vector<Cache::Cell> cells = cache_->find(id, 0, INT32_MAX);
    Header header = describe(model_, *cache_, static_cast<uint32_t>(cells.size()));
    const size_t needed = sizeof header + header.payload_bytes;
    if (data == nullptr || size < needed) {
        throw Failure(ASSAY_INVALID,
                      "the state needs " + std::to_string(needed) + " bytes, the buffer has " + std::to_string(size));
    }
    uint8_t* out = data + sizeof header;
    std::memset(out, 0, position_bytes(cells.size()));
    for (size_t i = 0; i < cells.size(); ++i) {
        const int32_t position = cache_->position(cells[i]);
        std::memcpy(out + i * sizeof position, &position, sizeof position);
    }
    out += position_bytes(cells.size());
    for (uint32_t layer = 0; layer < cache_->n_layers(); ++layer) {
        for (ggml_tensor* tensor : {cache_->keys(layer), cache_->values(layer)}) {
            cache_->read_rows(tensor, cells, out);
            out += cells.size() * tensor->nb[1];
        }
    }
    header.payload_checksum = checksum(data + sizeof header, header.payload_bytes);
    header.header_checksum = checksum(&header, offsetof(Header, header_checksum));
    std::memcpy(data, &header, sizeof header);
    return needed;
}

void LlamaSession::restore_state(int32_t sequence, const uint8_t* data, size_t size) {
    const uint32_t id = check_sequence(sequence);
    if (data == nullptr) throw Failure(ASSAY_INVALID, "there is no state to restore");
    const Header header = read_state_header<Header>(data, size, kMagic, kVersion);
    check_header(header, describe(model_, *cache_, header.n_cells), size);
    const uint8_t* in = data + sizeof header;
    if (header.payload_checksum != checksum(in, header.payload_bytes)) refuse("its contents are corrupt (checksum)");
    std::vector<int32_t> positions(header.n_cells);
    if (!positions.empty()) std::memcpy(positions.data(), in, positions.size() * sizeof(int32_t));
    for (size_t i = 0; i < positions.size(); ++i) {
        if (positions[i] < 0 || positions[i] >= INT32_MAX - 1 || (i > 0 && positions[i] <= positions[i - 1])) {
            refuse("its positions are not rising");
        }
    }
    // Everything that can fail comes before the sequence is touched.
    uint32_t n_own = 0;
    for (const Cache::Cell cell : cache_->find(id, 0, INT32_MAX)) n_own += cache_->sequences(cell).count() == 1 ? 1 : 0;
    const uint32_t n_free = cache_->n_free(cache_->stream_of(id)) + n_own;
    if (positions.size() > n_free) {
        throw Failure(ASSAY_FULL, "the state has " + std::to_string(positions.size()) + " cells, " +
                                      std::to_string(n_free) + " are free");
    }
    remove(sequence, 0, -1);
    const std::vector<Cache::Cell> cells = take_cells(id, positions);
    in += position_bytes(cells.size());
    for (uint32_t layer = 0; layer < cache_->n_layers(); ++layer) {
        for (ggml_tensor* tensor : {cache_->keys(layer), cache_->values(layer)}) {
            cache_->write_rows(tensor, cells, in);
            in += cells.size() * tensor->nb[1];
        }
    }
}

}  // namespace assay
