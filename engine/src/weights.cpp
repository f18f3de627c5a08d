#include "weights.h"

#include <algorithm>

#include "failure.h"
#include "probe.h"

namespace assay {
namespace {

std::string shape_text(const int64_t* ne, int n_dims) {
    std::string text = "[";
    for (int d = 0; d < n_dims; ++d) text += (d == 0 ? "" : ", ") + std::to_string(ne[d]);
    return text + "]";
}

// Asks the device whether it computes the operation of this weight when the weight lies in this buffer type.
bool supports(ggml_backend_dev_t device, ggml_backend_buffer_type_t type, const GgufTensor& source, WeightUse use) {
    const ContextHandle context = make_description_context(8);
    ggml_tensor* weight = ggml_new_tensor(context.get(), source.type, source.n_dims, source.ne);
    // supports_op looks at the buffer of the weight, so an empty one of the right type stands in for it.
    const BufferHandle stand_in(ggml_backend_buft_alloc_buffer(type, 0));
    if (!stand_in) return false;
    weight->buffer = stand_in.get();
    ggml_tensor* operation = nullptr;
    switch (use) {
        case WeightUse::product:
            operation = ggml_mul_mat(context.get(), weight,
                                     ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, source.ne[0], 512));
            break;
        case WeightUse::experts:
            operation = ggml_mul_mat_id(context.get(), weight,
                                        ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, source.ne[0], 1, 512),
                                        ggml_new_tensor_2d(context.get(), GGML_TYPE_I32, 1, 512));
            break;
        case WeightUse::rows:
            operation = ggml_get_rows(context.get(), weight, ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, 512));
            break;
        case WeightUse::vector:
            operation =
                ggml_mul(context.get(), ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, source.ne[0], 512), weight);
            break;
    }
    const bool is_supported = ggml_backend_dev_supports_op(device, operation);
    weight->buffer = nullptr;
    return is_supported;
}

}  // namespace

Weights::Weights(const GgufFile& file, bool use_mmap) : file_(file), use_mmap_(use_mmap) {}

ggml_backend_buffer_type_t Weights::choose(const GgufTensor& source, WeightUse use, ggml_backend_dev_t device) const {
    const Devices& all = devices();
    if (device != all.cpu) {
        ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device);
        if (supports(device, type, source, use)) return type;
    }
    if (use == WeightUse::product) {
        for (ggml_backend_buffer_type_t type : all.cpu_extra) {
            if (supports(all.cpu, type, source, use) && product_works(type, source.type)) return type;
        }
    }
    return use_mmap_ ? nullptr : ggml_backend_dev_buffer_type(all.cpu);
}

Weights::Group& Weights::group(ggml_backend_buffer_type_t type) {
    for (Group& known : groups_) {
        if (known.type == type) return known;
    }
    Group fresh;
    fresh.type = type;
    fresh.context = make_description_context(file_.tensors().size() * 2 + 8);
    groups_.push_back(std::move(fresh));
    return groups_.back();
}

const GgufTensor& Weights::need(const std::string& name, std::initializer_list<int64_t> shape, WeightUse use) const {
    const GgufTensor* source = file_.find_tensor(name);
    if (source == nullptr) throw Failure(ASSAY_FILE, "the model lacks the tensor '" + name + "'");
    int64_t needed[4] = {1, 1, 1, 1};
    std::copy(shape.begin(), shape.end(), needed);
    if (!std::equal(needed, needed + 4, source->ne)) {
        throw Failure(ASSAY_FILE, "tensor '" + name + "' has the shape " + shape_text(source->ne, source->n_dims) +
                                      ", " + shape_text(needed, static_cast<int>(shape.size())) + " is needed");
    }
    if (use == WeightUse::vector && source->type != GGML_TYPE_F32) {
        throw Failure(ASSAY_UNSUPPORTED, "tensor '" + name + "' has the type " + ggml_type_name(source->type) +
                                             ", f32 is needed for norms and biases");
    }
    if (source->type != GGML_TYPE_F32 && ggml_get_type_traits(source->type)->to_float == nullptr) {
        throw Failure(ASSAY_UNSUPPORTED, "tensor '" + name + "' has the type " + ggml_type_name(source->type) +
                                             ", which the ggml in use cannot read as weights");
    }
    return *source;
}

