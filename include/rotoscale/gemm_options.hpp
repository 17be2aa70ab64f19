// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What a GEMM kernel does around its matrix unit. gemm_ref.hpp defines the bits that follow.
#pragma once

#include "rotoscale/mma.hpp"
#include "rotoscale/round.hpp"

namespace rotoscale {

/// In which order the results of parts of K are added; pairwise: neighbours, then neighbouring sums, and so on, an odd
/// one out waiting at the end.
enum class split_order { ascending, descending, pairwise };

/// What a kernel does with its matrix unit: where accumulators start, when they are emptied, how parts are combined and
/// how the result is written.
///   c = round(factor * acc [+ beta * c] [+ bias]), factor = factor_a * factor_b * alpha
/// in FP32 (gemm_epilogue), then rounded to `output` (stored as FP32) as `output_rounding` says, beyond its range to
/// Inf. NaN results have the model's nan_bits.
struct gemm_options {
  mma_model model = fp32_fma_chain;  ///< how a step adds
  format output = formats::fp32;     ///< of the result
  bool accumulate = false;           ///< adds beta * c at the end
  bool start_from_c = false;         ///< accumulators start from c instead of +0, as an instruction's C operand
  float alpha = 1.0f;                ///< multiplies the sum
  float beta = 1.0f;                 ///< multiplies the old value of c, where `accumulate` is set
  /// Every so many products the accumulator is added to an FP32 sum (nearest even) and starts again from +0, as FP8
  /// kernels do on Hopper; 0: never. A multiple of the model's step.
  index_t promotion = 0;
  index_t split_k = 1;      ///< parts of K, each computed as above from +0 (the one with k = 0 from C), then added
  index_t split_grain = 1;  ///< parts are whole multiples of this
  index_t split_run = 0;    ///< not 0: parts take runs of so many k in turn; split_k * split_run divides K
  split_order order = split_order::ascending;         ///< in which parts are added
  format split_sum = formats::fp32;                   ///< FP32, FP16 or BF16: parts and their sums are rounded to it
  rounding output_rounding = rounding::nearest_even;  ///< not stochastic
  const float* bias = nullptr;                        ///< [n] numbers, added to each row of C; null: none
};

}  // namespace rotoscale
