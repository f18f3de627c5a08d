#include "checksum.h"

#include <array>
#include <bit>
#include <cstring>

namespace assay {
namespace {

constexpr uint64_t kPolynomial = UINT64_C(0xC96C5795D7870F42);

using Tables = std::array<std::array<uint64_t, 256>, 8>;

// Table k advances a byte that stands k bytes before the end of an eight-byte word, so that a word costs
// eight independent look-ups instead of eight dependent steps.
constexpr Tables make_tables() {
    Tables tables{};
    for (uint64_t byte = 0; byte < 256; ++byte) {
        uint64_t state = byte;
        for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? kPolynomial : 0);
        tables[0][byte] = state;
    }
    for (size_t k = 1; k < 8; ++k) {
        for (size_t byte = 0; byte < 256; ++byte) {
            const uint64_t previous = tables[k - 1][byte];
            tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xFF];
        }
    }
    return tables;
}

constexpr Tables kTables = make_tables();
static_assert(std::endian::native == std::endian::little, "the word step reads little-endian words");

}  // namespace

void Crc64::update(const void* data, size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    while (size >= 8) {
        uint64_t word = 0;
        std::memcpy(&word, bytes, 8);
        word ^= state_;
        uint64_t next = 0;
        for (size_t k = 0; k < 8; ++k) next ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
        state_ = next;
        bytes += 8;
        size -= 8;
    }
    for (; size > 0; --size, ++bytes) state_ = (state_ >> 8) ^ kTables[0][(state_ ^ *bytes) & 0xFF];
}

}  // namespace assay
