// What the saved states of every model family share: how a header is believed before anything behind it is read.
//
// A Header is plain data that begins with magic[8], version and header_bytes, and ends with header_checksum of all
// bytes before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "checksum.h"
#include "failure.h"

namespace assay {

inline uint64_t checksum(const void* data, size_t size) {
    Crc64 crc;
    crc.update(data, size);
    return crc.value();
}

[[noreturn]] inline void refuse(const std::string& what) {
    throw Failure(ASSAY_FILE, "cannot restore the state: " + what);
}

// The header at the beginning of a state. Throws Failure where it is none of this magic and version, or corrupt.
template <class Header>
Header read_state_header(const uint8_t* data, size_t size, const char (&magic)[8], uint32_t version) {
    Header header;
    if (size < sizeof header)
        refuse("it has " + std::to_string(size) + " bytes, its header alone has " + std::to_string(sizeof header));
    std::memcpy(&header, data, sizeof header);
    if (std::memcmp(header.magic, magic, sizeof magic) != 0)
        refuse("it is not a saved sequence of this engine and model family");
    if (header.version != version || header.header_bytes != sizeof(Header)) {
        refuse("it has version " + std::to_string(header.version) + ", this engine reads version " +
               std::to_string(version));
    }
    if (header.header_checksum != checksum(data, offsetof(Header, header_checksum)))
        refuse("its header is corrupt (checksum)");
    return header;
}

}  // namespace assay
