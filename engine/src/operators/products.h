// What a product of two rows must give, and how far the arithmetic of this ggml may be from it.
#pragma once

#include <algorithm>
#include <cmath>

#include "operators/case.h"

namespace assay::operators {

// The left side's type decides the arithmetic: the right side is rounded to it (halves) or to 8 bits a number in blocks of 32
// or 256 (quantised types). Terms come by k.
class Dot {
public:
    Dot(ggml_type type, bool is_gpu, bool wants_single);
    void add(double left, double right) {
        const double product = left * right;
        ++n_;
        sum_ += product;
        magnitude_ += std::fabs(product);
        squares_ += product * product;
        if (block_ == 0) return;
        block_sum_ += product;
        block_left_ += left * left;
        block_left_sum_ += left;
        block_left_low_ = n_block_ == 0 ? left : std::min(block_left_low_, left);
        block_left_high_ = n_block_ == 0 ? left : std::max(block_left_high_, left);
        block_left_most_ = std::max(block_left_most_, std::fabs(left));
        block_right_most_ = std::max(block_right_most_, std::fabs(right));
        block_right_sum_ += right;
        if (++n_block_ == block_) close_block();
    }
    Element result();

private:
    void close_block();
    double squares_from(double offset) const;

    ggml_type type_;
    bool is_gpu_;
    bool wants_single_;
    int64_t block_ = 0;  // numbers that share a step of 8 bits; 0: none do
    int64_t n_ = 0;
    double sum_ = 0.0;
    double magnitude_ = 0.0;
    double squares_ = 0.0;   // of the products
    double variance_ = 0.0;
    // Of the open block.
    int64_t n_block_ = 0;
    double block_sum_ = 0.0;
    double block_left_ = 0.0;        // squares of the left side
    double block_left_sum_ = 0.0;
    double block_left_low_ = 0.0;
    double block_left_high_ = 0.0;
    double block_left_most_ = 0.0;
    double block_right_most_ = 0.0;
    double block_right_sum_ = 0.0;
};

}  // namespace assay::operators
