// A slot in a file: the token ids of its cells and the engine's state of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace assay::server {

struct SlotFile {
    std::vector<int32_t> tokens;
    std::string state;
};

// Written to a temporary name first: a file that exists is whole. Returns its bytes. Throws std::runtime_error.
uint64_t write_slot_file(const std::string& folder, const std::string& name, const SlotFile& slot);
// Throws std::runtime_error for a file that is missing, cut or changed.
SlotFile read_slot_file(const std::string& folder, const std::string& name, uint64_t* n_bytes);

}  // namespace assay::server
