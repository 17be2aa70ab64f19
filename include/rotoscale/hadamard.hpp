// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The orthonormal Hadamard rotation in natural (Sylvester) order, H[i][j] = (-1)^popcount(i & j) / sqrt(n). The FP32
// order is part of the contract: radix-2 butterflies (a + b, a - b) with strides 1, 2, 4, ..., then one multiplication.
// For n = 16 that is the arithmetic of AMD's fused MXFP4 kernel, whose factor 1/4 is exact.
#pragma once

#include "rotoscale/bits.hpp"

namespace rotoscale {

/// A rotation applied to each run of `points` contiguous elements of a block, before its amax is taken.
struct rotation {
  int points = 0;           ///< 0: none; else a power of two that divides the block length
  std::uint32_t signs = 0;  ///< bit i negates element i (mod 32) of the block first; both GEMM operands must share it

  constexpr bool operator==(const rotation&) const = default;
};

/// 1 / sqrt(n) in FP32, n a power of two: exact for even powers, the nearest FP32 value for odd ones.
ROTOSCALE_HD constexpr float hadamard_factor(int n) {
  float factor = 1.0f;
  for (; n >= 4; n /= 4) factor *= 0.5f;
  return n == 2 ? factor * 0x1.6A09E6p-1f : factor;
}

/// In place over x[0], x[stride], ..., n of them.
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

/// Signs, Hadamard and NaN canonicalisation over one block of `length` contiguous elements.
ROTOSCALE_HD constexpr void rotate_block(float* x, int length, const rotation& r) {
  if (r.points == 0) return;
  ROTOSCALE_ASSERT(length % r.points == 0);
  for (int i = 0; i < length; ++i) {
    if ((r.signs >> (i % 32)) & 1) x[i] = fp32_from_bits(fp32_bits(x[i]) ^ fp32_sign_mask);
  }
  for (int first = 0; first < length; first += r.points) hadamard(x + first, r.points);
  // IEEE 754 leaves the sign and payload of a computed NaN open, and compilers commute additions.
  for (int i = 0; i < length; ++i) x[i] = canonical_nan(x[i]);
}

static_assert(hadamard_factor(16) == 0.25f && hadamard_factor(64) == 0.125f);

}  // namespace rotoscale
