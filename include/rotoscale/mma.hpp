// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// An mma_model value states how a matrix unit adds: everything a GEMM needs to know to give its bits. The forms follow
// Xie et al., arXiv:2511.10909 (T-, ST-, GST-, TR- and GTR-FDPA), the Hopper values this project's facts, measured on
// an H200. mma_ref.hpp evaluates a model literally; mma_models.hpp names the known ones.
#pragma once

#include "rotoscale/format.hpp"

namespace rotoscale {

/// How the products of one step and the accumulator c are added. E is the largest exponent among the terms.
enum class mma_sum {
  exact,          ///< without error, then one rounding
  aligned,        ///< each term, c among them, is cut toward zero to a multiple of 2^(E - fraction_bits)
  scaled_groups,  ///< exact sums of `subgroup` products are scaled and aligned as above, by their scales' exponents
                  ///< alone
  rounded_tree,   ///< every product and every sum of pairs is rounded to FP32, subnormal numbers flushed
  late_c,         ///< products are aligned and cut, then added to c with both rounded down
  late_c_split    ///< the same, even and odd products summed apart
};

/// The accumulator's format and how a step's sum is rounded to it.
enum class mma_result {
  fp32_nearest,   ///< FP32, nearest even
  fp32_truncate,  ///< FP32, toward zero; beyond the range Inf
  e8m13,          ///< FP32 of which 13 fraction bits are used, toward zero; beyond the range Inf
  fp16_nearest,   ///< FP16, nearest even
  fp64_nearest    ///< FP64, nearest even: only for chains of fused multiply-adds (fp64_chain)
};

/// D = A·B + C along K. Steps of `group` products follow one another; each adds to the last one's result.
struct mma_model {
  int group = 1;                                 ///< products of a step ("L"); 0, where sums are exact: all of them
  mma_sum sum = mma_sum::exact;                  ///< how a step adds
  mma_result result = mma_result::fp32_nearest;  ///< what a step's sum is rounded to
  int fraction_bits = 0;                         ///< "F"
  int least_exponent = 0;                        ///< "e0": E is at least this; also what a zero counts as
  int subgroup = 0;       ///< scaled_groups: products that are summed exactly; rounded_tree: those of a tree
  int late_bits = 0;      ///< late_c: bits that the sum of products keeps when c joins ("F2")
  format operand = {};    ///< exponent_bits != 0: operands are first converted to it (exactly, or FP32 cut to TF32)
  int instruction_k = 0;  ///< products of an instruction where that matters (the two fields below), else 0
  int interleave = 0;     ///< 0: ascending k; else an instruction's two steps take runs of this many k's in turn
  bool c_last = false;    ///< an instruction's steps start from +0 and c is added at the end, IEEE nearest even
  bool sparse = false;    ///< A's elements +0 are pruned and multiply nothing, not even Inf; zeros that are kept are -0
  std::uint32_t nan_bits = fp32_nan_bits;  ///< of a NaN result

  constexpr bool operator==(const mma_model&) const = default;
};

/// The sum of c and all products, rounded once to FP32: the correctly rounded result.
inline constexpr mma_model exact{0, mma_sum::exact};
/// One FP32 fused multiply-add a product.
inline constexpr mma_model fp32_fma_chain{1, mma_sum::exact};
/// One FP64 fused multiply-add a product.
inline constexpr mma_model fp64_fma_chain{1, mma_sum::exact, mma_result::fp64_nearest};
/// MX blocks: 32 exact E2M1 products (a multiple of 1/4 up to 1152, times the two scales), then one FP32 rounding.
inline constexpr mma_model fp32_blockwise{32, mma_sum::exact};

static_assert(32 * 4 * 6 * 6 < 1 << 24, "a block sum in quarters fits FP32's significand");

}  // namespace rotoscale
