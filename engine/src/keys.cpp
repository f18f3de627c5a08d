#include "keys.h"

#include <cmath>

#include "failure.h"

namespace assay {

void Keys::refuse(const std::string& key, const std::string& what) const {
    throw Failure(ASSAY_FILE, "key '" + full(key) + "' " + what);
}

uint32_t Keys::count(const std::string& key, uint64_t smallest, uint64_t largest) const {
    const auto value = file_.unsigned_value(full(key));
    if (!value) throw Failure(ASSAY_FILE, "the model lacks the key '" + full(key) + "'");
    if (*value < smallest || *value > largest) {
        refuse(key, "is " + std::to_string(*value) + ", " + std::to_string(smallest) + " to " +
                        std::to_string(largest) + " is allowed");
    }
    return static_cast<uint32_t>(*value);
}

uint32_t Keys::count_or(const std::string& key, uint64_t smallest, uint64_t largest, uint32_t otherwise) const {
    return has(key) ? count(key, smallest, largest) : otherwise;
}

float Keys::real(const std::string& key, double smallest, double largest) const {
    const auto value = file_.real_value(full(key));
    if (!value) throw Failure(ASSAY_FILE, "the model lacks the key '" + full(key) + "'");
    if (!std::isfinite(*value) || *value < smallest || *value > largest) refuse(key, "is no number of a useful size");
    return static_cast<float>(*value);
}

float Keys::real_or(const std::string& key, double smallest, double largest, float otherwise) const {
    return has(key) ? real(key, smallest, largest) : otherwise;
}

std::vector<int64_t> Keys::integers(const std::string& key, size_t n, int64_t smallest, int64_t largest) const {
    auto values = file_.integer_array(full(key));
    if (!values) throw Failure(ASSAY_FILE, "the model lacks the key '" + full(key) + "'");
    if (values->size() < n) {
        refuse(key, "has " + std::to_string(values->size()) + " entries, " + std::to_string(n) + " are needed");
    }
    values->resize(n);
    for (const int64_t value : *values) {
        if (value < smallest || value > largest) {
            refuse(key, "holds " + std::to_string(value) + ", " + std::to_string(smallest) + " to " +
                            std::to_string(largest) + " is allowed");
        }
    }
    return *values;
}

}  // namespace assay
