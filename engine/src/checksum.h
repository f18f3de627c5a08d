// CRC-64/XZ (ECMA-182 polynomial, reflected): detects corruption of saved states; not a signature.
#pragma once

#include <cstddef>
#include <cstdint>

namespace assay {

class Crc64 {
public:
    void update(const void* data, size_t size);
    uint64_t value() const { return ~state_; }

private:
    uint64_t state_ = ~UINT64_C(0);
};

}  // namespace assay
