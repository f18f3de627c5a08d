// Checked reading of a model's metadata: the value, or a Failure that names the key and what is allowed.
#pragma once

#include <string>
#include <vector>

#include "gguf_file.h"

namespace assay {

class Keys {
public:
    // Names are looked up behind `prefix` ("llama.").
    Keys(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

    const GgufFile& file() const { return file_; }
    std::string full(const std::string& key) const { return prefix_ + key; }
    bool has(const std::string& key) const { return file_.has(full(key)); }
    uint32_t count(const std::string& key, uint64_t smallest, uint64_t largest) const;
    uint32_t count_or(const std::string& key, uint64_t smallest, uint64_t largest, uint32_t otherwise) const;
    // Finite and inside [smallest, largest].
    float real(const std::string& key, double smallest, double largest) const;
    float real_or(const std::string& key, double smallest, double largest, float otherwise) const;
    // At least `n` whole numbers inside [smallest, largest]; more are cut off.
    std::vector<int64_t> integers(const std::string& key, size_t n, int64_t smallest, int64_t largest) const;
    [[noreturn]] void refuse(const std::string& key, const std::string& what) const;

private:
    const GgufFile& file_;
    std::string prefix_;
};

}  // namespace assay
