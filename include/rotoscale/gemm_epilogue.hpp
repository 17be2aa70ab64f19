// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The last step of every GEMM, on the CPU and on devices: from the accumulator to an FP32 number. Rounding to the
// output format follows it and is not here.
#pragma once

#include "rotoscale/bits.hpp"

namespace rotoscale {

/// factor * acc (+ beta * c) (+ bias) in FP32. beta * c is rounded; every addition is one fused multiply-add.
struct gemm_epilogue {
  float factor = 1.0f;                     ///< multiplies the sum: alpha times the operands' factors
  bool accumulate = false;                 ///< adds beta * c
  float beta = 1.0f;                       ///< multiplies the old value of C
  bool has_bias = false;                   ///< adds the bias
  std::uint32_t nan_bits = fp32_nan_bits;  ///< bits of every NaN result

  /// The output as FP32. `c` and `bias` are ignored unless they are added.
  ROTOSCALE_HD float operator()(float acc, float c, float bias) const {
    float y;
    if (accumulate) {
      y = __builtin_fmaf(acc, factor, has_bias ? __builtin_fmaf(beta, c, bias) : beta * c);
    } else {
      y = has_bias ? __builtin_fmaf(acc, factor, bias) : acc * factor;
    }
    return fp32_is_nan(fp32_bits(y)) ? fp32_from_bits(nan_bits) : y;
  }
};

}  // namespace rotoscale
