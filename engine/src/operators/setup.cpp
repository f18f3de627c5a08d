#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "failure.h"
#include "operators/case.h"

namespace assay::operators {
namespace {

constexpr size_t kTensors = 512;
constexpr int64_t kBlocks = 16;
constexpr int kPlantedReals = 24;  // tries before integers are changed

size_t count(const Shape& shape) { return static_cast<size_t>(shape[0] * shape[1] * shape[2] * shape[3]); }

// Writing these takes ggml seconds of preparation, and every pattern of bits is one of their blocks.
bool is_any_pattern_valid(ggml_type type) {
    switch (type) {
        case GGML_TYPE_IQ1_S:
        case GGML_TYPE_IQ1_M:
        case GGML_TYPE_IQ2_XXS:
        case GGML_TYPE_IQ2_XS:
        case GGML_TYPE_IQ2_S:
        case GGML_TYPE_IQ3_XXS:
        case GGML_TYPE_IQ3_S: return true;
        default: return false;
    }
}

// Random bits until the numbers are of ordinary size: the scale is among the bits.
void draw_blocks(ggml_type type, std::vector<uint8_t>& bytes) {
    const auto n = static_cast<size_t>(ggml_blck_size(type));
    const size_t size = ggml_type_size(type);
    uint64_t draw = UINT64_C(1) << 60U;
    for (size_t at = 0; at < bytes.size(); at += size) {
        double most = 0.0;
        do {
            for (size_t i = 0; i < size; ++i) bytes[at + i] = static_cast<uint8_t>((made_up(draw++) + 1.0) * 128.0);
            most = 0.0;
            for (const double value : decode(type, bytes.data() + at, n))
                most = std::max(most, std::isfinite(value) ? std::fabs(value) : static_cast<double>(INFINITY));
        } while (!(most > 0.5 && most < 2.0));
    }
}

// Blocks of a quantised type, of which matrices are put together. Throws NotRun where ggml cannot write the type.
const std::vector<uint8_t>& blocks_of(ggml_type type) {
    static std::map<ggml_type, std::vector<uint8_t>> known;
    std::vector<uint8_t>& blocks = known[type];
    if (!blocks.empty()) return blocks;
    const int64_t n = ggml_blck_size(type) * kBlocks;
    std::vector<uint8_t> bytes(ggml_row_size(type, n));
    if (is_any_pattern_valid(type)) {
        draw_blocks(type, bytes);
    } else {
        std::vector<float> numbers(static_cast<size_t>(n));
        for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(made_up(i));
        if (ggml_quantize_chunk(type, numbers.data(), bytes.data(), 0, 1, n, nullptr) != bytes.size())
            throw NotRun(std::string("the ggml in use cannot write ") + ggml_type_name(type));
    }
    return blocks = bytes;
}

bool is_real(ggml_type type) { return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16; }

}  // namespace

double made_up(uint64_t i) {
    uint64_t z = (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30U)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27U)) * UINT64_C(0x94D049BB133111EB);
    return static_cast<double>(static_cast<int64_t>(z ^ (z >> 31U))) / 9223372036854775808.0;
}

Rows each(std::function<Element(int64_t, int64_t, int64_t, int64_t)> element) {
    return [element = std::move(element)](int64_t i1, int64_t i2, int64_t i3, std::span<Element> row) {
        for (size_t i = 0; i < row.size(); ++i) row[i] = element(static_cast<int64_t>(i), i1, i2, i3);
    };
}

std::vector<double> decode(ggml_type type, const uint8_t* bytes, size_t n) {
    std::vector<double> values(n);
    const auto copy = [&](auto sample) {
        using Number = decltype(sample);
        for (size_t i = 0; i < n; ++i) {
            std::memcpy(&sample, bytes + i * sizeof(Number), sizeof(Number));
            values[i] = static_cast<double>(sample);
        }
    };
    if (type == GGML_TYPE_F32) {
        copy(0.0F);
    } else if (type == GGML_TYPE_I32) {
        copy(int32_t{0});
    } else if (type == GGML_TYPE_I64) {
        copy(int64_t{0});
    } else {
        std::vector<float> reals(n);
        ggml_get_type_traits(type)->to_float(bytes, reals.data(), static_cast<int64_t>(n));
        std::copy(reals.begin(), reals.end(), values.begin());
    }
    return values;
}

Numbers::Numbers(const std::vector<double>& values, const ggml_tensor* tensor) {
    const size_t size = ggml_type_size(tensor->type);
    const auto block = static_cast<size_t>(ggml_blck_size(tensor->type));
    values_ = values.data() + tensor->view_offs / size * block;
    for (int d = 0; d < 4; ++d) step_[d] = static_cast<int64_t>(tensor->nb[d] / size * block);
    if (block > 1) step_[0] = 1;
}

