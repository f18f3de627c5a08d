// One case on one device: PASS, FAIL or NOT_RUN, with the number that is closest to its tolerance, or furthest over it.
#pragma once

#include <string>

#include "operators/case.h"

namespace assay::operators {

enum class Verdict { pass, fail, not_run };
const char* text_of(Verdict verdict);

struct Result {
    Verdict verdict = Verdict::pass;
    double error = 0.0;      // absolute, of that number; infinite where it is not finite
    double tolerance = 0.0;  // of that number
    std::string reason;      // of a FAIL: where, found and expected; of a NOT_RUN: why
};

// `planted`: see Setup::compute.
Result run(const Case& one, const Place& place, int planted = -1);

// PASS where the case FAILs with one of its input numbers changed behind the reference's back, with the error that it saw:
// a tolerance that lets all of them through shows nothing.
Result control(const Case& one, const Place& place);

// What decides which kernel computes a node: operator, types and layout of its sources, type of the result. Empty for nodes
// without a kernel (views).
std::string signature(const ggml_tensor* node);
// Of the node whose numbers a case compares; empty where the ggml in use cannot make its inputs.
std::string signature(const Case& one, const Place& place);

}  // namespace assay::operators
