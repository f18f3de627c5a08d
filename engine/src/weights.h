// Places the weights of a file on devices and owns their buffers.
//
// A weight stays in the mapping of the file unless another buffer type computes its operation faster: the
// accelerator for its layers, or one of the CPU's extra buffer types (each asked through supports_op).
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "devices.h"
#include "gguf_file.h"
#include "memory_plan.h"

namespace assay {

enum class WeightUse {
    product,  // left side of a matrix product
    experts,  // stack of matrices, of which each token uses some
    rows,     // rows are looked up by index
    vector,   // multiplied or added elementwise
};

class Weights {
public:
    Weights(const GgufFile& file, bool use_mmap);

    // Describes the tensor `name` for `use` on `device`. The shape must be exactly `shape`; a missing tensor is
    // Failure(ASSAY_FILE), or nullptr where it is optional.
    ggml_tensor* add(const std::string& name, std::initializer_list<int64_t> shape, WeightUse use,
                     ggml_backend_dev_t device, bool optional = false);
    // Two matrices with the same input that lie one after the other in the file, described as one with the rows of
    // both: one product instead of two, without a copy. nullptr where the file has another order or other types.
    ggml_tensor* add_joined(const std::string& first, const std::string& second, int64_t n_columns, int64_t n_first,
                            int64_t n_second, ggml_backend_dev_t device);
    // Names a tensor that the graph has no part of: its rows are read from the mapping.
    void leave_in_file(const std::string& name);
    // Allocates the buffers and fills them. Failure where a tensor of the file was never asked for: a weight
    // that the graph ignores would give other results in silence. With a plan nothing is allocated and read.
    void load(const std::string& architecture, MemoryPlan* plan);

    uint64_t n_parameters() const { return n_parameters_; }
    uint64_t bytes() const { return bytes_; }
    // Bytes of weights by buffer type name; "mapped" for those that stay in the file.
    const std::map<std::string, uint64_t>& placement() const { return placement_; }

private:
    struct Placed {
        uint64_t offset;
        uint64_t bytes;
        ggml_tensor* tensor;
    };
    struct Group {
        ggml_backend_buffer_type_t type = nullptr;  // nullptr: the mapping
        ContextHandle context;
        std::vector<Placed> placed;
        std::vector<BufferHandle> buffers;
    };

    const GgufTensor& need(const std::string& name, std::initializer_list<int64_t> shape, WeightUse use) const;
    ggml_tensor* place(const GgufTensor& source, WeightUse use, ggml_backend_dev_t device);
    ggml_backend_buffer_type_t choose(const GgufTensor& source, WeightUse use, ggml_backend_dev_t device) const;
    Group& group(ggml_backend_buffer_type_t type);
    void fill(Group& group, MemoryPlan* plan);

    const GgufFile& file_;
    bool use_mmap_;
    std::vector<Group> groups_;
    std::map<std::pair<std::string, ggml_backend_buffer_type_t>, ggml_tensor*> known_;
    std::set<std::string> asked_;
    std::map<std::string, uint64_t> placement_;
    uint64_t n_parameters_ = 0;
    uint64_t bytes_ = 0;
};

}  // namespace assay