Setup::Setup(const Place& place)
    : place_(place),
      context_(ggml_init({kTensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(kTensors, false), nullptr, true})),
      weight_context_(make_description_context(8)) {
    if (!context_) throw Failure(ASSAY_MEMORY, "cannot describe a graph");
}

ggml_tensor* Setup::hold(ggml_context* context, ggml_type type, Shape shape, std::vector<uint8_t> bytes) {
    ggml_tensor* tensor = ggml_new_tensor_4d(context, type, shape[0], shape[1], shape[2], shape[3]);
    std::vector<double> values = decode(type, bytes.data(), count(shape));
    held_.push_back(std::make_unique<Held>(Held{tensor, std::move(bytes), std::move(values)}));
    return tensor;
}

ggml_tensor* Setup::encode(ggml_context* context, ggml_type type, Shape shape, const std::vector<float>& numbers) {
    std::vector<uint8_t> bytes(numbers.size() * ggml_type_size(type));
    if (type == GGML_TYPE_F32)
        std::memcpy(bytes.data(), numbers.data(), bytes.size());
    else if (const auto n = static_cast<int64_t>(numbers.size());
             ggml_quantize_chunk(type, numbers.data(), bytes.data(), 0, 1, n, nullptr) != bytes.size())
        throw NotRun(std::string("the ggml in use cannot write ") + ggml_type_name(type));
    return hold(context, type, shape, std::move(bytes));
}

ggml_tensor* Setup::quantised(ggml_context* context, ggml_type type, Shape shape) {
    const std::vector<uint8_t>& blocks = blocks_of(type);
    const size_t size = ggml_type_size(type);
    std::vector<uint8_t> bytes(ggml_row_size(type, shape[0]) * static_cast<size_t>(shape[1] * shape[2] * shape[3]));
    const uint64_t seed = seed_++ << 40U;
    for (size_t i = 0; i * size < bytes.size(); ++i) {
        const auto which = static_cast<size_t>((made_up(seed | i) + 1.0) * 0.5 * kBlocks) % kBlocks;
        std::memcpy(bytes.data() + i * size, blocks.data() + which * size, size);
    }
    return hold(context, type, shape, std::move(bytes));
}

ggml_tensor* Setup::reals_of(Shape shape, const std::function<double(size_t)>& number, ggml_type type) {
    std::vector<float> numbers(count(shape));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(number(i));
    return encode(context_.get(), type, shape, numbers);
}

ggml_tensor* Setup::reals(Shape shape, double scale, ggml_type type) {
    if (ggml_is_quantized(type)) return quantised(context_.get(), type, shape);
    const uint64_t seed = seed_++ << 40U;
    return reals_of(shape, [=](size_t i) { return scale * made_up(seed | i); }, type);
}

ggml_tensor* Setup::weight(ggml_type type, Shape shape) {
    ggml_context* context = place_.weights == nullptr ? context_.get() : weight_context_.get();
    if (ggml_is_quantized(type)) return quantised(context, type, shape);
    const uint64_t seed = seed_++ << 40U;
    std::vector<float> numbers(count(shape));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(made_up(seed | i));
    return encode(context, type, shape, numbers);
}

ggml_tensor* Setup::integers(ggml_type type, Shape shape, const std::function<int64_t(size_t)>& number) {
    std::vector<uint8_t> bytes(count(shape) * ggml_type_size(type));
    for (size_t i = 0; i < count(shape); ++i) {
        const int64_t wide = number(i);
        const auto narrow = static_cast<int32_t>(wide);
        if (type == GGML_TYPE_I64)
            std::memcpy(bytes.data() + i * sizeof wide, &wide, sizeof wide);
        else
            std::memcpy(bytes.data() + i * sizeof narrow, &narrow, sizeof narrow);
    }
    return hold(context_.get(), type, shape, std::move(bytes));
}

ggml_tensor* Setup::indices(Shape shape, int64_t limit) {
    const uint64_t seed = seed_++ << 40U;
    return integers(GGML_TYPE_I32, shape, [=](size_t i) {
        return std::min(limit - 1, static_cast<int64_t>((made_up(seed | i) + 1.0) / 2.0 * static_cast<double>(limit)));
    });
}

Numbers Setup::numbers(const ggml_tensor* tensor) const {
    const ggml_tensor* origin = tensor->view_src == nullptr ? tensor : tensor->view_src;
    for (const auto& held : held_) {
        if (held->tensor == origin) return {held->values, tensor};
    }
    throw std::logic_error("a reference asks for numbers that are no input");
}

