// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Options of a GEMM kernel around its matrix unit: accumulation, split-K and epilogue. gemm_ref.hpp defines the bits.
#pragma once

#include "rotoscale/mma.hpp"
#include "rotoscale/round.hpp"

namespace rotoscale {

/// Order in which the sums of split-K parts are added. Pairwise: neighbours, then neighbouring sums, and so on; an odd
/// one waits at the end.
enum class split_order { ascending, descending, pairwise };

/// Options of a GEMM, with factor = factor_a * factor_b * alpha:
///   `c = round(factor * acc [+ beta * c] [+ bias])`.
/// The sum is formed in FP32 (gemm_epilogue) and rounded to `output` by `output_rounding`, to Inf beyond the range. It
/// is stored as FP32. NaN results have the model's nan_bits.
struct gemm_options {
  mma_model model = fp32_fma_chain;  ///< how one step adds
  format output = formats::fp32;     ///< format to which the result is rounded
  bool accumulate = false;           ///< adds beta * c at the end
  bool start_from_c = false;         ///< accumulators start from C instead of +0, like an instruction's C operand
  float alpha = 1.0f;                ///< multiplies the sum
  float beta = 1.0f;                 ///< multiplies the old value of C if `accumulate` is set
  /// After this many products the accumulator is added to an FP32 sum (nearest even) and restarts from +0, as Hopper's
  /// FP8 kernels do. 0: never. A multiple of the model's step.
  index_t promotion = 0;
  index_t split_k = 1;      ///< parts of K; each starts from +0 (the first may start from C), then all are added
  index_t split_grain = 1;  ///< parts are multiples of this
  index_t split_run = 0;    ///< not 0: parts take runs of this many k in turn; split_k * split_run divides K
  split_order order = split_order::ascending;         ///< order in which parts are added
  format split_sum = formats::fp32;                   ///< FP32, FP16 or BF16: parts and their sums are rounded to this
  rounding output_rounding = rounding::nearest_even;  ///< not stochastic
  const float* bias = nullptr;                        ///< n numbers, added to each row of C; null: none
};

}  // namespace rotoscale
