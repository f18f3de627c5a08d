// One operator of the engine's graphs over made-up numbers: the graph, and what must come of it in double precision.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "devices.h"

namespace assay::operators {

// Where a case is computed.
struct Place {
    ggml_backend_t backend = nullptr;
    bool is_gpu = false;
    ggml_backend_buffer_type_t weights = nullptr;  // for matrices of weights; nullptr: that of the back end
};

// A number that a graph must give, and how far it may be off.
struct Element {
    double value = 0.0;
    double tolerance = 0.0;  // 0: every bit of the number counts
};

// Fills row (i1, i2, i3) of the result.
using Rows = std::function<void(int64_t i1, int64_t i2, int64_t i3, std::span<Element> row)>;

struct Expected {
    ggml_tensor* out = nullptr;
    Rows rows;
};

// Thrown by a case that this place cannot have; the text says why.
class NotRun : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

using Shape = std::array<int64_t, 4>;

// Numbers of an input or of a view of one, as the kernels must see them.
class Numbers {
public:
    Numbers(const std::vector<double>& values, const ggml_tensor* tensor);
    double operator()(int64_t i0, int64_t i1 = 0, int64_t i2 = 0, int64_t i3 = 0) const {
        return values_[i0 * step_[0] + i1 * step_[1] + i2 * step_[2] + i3 * step_[3]];
    }

private:
    const double* values_;
    int64_t step_[4];
};

// Inputs and nodes of one case. Numbers are the same on every host.
class Setup {
public:
    explicit Setup(const Place& place);
    ggml_context* context() const { return context_.get(); }
    bool is_gpu() const { return place_.is_gpu; }

    // Between -scale and scale; between -1 and 1 in quantised types. Throws NotRun where ggml cannot write the type.
    ggml_tensor* reals(Shape shape, double scale = 1.0, ggml_type type = GGML_TYPE_F32);
    ggml_tensor* reals_of(Shape shape, const std::function<double(size_t)>& number, ggml_type type = GGML_TYPE_F32);
    // A matrix that a model would bring, in the place's buffer of weights. Throws NotRun where the type cannot be made.
    ggml_tensor* weight(ggml_type type, Shape shape);
    // I32 or I64.
    ggml_tensor* integers(ggml_type type, Shape shape, const std::function<int64_t(size_t)>& number);
    // Integers below `limit`, in an order that looks random, with repetitions.
    ggml_tensor* indices(Shape shape, int64_t limit);
    Numbers numbers(const ggml_tensor* tensor) const;

    // Computes and reads the result. Throws NotRun where the back end has no kernel, Failure where it fails. `planted`:
    // which number of the inputs is changed behind the reference's back, by magnitude; -1 is none.
    std::vector<double> compute(ggml_tensor* out, int planted);

private:
    struct Held {
        ggml_tensor* tensor;
        std::vector<uint8_t> bytes;
        std::vector<double> values;
    };
    ggml_tensor* hold(ggml_context* context, ggml_type type, Shape shape, std::vector<uint8_t> bytes);
    ggml_tensor* quantised(ggml_context* context, ggml_type type, Shape shape);
    ggml_tensor* encode(ggml_context* context, ggml_type type, Shape shape, const std::vector<float>& numbers);
    void plant(int which);
    static void plant_real(Held& target, int which);
    static void plant_integer(Held& target, int which);

    Place place_;
    ContextHandle context_;
    ContextHandle weight_context_;
    std::vector<std::unique_ptr<Held>> held_;
    uint64_t seed_ = 1;
};

struct Case {
    std::string name;
    std::function<Expected(Setup&)> body;
    bool has_weights = false;  // also with weights in the CPU's own buffer types
};

struct Operator {
    std::string name;
    std::string reason;  // of the tolerance
    std::vector<Case> cases;
};

// Decodes elements of a tensor as ggml defines the format (its to_float, for quantised types).
std::vector<double> decode(ggml_type type, const uint8_t* bytes, size_t n);

// A number between -1 and 1 that looks random and is the same everywhere.
double made_up(uint64_t i);

// Lifts a function of one element to rows.
Rows each(std::function<Element(int64_t i0, int64_t i1, int64_t i2, int64_t i3)> element);

}  // namespace assay::operators
