// The checksum of saved states has the published check value and does not depend on how data is cut.
#include "checksum.h"

#include "core_check.h"

int main() {
    assay::Crc64 empty;
    CHECK_EQUAL(empty.value(), UINT64_C(0));
    assay::Crc64 digits;
    digits.update("123456789", 9);
    CHECK_EQUAL(digits.value(), UINT64_C(0x995DC9BBDF1939FA));  // "CRC-64/XZ" in the catalogue of parametrised CRCs

    std::string text;
    for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
    assay::Crc64 whole;
    whole.update(text.data(), text.size());
    for (size_t cut = 0; cut <= text.size(); ++cut) {
        assay::Crc64 parts;
        parts.update(text.data(), cut);
        parts.update(text.data() + cut, text.size() - cut);
        CHECK_EQUAL(parts.value(), whole.value());
    }
    for (size_t byte = 0; byte < text.size(); ++byte) {
        std::string changed = text;
        changed[byte] = static_cast<char>(changed[byte] ^ 1);
        assay::Crc64 other;
        other.update(changed.data(), changed.size());
        CHECK(other.value() != whole.value());
    }
    return core::finish("core_checksum");
}
