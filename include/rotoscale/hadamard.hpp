// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The orthonormal Hadamard rotation in natural (Sylvester) order: H[i][j] = (-1)^popcount(i & j) / sqrt(n).
//
// The FP32 order is part of the contract: radix-2 butterflies (a + b, a - b) with strides 1, 2, 4, ..., then one
// multiplication. For n = 16 this is the arithmetic of AMD's fused MXFP4 kernel, whose factor 1/4 is exact.
#pragma once

#include "rotoscale/bits.hpp"

namespace rotoscale {

/// Limit on the points of a rotation, and on the elements that are rotated or scaled together.
inline constexpr int max_run_length = 256;

/// A rotation along the contraction axis of `points` contiguous elements, before amax is taken. It may span several
/// blocks.
struct rotation {
  int points = 0;  ///< 0: none; else a power of two, 2 to 256, that divides the block length or is a multiple of it
  /// Bit i % 32 of word i / 32 negates element i of a run (max(points, block length) elements) before the Hadamard
  /// transform. All zero: no signs. Both operands of a GEMM must use the same signs.
  std::uint32_t signs[max_run_length / 32] = {};

  ROTOSCALE_ISA_TAG constexpr bool operator==(const rotation&) const = default;

  /// Is element i of a run negated?
  ROTOSCALE_HD constexpr bool negates(int i) const { return (signs[i / 32] >> (i % 32) & 1u) != 0; }
};

/// 1 / sqrt(n) in FP32 for a power of two n: exact for even powers, rounded to nearest for odd ones.
ROTOSCALE_HD constexpr float hadamard_factor(int n) {
  float factor = 1.0f;
  for (; n >= 4; n /= 4) factor *= 0.5f;
  return n == 2 ? factor * 0x1.6A09E6p-1f : factor;
}

/// Transforms n elements x[0], x[stride], ... in place.
ROTOSCALE_HD constexpr void hadamard(float* x, int n, index_t stride = 1) {
  for (int step = 1; step < n; step *= 2) {
    for (int first = 0; first < n; first += 2 * step) {
      for (int i = first; i < first + step; ++i) {
        const float a = x[i * stride];
        const float b = x[(i + step) * stride];
        x[i * stride] = a + b;
        x[(i + step) * stride] = a - b;
      }
    }
  }
  const float factor = hadamard_factor(n);
  for (int i = 0; i < n; ++i) x[i * stride] *= factor;
}

namespace detail {
ROTOSCALE_HD constexpr void negate_run(float* x, int length, const rotation& r) {
  for (int i = 0; i < length; ++i) {
    if (r.negates(i)) x[i] = fp32_from_bits(fp32_bits(x[i]) ^ fp32_sign_mask);
  }
}

ROTOSCALE_HD constexpr void hadamard_run(float* x, int length, const rotation& r) {
  ROTOSCALE_ASSERT(length % r.points == 0 && length <= max_run_length);
  for (int first = 0; first < length; first += r.points) hadamard(x + first, r.points);
  // IEEE 754 leaves sign and payload of a computed NaN open, and compilers commute additions.
  for (int i = 0; i < length; ++i) x[i] = canonical_nan(x[i]);
}
}  // namespace detail

/// Applies signs, Hadamard transform and NaN canonicalisation to a run of `length` contiguous elements.
ROTOSCALE_HD constexpr void rotate_run(float* x, int length, const rotation& r) {
  if (r.points == 0) return;
  detail::negate_run(x, length, r);
  detail::hadamard_run(x, length, r);
}

/// Inverts rotate_run: Hadamard transform, then signs. Exact if no butterfly rounds, for example for small integers and
/// an even power of two.
ROTOSCALE_HD constexpr void unrotate_run(float* x, int length, const rotation& r) {
  if (r.points == 0) return;
  detail::hadamard_run(x, length, r);
  detail::negate_run(x, length, r);
}

static_assert(hadamard_factor(16) == 0.25f && hadamard_factor(64) == 0.125f);

}  // namespace rotoscale
