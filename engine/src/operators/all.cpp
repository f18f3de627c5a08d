#include <iterator>

#include "operators/suites.h"

namespace assay::operators {

std::vector<Operator> all_operators() {
    std::vector<Operator> all;
    for (auto* family : {products, norms, positions, attentions, rows, elementwise, recurrences, choices}) {
        std::vector<Operator> some = family();
        std::move(some.begin(), some.end(), std::back_inserter(all));
    }
    return all;
}

}  // namespace assay::operators
