#include "memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>

namespace assay::server {
namespace {

constexpr uint64_t least_cell_bytes = 36;

std::string read_text(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<uint64_t> number(std::string_view text) {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end != text.data() ? std::optional(value) : std::nullopt;  // "max" is none
}

// Of the control group that this process sees as the root, or of the one that it is in.
std::optional<uint64_t> left_in_group() {
    std::string folder = "/sys/fs/cgroup";
    const std::string groups = read_text("/proc/self/cgroup");
    if (const size_t at = groups.find("0::"); at != std::string::npos) {
        const std::string own = folder + groups.substr(at + 3, groups.find('\n', at) - at - 3);
        if (number(read_text(own + "/memory.max"))) folder = own;
    }
    for (const auto& [most, used] : {std::pair{"/memory.max", "/memory.current"},
                                     std::pair{"/memory/memory.limit_in_bytes", "/memory/memory.usage_in_bytes"}}) {
        const auto limit = number(read_text(folder + most));
        const auto now = number(read_text(folder + used));
        if (limit && now) return *limit - std::min(*limit, *now);
    }
    return std::nullopt;
}

std::string mebibytes(uint64_t bytes) { return std::to_string((bytes + (1U << 20U) - 1) >> 20U) + " MiB"; }

}  // namespace

std::optional<uint64_t> kilobytes_after(std::string_view text, std::string_view name) {
    size_t at = text.starts_with(name) ? 0 : text.find("\n" + std::string(name));
    if (at == std::string_view::npos) return std::nullopt;
    at = text.find_first_of("0123456789", at);
    if (at == std::string_view::npos) return std::nullopt;
    const auto value = number(text.substr(at));
    return value ? std::optional(*value << 10U) : std::nullopt;
}

AvailableMemory available_memory() {
    AvailableMemory found;
    const auto tighten = [&](std::optional<uint64_t> bytes, const char* limit) {
        if (!bytes || *bytes >= found.host_bytes) return;
        found.host_bytes = *bytes;
        found.limit = limit;
    };
    tighten(kilobytes_after(read_text("/proc/meminfo"), "MemAvailable:"), "free on this host");
    tighten(left_in_group(), "left to this control group");
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        const uint64_t used = kilobytes_after(read_text("/proc/self/status"), "VmSize:").value_or(0);
        found.address_space_bytes = limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, used);
    }
    return found;
}

std::optional<std::string> misfit(const assay_memory_plan& plan, const AvailableMemory& available, const ServerSettings& settings) {
    const uint64_t whole = plan.weight_bytes + plan.cache_bytes + plan.compute_bytes;
    const uint64_t host = whole - plan.device_bytes;
    uint64_t needed = host;
    uint64_t room = available.host_bytes;
    std::string limit = available.limit;
    if (plan.device_bytes > plan.device_free_bytes) {
        needed = plan.device_bytes;
        room = plan.device_free_bytes;
        limit = "free on the accelerator; or place fewer layers there (--n-gpu-layers)";
    } else if (available.address_space_bytes && host + plan.file_bytes > *available.address_space_bytes) {
        needed = host + plan.file_bytes;
        room = *available.address_space_bytes;
        limit = "left under this process's limit of address space (ulimit -v), in which the mapped file counts too";
    }
    if (needed <= room) return std::nullopt;
    std::string text = mebibytes(needed) + " are needed (weights " + mebibytes(plan.weight_bytes) + ", caches " +
                       mebibytes(plan.cache_bytes) + ", compute buffers " + mebibytes(plan.compute_bytes) + ") and " +
                       mebibytes(room) + " are " + limit + ": ";
    const uint64_t rest = needed - plan.cache_bytes;
    // Caches grow with the context, so that what fits follows.
    const uint64_t n_fitting = rest < room && plan.cache_bytes > 0 ? (room - rest) / (plan.cache_bytes / plan.n_ctx + 1) : 0;
    if (n_fitting >= 8) return text + "lower --ctx-size from " + std::to_string(plan.n_ctx) + " to " + std::to_string(n_fitting) +
                               (settings.n_slots > 1 ? ", or use fewer slots (--parallel)" : "");
    if (plan.compute_bytes > plan.cache_bytes) return text + "lower --ubatch-size from " + std::to_string(settings.n_ubatch);
    return text + "lower --ctx-size, --parallel and --ubatch-size, or use a smaller model";
}

std::optional<std::string> misfit_of_cells(uint32_t n_ctx, const AvailableMemory& available, const ServerSettings& settings) {
    const uint64_t n_cells = uint64_t{n_ctx} * (settings.kv_unified ? 1 : settings.n_slots);
    const uint64_t room = std::min(available.host_bytes, available.address_space_bytes.value_or(UINT64_MAX));
    if (n_cells * least_cell_bytes <= room) return std::nullopt;
    return std::to_string(n_cells) + " cells need more than the " + mebibytes(room) +
           " that are there: lower --ctx-size from " + std::to_string(n_ctx) +
           (settings.n_slots > 1 ? ", or use fewer slots (--parallel)" : "");
}

}  // namespace assay::server
