// Whether a model and its session fit into the memory that this process may take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine.h"
#include "settings.h"

namespace assay::server {

// The tightest of the limits of the host, of the control group and of the process, in bytes from now on.
struct AvailableMemory {
    uint64_t host_bytes = UINT64_MAX;
    std::string limit;                           // what it is that ends there
    std::optional<uint64_t> address_space_bytes; // of RLIMIT_AS, in which mapped files count too
};
AvailableMemory available_memory();
// A number behind `name` in a text of lines such as "MemAvailable:  123 kB", in bytes.
std::optional<uint64_t> kilobytes_after(std::string_view text, std::string_view name);

// Nothing where it fits; else what does not, and the setting to change.
std::optional<std::string> misfit(const assay_memory_plan& plan, const AvailableMemory& available, const ServerSettings& settings);
// The same before there is a plan: each cell has a host record of its position and owners.
std::optional<std::string> misfit_of_cells(uint32_t n_ctx, const AvailableMemory& available, const ServerSettings& settings);

}  // namespace assay::server
