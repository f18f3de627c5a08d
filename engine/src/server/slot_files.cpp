#include "slot_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string_view>

namespace assay::server {
namespace {

// Layout, little-endian: magic, u64 tokens, u64 state bytes, the tokens (i32), the state, u64 checksum of all before.
constexpr std::string_view magic = "ASSAYSL1";
constexpr size_t head_bytes = 8 + 8 + 8;
constexpr size_t tail_bytes = 8;

// FNV-1a, 64 bits: against damage, not against malice.
uint64_t checksum(std::string_view bytes) {
    uint64_t sum = 0xCBF29CE484222325U;
    for (const char byte : bytes) {
        sum ^= static_cast<unsigned char>(byte);
        sum *= 0x100000001B3U;
    }
    return sum;
}

void append(std::string& out, uint64_t number) { out.append(reinterpret_cast<const char*>(&number), sizeof number); }

uint64_t number_at(std::string_view bytes, size_t offset) {
    uint64_t number = 0;
    std::memcpy(&number, bytes.data() + offset, sizeof number);
    return number;
}

[[noreturn]] void fail(const std::string& name, const std::string& problem) { throw std::runtime_error("'" + name + "': " + problem); }

struct Descriptor {
    int number;
    ~Descriptor() {
        if (number >= 0) close(number);
    }
};

}  // namespace

uint64_t write_slot_file(const std::string& folder, const std::string& name, const SlotFile& slot) {
    std::string bytes(magic);
    append(bytes, slot.tokens.size());
    append(bytes, slot.state.size());
    bytes.append(reinterpret_cast<const char*>(slot.tokens.data()), slot.tokens.size() * sizeof(int32_t));
    bytes += slot.state;
    append(bytes, checksum(bytes));

    const std::string path = folder + "/" + name;
    const std::string partial = folder + "/." + name + ".partial";
    {
        const Descriptor file{open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600)};
        if (file.number < 0) fail(name, std::strerror(errno));
        for (size_t done = 0; done < bytes.size();) {
            const ssize_t n = write(file.number, bytes.data() + done, bytes.size() - done);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) {
                const int reason = errno;
                unlink(partial.c_str());
                fail(name, std::strerror(reason));
            }
            done += static_cast<size_t>(n);
        }
    }
    if (rename(partial.c_str(), path.c_str()) != 0) fail(name, std::strerror(errno));
    return bytes.size();
}

SlotFile read_slot_file(const std::string& folder, const std::string& name, uint64_t* n_bytes) {
    const std::string path = folder + "/" + name;
    // Opening a pipe would wait for its writer otherwise, and every request with it.
    const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
    if (file.number < 0) fail(name, std::strerror(errno));
    struct stat status {};
    if (fstat(file.number, &status) != 0 || !S_ISREG(status.st_mode)) fail(name, "is not a regular file");
    std::string bytes(static_cast<size_t>(status.st_size), '\0');
    for (size_t done = 0; done < bytes.size();) {
        const ssize_t n = read(file.number, bytes.data() + done, bytes.size() - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail(name, "could not be read to its end");
        done += static_cast<size_t>(n);
    }
    const std::string_view view(bytes);
    if (view.size() < head_bytes + tail_bytes || !view.starts_with(magic)) fail(name, "is not a saved slot");
    const uint64_t n_tokens = number_at(view, 8);
    const uint64_t n_state = number_at(view, 16);
    const uint64_t n_payload = view.size() - head_bytes - tail_bytes;
    const bool is_whole = n_tokens <= n_payload / sizeof(int32_t) && n_state == n_payload - n_tokens * sizeof(int32_t) &&
                          checksum(view.substr(0, view.size() - tail_bytes)) == number_at(view, view.size() - tail_bytes);
    if (!is_whole) fail(name, "is damaged");
    SlotFile slot;
    slot.tokens.resize(n_tokens);
    if (n_tokens > 0) std::memcpy(slot.tokens.data(), view.data() + head_bytes, n_tokens * sizeof(int32_t));
    slot.state = view.substr(head_bytes + n_tokens * sizeof(int32_t), n_state);
    if (n_bytes != nullptr) *n_bytes = bytes.size();
    return slot;
}

}  // namespace assay::server