ggml_tensor* Weights::place(const GgufTensor& source, WeightUse use, ggml_backend_dev_t device) {
    ggml_backend_buffer_type_t type = choose(source, use, device);
    // Tied weights are described twice; where both uses choose the same buffer they share one tensor.
    ggml_tensor*& known = known_[{source.name, type}];
    if (known == nullptr) {
        Group& home = group(type);
        known = ggml_new_tensor(home.context.get(), source.type, source.n_dims, source.ne);
        ggml_set_name(known, source.name.c_str());
        home.placed.push_back({source.offset, source.bytes, known});
    }
    return known;
}

ggml_tensor* Weights::add(const std::string& name, std::initializer_list<int64_t> shape, WeightUse use,
                          ggml_backend_dev_t device, bool optional) {
    if (optional && file_.find_tensor(name) == nullptr) return nullptr;
    const GgufTensor& source = need(name, shape, use);
    asked_.insert(name);
    return place(source, use, device);
}

ggml_tensor* Weights::add_joined(const std::string& first, const std::string& second, int64_t n_columns,
                                 int64_t n_first, int64_t n_second, ggml_backend_dev_t device) {
    const GgufTensor& a = need(first, {n_columns, n_first}, WeightUse::product);
    const GgufTensor& b = need(second, {n_columns, n_second}, WeightUse::product);
    if (a.type != b.type || a.offset + a.bytes != b.offset) return nullptr;
    GgufTensor joined = a;
    joined.name = first + "+";
    joined.ne[1] = n_first + n_second;
    joined.bytes = a.bytes + b.bytes;
    asked_.insert(first);
    asked_.insert(second);
    return place(joined, WeightUse::product, device);
}

void Weights::leave_in_file(const std::string& name) {
    const GgufTensor* source = file_.find_tensor(name);
    if (source->type != GGML_TYPE_F32 && ggml_get_type_traits(source->type)->to_float == nullptr) {
        throw Failure(ASSAY_UNSUPPORTED, "tensor '" + name + "' has the type " + ggml_type_name(source->type) +
                                             ", which the ggml in use cannot read as weights");
    }
    asked_.insert(name);
    placement_["in file"] += source->bytes;
}

void Weights::load(const std::string& architecture, MemoryPlan* plan) {
    for (const GgufTensor& tensor : file_.tensors()) {
        if (!asked_.contains(tensor.name)) {
            throw Failure(ASSAY_UNSUPPORTED, "tensor '" + tensor.name + "' is not part of the architecture '" +
                                                 architecture + "' as this engine computes it");
        }
        uint64_t n_elements = 1;
        for (const int64_t size : tensor.ne) n_elements *= static_cast<uint64_t>(size);
        n_parameters_ += n_elements;
        bytes_ += tensor.bytes;
    }
    for (Group& group : groups_) fill(group, plan);
}

void Weights::fill(Group& group, MemoryPlan* plan) {
    const FileMapping& mapping = file_.mapping();
    if (group.type == nullptr) {
        // One buffer over the whole mapping: ggml wants the buffer aligned, not the tensors in it.
        group.buffers.emplace_back(
            ggml_backend_cpu_buffer_from_ptr(const_cast<uint8_t*>(mapping.data()), mapping.size()));
        if (!group.buffers.back()) throw Failure(ASSAY_MEMORY, "cannot make a buffer over the mapped model");
        for (const Placed& item : group.placed) {
            ggml_backend_tensor_alloc(group.buffers.back().get(), item.tensor,
                                      const_cast<uint8_t*>(mapping.data()) + item.offset);
            placement_["mapped"] += item.bytes;
        }
    } else {
        group.buffers.push_back(allocate_tensors(group.context.get(), group.type, plan));
        if (!group.buffers.back()) {
            throw Failure(ASSAY_MEMORY, std::string("cannot allocate the weights in ") +
                                            ggml_backend_buft_name(group.type) + " memory: " + take_ggml_error());
        }
        for (const Placed& item : group.placed) {
            if (plan != nullptr) break;
            ggml_backend_tensor_set(item.tensor, mapping.data() + item.offset, 0, item.bytes);
            placement_[ggml_backend_buft_name(group.type)] += item.bytes;
            // The copy is the one in use: without this the model would be resident twice.
            mapping.drop(item.offset, item.bytes);
        }
    }
    for (const BufferHandle& buffer : group.buffers) {
        ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
}

}  // namespace assay