// Changes one number so that signs, orders and magnitudes change: of the first reals, singles before halves, then of the last
// integers. References keep the old one.
void Setup::plant(int which) {
    const auto has_size = [](double v) { return v != 0.0 && std::isfinite(v); };
    Held* reals = nullptr;
    Held* integers = nullptr;
    for (const auto& held : held_) {
        const ggml_type type = held->tensor->type;
        if (type == GGML_TYPE_I32 || type == GGML_TYPE_I64) integers = held.get();
        if (!is_real(type) || std::none_of(held->values.begin(), held->values.end(), has_size)) continue;
        if (reals == nullptr || (reals->tensor->type != GGML_TYPE_F32 && type == GGML_TYPE_F32)) reals = held.get();
    }
    if (reals != nullptr && (which < kPlantedReals || integers == nullptr))
        plant_real(*reals, which);
    else if (integers != nullptr)
        plant_integer(*integers, which % kPlantedReals);
}

void Setup::plant_real(Held& target, int which) {
    std::vector<size_t> order(target.values.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto size_of = [&](size_t i) { return std::isfinite(target.values[i]) ? std::fabs(target.values[i]) : 0.0; };
    const auto nth = order.begin() + std::min<ptrdiff_t>(which, static_cast<ptrdiff_t>(order.size()) - 1);
    std::nth_element(order.begin(), nth, order.end(), [&](size_t a, size_t b) { return size_of(a) > size_of(b); });
    const auto changed = static_cast<float>(-2.0 * target.values[*nth]);
    const size_t size = ggml_type_size(target.tensor->type);
    if (target.tensor->type == GGML_TYPE_F32)
        std::memcpy(target.bytes.data() + *nth * size, &changed, size);
    else
        ggml_quantize_chunk(target.tensor->type, &changed, target.bytes.data() + *nth * size, 0, 1, 1, nullptr);
}

void Setup::plant_integer(Held& target, int which) {
    const size_t at = static_cast<size_t>(which) % target.values.size();
    const auto changed = static_cast<int64_t>(target.values[at] > 0.0 ? target.values[at] - 1.0 : target.values[at] + 1.0);
    // The low bytes come first on every host that ggml's files are for.
    std::memcpy(target.bytes.data() + at * ggml_type_size(target.tensor->type), &changed, ggml_type_size(target.tensor->type));
}

std::vector<double> Setup::compute(ggml_tensor* out, int planted) {
    ggml_cgraph* graph = ggml_new_graph_custom(context_.get(), kTensors, false);
    ggml_build_forward_expand(graph, out);
    BufferHandle weight_buffer;
    if (place_.weights != nullptr) {
        weight_buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(weight_context_.get(), place_.weights));
        if (!weight_buffer) throw Failure(ASSAY_MEMORY, "cannot allocate the weights: " + take_ggml_error());
        ggml_backend_buffer_set_usage(weight_buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor* node = ggml_graph_node(graph, i);
        if (!ggml_backend_supports_op(place_.backend, node))
            throw NotRun(std::string(ggml_backend_name(place_.backend)) + " has no kernel for " + ggml_op_desc(node));
    }
    const BufferHandle buffer(ggml_backend_alloc_ctx_tensors(context_.get(), place_.backend));
    if (!buffer) throw Failure(ASSAY_MEMORY, "cannot allocate the tensors: " + take_ggml_error());
    // What a kernel leaves out must not look right by chance: all bits set are NaN. Not the whole buffer: back ends keep zeros
    // behind the rows of quantised inputs.
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        ggml_tensor* node = ggml_graph_node(graph, i);
        if (node->view_src == nullptr) ggml_backend_tensor_memset(node, 0xFF, 0, ggml_nbytes(node));
    }
    if (planted >= 0) plant(planted);
    for (const auto& held : held_) ggml_backend_tensor_set(held->tensor, held->bytes.data(), 0, held->bytes.size());
    if (ggml_backend_graph_compute(place_.backend, graph) != GGML_STATUS_SUCCESS)
        throw Failure(ASSAY_INTERNAL, "the back end failed: " + take_ggml_error());
    std::vector<uint8_t> bytes(ggml_nbytes(out));
    ggml_backend_tensor_get(out, bytes.data(), 0, bytes.size());
    std::vector<double> found = decode(out->type, bytes.data(), static_cast<size_t>(ggml_nelements(out)));
    // Without inputs only the result is left to be wrong.
    if (planted >= 0 && held_.empty()) found.front() += 1.0;
    return found;
}

}  // namespace assay::operators
