// Names of policies, routes and reasons, and what this library was compiled with.
#include <iterator>

#include "qsa/qsa.h"

namespace assay::qsa {
namespace {

constexpr const char* kReasons[] = {
    "tracked",      "general-only",      "image-rows",          "gap-in-run",  "out-of-order", "outside-window",
    "shared-cells", "equal-coordinates", "not-alone",           "copied",      "restored",     "removed",
    "failed",       "query-at-image",    "image-beside-others", "split-block",
};
static_assert(std::size(kReasons) == static_cast<size_t>(Reason::Count_));

}  // namespace

const char* name(Policy policy) { return policy == Policy::Rank ? "rank" : "bucket"; }

const char* name(Route route) {
    switch (route) {
        case Route::Guarded: return "guarded";
        case Route::General: return "general";
        case Route::Masked: break;
    }
    return "masked";
}

const char* name(Reason reason) { return reason < Reason::Count_ ? kReasons[static_cast<size_t>(reason)] : "unknown"; }

const char* faults() {
#if defined(ASSAY_QSA_FAULTS_TEXT)
    return ASSAY_QSA_FAULTS_TEXT;
#else
    return "";
#endif
}

const char* path() {
#if defined(ASSAY_PATH_GENERAL_ONLY)
    return "general-only";
#else
    return "guarded";
#endif
}

}  // namespace assay::qsa
