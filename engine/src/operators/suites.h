// Every operator that the engine's graphs use. One file a family.
#pragma once

#include "operators/case.h"

namespace assay::operators {

std::vector<Operator> products();     // matrix products, of experts too
std::vector<Operator> norms();        // the engine's own rms_rows and its parts
std::vector<Operator> positions();    // rotations
std::vector<Operator> attentions();   // soft maximum, flash attention
std::vector<Operator> rows();         // what only moves numbers: exact
std::vector<Operator> elementwise();  // sums, products, gates
std::vector<Operator> recurrences();  // convolution, delta net
std::vector<Operator> choices();      // sorting, counting, block selection

std::vector<Operator> all_operators();

}  // namespace assay::operators
