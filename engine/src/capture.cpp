#include "capture.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "failure.h"

namespace assay {

void Capture::start(const std::string& names, uint64_t max_bytes) {
    std::vector<std::string> patterns;
    std::istringstream in(names);
    for (std::string name; std::getline(in, name, ',');) {
        if (!name.empty()) patterns.push_back(name);
    }
    if (patterns.empty()) throw Failure(ASSAY_INVALID, "there is no name of a tensor to capture");
    patterns_ = std::move(patterns);
    max_bytes_ = max_bytes;
    clear();
}

void Capture::stop() {
    patterns_.clear();
    clear();
}

bool Capture::wants(const std::string& name) const {
    return std::any_of(patterns_.begin(), patterns_.end(), [&](const std::string& pattern) {
        if (pattern.back() != '*') return pattern == name;
        return name.compare(0, pattern.size() - 1, pattern, 0, pattern.size() - 1) == 0;
    });
}

void Capture::clear() {
    entries_.clear();
    n_bytes_ = 0;
    ubatch_ = 0;
}

Capture::Entry& Capture::open(const std::string& name, assay_capture_type type, uint64_t size_bytes) {
    entries_.push_back({name, type, ubatch_, {1, 1, 1, 1}, size_bytes, {}});
    Entry& entry = entries_.back();
    if (size_bytes <= max_bytes_ - n_bytes_) {
        entry.data.resize(size_bytes);
        n_bytes_ += size_bytes;
    }
    return entry;
}

void Capture::add(const std::string& name, const ggml_tensor* tensor) {
    Entry& entry =
        open(name, tensor->type == GGML_TYPE_I32 ? ASSAY_CAPTURE_I32 : ASSAY_CAPTURE_F32, ggml_nbytes(tensor));
    std::copy(tensor->ne, tensor->ne + 4, entry.shape);
    if (!entry.data.empty()) ggml_backend_tensor_get(tensor, entry.data.data(), 0, entry.size_bytes);
}

void Capture::add(const std::string& name, const std::vector<uint64_t>& numbers, int64_t width) {
    Entry& entry = open(name, ASSAY_CAPTURE_I64, numbers.size() * sizeof(uint64_t));
    entry.shape[0] = width;
    entry.shape[1] = static_cast<int64_t>(numbers.size()) / width;
    if (!entry.data.empty()) std::memcpy(entry.data.data(), numbers.data(), entry.size_bytes);
}

}  // namespace assay
