// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// mma_model: a value that states how a matrix unit adds, with everything that decides the bits of a GEMM. The forms
// follow Xie et al., arXiv:2511.10909 (T-, ST-, GST-, TR- and GTR-FDPA). Hopper's values were measured by this project
// on an H200. mma_ref.hpp evaluates a model; mma_models.hpp lists the known ones.
#pragma once

#include "rotoscale/format.hpp"

namespace rotoscale {

/// How the products of one step and the accumulator c are added. E is the largest exponent among the terms.
enum class mma_sum {
  exact,          ///< no error, then one rounding
  aligned,        ///< all terms, with c, are truncated to multiples of 2^(E - fraction_bits)
  scaled_groups,  ///< exact sums of `subgroup` products are scaled, then aligned as above by the scales' exponents
  rounded_tree,   ///< each product and each pairwise sum is rounded to FP32; subnormals are flushed
  late_c,         ///< products are aligned and truncated; c is added last, both rounded down
  late_c_split,   ///< the same with separate sums of even and odd products
  split_chains,   ///< FMA chains of even and of odd products from +0; their sum is added to c; subnormals are flushed
  swapped_chain   ///< FMA chain from c that takes the odd product of each pair first; subnormals are flushed
};

/// The accumulator's format, and the rounding of a step's sum to it.
enum class mma_result {
  fp32_nearest,   ///< FP32, nearest even
  fp32_truncate,  ///< FP32, toward zero; Inf beyond the range
  e8m13,          ///< FP32 with 13 fraction bits, toward zero; Inf beyond the range
  fp16_nearest,   ///< FP16, nearest even
  fp64_nearest    ///< FP64, nearest even; only for fused multiply-add chains (fp64_chain)
};

/// D = A·B + C along K, in steps of `group` products. Each step adds to the result of the step before.
struct mma_model {
  int group = 1;                                 ///< products per step ("L"); 0: all of them, for exact sums
  mma_sum sum = mma_sum::exact;                  ///< how a step adds
  mma_result result = mma_result::fp32_nearest;  ///< format and rounding of a step's sum
  int fraction_bits = 0;                         ///< bits below E that alignment keeps ("F")
  int least_exponent = 0;                        ///< "e0": lower bound of E, and the exponent of zeros
  int subgroup = 0;     ///< scaled_groups: products in an exact sum; rounded_tree: products in a tree
  int late_bits = 0;    ///< late_c: bits of the products' sum that remain when c is added ("F2")
  format operand = {};  ///< exponent_bits != 0: operands are converted to this first (exactly; FP32 truncated to TF32)
  int instruction_k = 0;  ///< products per instruction, if `interleave` or `c_last` is set; else 0
  int interleave = 0;     ///< 0: ascending k; else an instruction's two steps take runs of this many k in turn
  bool c_last = false;    ///< an instruction's steps start from +0; c is added at the end (IEEE nearest even)
  bool sparse = false;    ///< +0 in A is pruned and multiplies nothing, not even Inf; kept zeros are -0
  std::uint32_t nan_bits = fp32_nan_bits;  ///< bits of a NaN result
  bool keeps_nan = false;  ///< flushing FMA chains: NaN operands propagate, made quiet; nan_bits only for a new NaN

  ROTOSCALE_ISA_TAG constexpr bool operator==(const mma_model&) const = default;
};

/// Indices of the products of one step, in order of addition.
struct mma_step_products {
  index_t count = 0;   ///< number of products
  index_t first = 0;   ///< first product, counted within the step's half
  int interleave = 0;  ///< mma_model::interleave
  int half = 0;        ///< half of the instruction, 0 or 1

  /// Index of product `i` within the instruction.
  ROTOSCALE_HD constexpr index_t operator[](index_t i) const {
    const index_t n = first + i;
    return interleave == 0 ? n : (n / interleave * 2 + half) * interleave + n % interleave;
  }
};

/// Products of an instruction of `count` that belong to its first or second half. Without interleave all are in the
/// first; otherwise the halves take runs of `interleave` in turn.
ROTOSCALE_HD constexpr index_t mma_half_count(const mma_model& m, index_t count, int half) {
  if (m.interleave == 0) return half == 0 ? count : 0;
  const index_t rest = count % (2 * m.interleave), own = rest - half * m.interleave;
  return count / (2 * m.interleave) * m.interleave + (own < 0 ? 0 : own < m.interleave ? own : m.interleave);
}

/// Number of steps for `count` products of one instruction. A model without a group takes one step.
ROTOSCALE_HD constexpr index_t mma_step_count(const mma_model& m, index_t count) {
  const index_t group = m.group == 0 ? count : m.group;
  if (count <= group && m.interleave == 0) return count == 0 ? 0 : 1;
  return (mma_half_count(m, count, 0) + group - 1) / group + (mma_half_count(m, count, 1) + group - 1) / group;
}

/// Step `s` of mma_step_count's steps.
ROTOSCALE_HD constexpr mma_step_products mma_step_at(const mma_model& m, index_t count, index_t s) {
  const index_t group = m.group == 0 ? count : m.group;
  if (count <= group && m.interleave == 0) return {count};
  const index_t first_half = mma_half_count(m, count, 0), first_steps = (first_half + group - 1) / group;
  const int half = s < first_steps ? 0 : 1;
  const index_t own = half == 0 ? first_half : mma_half_count(m, count, 1);
  const index_t first = (half == 0 ? s : s - first_steps) * group;
  return {own - first < group ? own - first : group, first, m.interleave, half};
}

/// The correctly rounded result: the sum of c and all products, rounded once to FP32.
inline constexpr mma_model exact{0, mma_sum::exact};
/// One FP32 fused multiply-add per product.
inline constexpr mma_model fp32_fma_chain{1, mma_sum::exact};
/// One FP64 fused multiply-add per product.
inline constexpr mma_model fp64_fma_chain{1, mma_sum::exact, mma_result::fp64_nearest};
/// One FP32 rounding per MX block: 32 exact E2M1 products (a multiple of 1/4 up to 1152), times the two scales.
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
