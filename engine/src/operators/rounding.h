// How far arithmetic of a given precision may be from exact numbers. Sources: the IEEE 754 formats, and Higham, Accuracy and
// Stability of Numerical Algorithms, chapters 3 and 4 (sums of n terms: the error grows with the square root of n where
// roundings are independent).
#pragma once

#include <cmath>
#include <cstdint>

namespace assay::operators {

// Largest relative error of one rounding.
inline constexpr double kSingle = 0x1p-24;
inline constexpr double kHalf = 0x1p-11;    // also of the matrix units' TF32
inline constexpr double kBrain = 0x1p-8;    // BF16
inline constexpr double kTiny = 0x1p-120;   // what flushing to zero may take away

// Roundings that many numbers share a chance of: this many standard deviations are allowed for each number.
inline constexpr double kSigmas = 8.0;

// Variance of one rounding that is evenly spread up to `largest` on both sides.
inline double spread(double largest) { return largest * largest / 3.0; }

// Bound for a sum of n terms in single precision whose magnitudes add up to `magnitude`.
inline double sum_error(double magnitude, int64_t n) {
    return magnitude * kSingle * (8.0 + std::sqrt(static_cast<double>(n))) + kTiny;
}

}  // namespace assay::operators
