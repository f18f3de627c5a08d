// What this build is: versions, compiler, back ends, faults and layout.
#pragma once

namespace assay {

// One line of JSON in static storage; never throws (an error becomes a field of the line).
const char* build_info();

}  // namespace assay
