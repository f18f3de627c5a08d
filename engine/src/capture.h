// Named internal tensors of a step, copied out for comparison.
#pragma once

#include <string>
#include <vector>

#include "engine.h"
#include "ggml-backend.h"

namespace assay {

class Capture {
public:
    struct Entry {
        std::string name;
        assay_capture_type type;
        uint32_t ubatch;
        int64_t shape[4];
        uint64_t size_bytes;
        std::vector<uint8_t> data;  // empty where the limit was reached
    };

    // names: comma separated; a trailing '*' stands for any end. Throws Failure for none.
    void start(const std::string& names, uint64_t max_bytes);
    void stop();
    bool is_on() const { return !patterns_.empty(); }
    bool wants(const std::string& name) const;

    // A new decode: what was captured before is gone.
    void clear();
    void next_ubatch() { ++ubatch_; }
    void add(const std::string& name, const ggml_tensor* tensor);
    void add(const std::string& name, const std::vector<uint64_t>& numbers, int64_t width);
    const std::vector<Entry>& entries() const { return entries_; }

private:
    Entry& open(const std::string& name, assay_capture_type type, uint64_t size_bytes);

    std::vector<std::string> patterns_;
    uint64_t max_bytes_ = 0;
    uint64_t n_bytes_ = 0;
    uint32_t ubatch_ = 0;
    std::vector<Entry> entries_;
};

}  // namespace assay
