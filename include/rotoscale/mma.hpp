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

  ROTOSCALE_ISA_TAG constexpr bool operator==(const mma_model&) const = default;
};

/// The products that one step of an instruction takes, in this order.
struct mma_step_products {
  index_t count = 0;   ///< how many
  index_t first = 0;   ///< of those that the step's half of the instruction takes
  int interleave = 0;  ///< as mma_model's
  int half = 0;        ///< which of an instruction's two steps

  /// Index within the instruction of product `i`.
  ROTOSCALE_HD constexpr index_t operator[](index_t i) const {
    const index_t n = first + i;
    return interleave == 0 ? n : (n / interleave * 2 + half) * interleave + n % interleave;
  }
};

/// Of an instruction of `count` products, those that its first or second half takes: all in the first, or runs of
/// `interleave` in turn.
ROTOSCALE_HD constexpr index_t mma_half_count(const mma_model& m, index_t count, int half) {
  if (m.interleave == 0) return half == 0 ? count : 0;
  const index_t rest = count % (2 * m.interleave), own = rest - half * m.interleave;
  return count / (2 * m.interleave) * m.interleave + (own < 0 ? 0 : own < m.interleave ? own : m.interleave);
}

/// Steps in which a unit adds `count` products of one instruction; where a model has no group, one takes all.
ROTOSCALE_HD constexpr index_t mma_step_count(const mma_model& m, index_t count) {
  const index_t group = m.group == 0 ? count : m.group;
  if (count <= group && m.interleave == 0) return count == 0 ? 0 : 1;
  return (mma_half_count(m, count, 0) + group - 1) / group + (mma_half_count(m, count, 1) + group - 1) / group;
}

/// Step `s` of them.
ROTOSCALE_HD constexpr mma_step_products mma_step_at(const mma_model& m, index_t count, index_t s) {
  const index_t group = m.group == 0 ? count : m.group;
  if (count <= group && m.interleave == 0) return {count};
  const index_t first_half = mma_half_count(m, count, 0), first_steps = (first_half + group - 1) / group;
  const int half = s < first_steps ? 0 : 1;
  const index_t own = half == 0 ? first_half : mma_half_count(m, count, 1);
  const index_t first = (half == 0 ? s : s - first_steps) * group;
  return {own - first < group ? own - first : group, first, m.interleave, half};
}

/// The sum of c and all products, rounded once to FP32: the correctly rounded result.
inline constexpr mma_model exact{0, mma_sum::exact};
/// One FP32 fused multiply-add a product.
inline constexpr mma_model fp32_fma_chain{1, mma_sum::exact};
/// One FP64 fused multiply-add a product.
inline constexpr mma_model fp64_fma_chain{1, mma_sum::exact, mma_result::fp64_nearest};
/// MX blocks: 32 exact E2M1 products (a multiple of 1/4 up to 1152, times the two scales), then one FP32 rounding.
inline constexpr mma_model fp32_blockwise{32, mma_sum::exact};

static_assert([] {  // 12 products, runs of 2 in turn, steps of 4: 0 1 4 5 | 8 9 | 2 3 6 7 | 10 11
  constexpr mma_model m{.group = 4, .instruction_k = 16, .interleave = 2};
  constexpr index_t size[] = {4, 2, 4, 2}, last[] = {5, 9, 7, 11};
  for (index_t s = 0; s < mma_step_count(m, 12); ++s) {
    const mma_step_products p = mma_step_at(m, 12, s);
    if (p.count != size[s] || p[p.count - 1] != last[s]) return false;
  }
  return mma_step_count(m, 12) == 4;
}());
static_assert(32 * 4 * 6 * 6 < 1 << 24, "a block sum in quarters fits FP32's significand");

}  // namespace rotoscale
