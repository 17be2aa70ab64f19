// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// 2^x with the bits of NVIDIA's instruction ex2.approx.ftz.f32, in integer arithmetic.
//
// The hardware splits [0, 1) into 64 intervals, each with a quadratic in fixed point. The square drops the low columns
// of its partial products (Oberman and Siu, 17th IEEE Symposium on Computer Arithmetic, 2005). Coefficients, bias and
// column are from bcarlet/ptx-math, found on sm_50 to sm_75. The test gpu/nn/attention compares all 2^32 inputs
// with the device; docs/results/training.md has the result for sm_90.
#pragma once

#include "rotoscale/bits.hpp"

namespace rotoscale {

/// Coefficients of interval i, with l the 17 bits below it:
/// `2^(i / 64 + l · 2^-23) = c0 · 2^-25 + c1 · l · 2^-38 + c2 · (l² · 2^-19) · 2^-38`.
struct ex2_interval {
  std::uint32_t c0;  ///< constant term
  std::uint32_t c1;  ///< factor of l
  std::uint32_t c2;  ///< factor of l²
};
/// Coefficients of all intervals.
struct ex2_table {
  ex2_interval of[64];  ///< indexed by interval
};
/// The hardware's table.
inline constexpr ex2_table ex2_intervals = {
    {{0x2000002, 0x58b9, 0x1ee}, {0x2059349, 0x59b0, 0x1f5}, {0x20b361d, 0x5aaa, 0x1fa}, {0x210e8a4, 0x5ba7, 0x1ff},
     {0x216ab11, 0x5ca6, 0x206}, {0x21c7d88, 0x5da9, 0x209}, {0x222603b, 0x5eae, 0x20f}, {0x2285358, 0x5fb6, 0x214},
     {0x22e570b, 0x60c0, 0x21d}, {0x2346b80, 0x61ce, 0x222}, {0x23a90e7, 0x62df, 0x227}, {0x240c774, 0x63f2, 0x22f},
     {0x2470f50, 0x6509, 0x234}, {0x24d68af, 0x6623, 0x238}, {0x253d3c2, 0x673f, 0x241}, {0x25a50b8, 0x685f, 0x247},
     {0x260dfc4, 0x6982, 0x24d}, {0x2678119, 0x6aa8, 0x254}, {0x26e34e8, 0x6bd2, 0x258}, {0x274fb69, 0x6cfe, 0x261},
     {0x27bd4cb, 0x6e2e, 0x267}, {0x282c147, 0x6f61, 0x26e}, {0x289c10d, 0x7098, 0x273}, {0x290d458, 0x71d2, 0x279},
     {0x297fb5c, 0x730f, 0x281}, {0x29f3650, 0x7450, 0x287}, {0x2a6856c, 0x7594, 0x28f}, {0x2ade8e9, 0x76dc, 0x295},
     {0x2b560fd, 0x7827, 0x29e}, {0x2bcede4, 0x7976, 0x2a5}, {0x2c48fd9, 0x7ac8, 0x2ae}, {0x2cc4712, 0x7c1f, 0x2b3},
     {0x2d413ce, 0x7d79, 0x2bb}, {0x2dbf64a, 0x7ed7, 0x2c1}, {0x2e3eec0, 0x8038, 0x2cb}, {0x2ebfd6c, 0x819e, 0x2d1},
     {0x2f42290, 0x8307, 0x2da}, {0x2fc5e69, 0x8474, 0x2e3}, {0x304b136, 0x85e5, 0x2ec}, {0x30d1b35, 0x875b, 0x2f1},
     {0x3159caa, 0x88d4, 0x2fb}, {0x31e35d5, 0x8a51, 0x305}, {0x326e6f9, 0x8bd3, 0x30b}, {0x32fb056, 0x8d59, 0x313},
     {0x3389232, 0x8ee3, 0x31c}, {0x3418cd1, 0x9071, 0x326}, {0x34aa078, 0x9204, 0x32d}, {0x353cd6c, 0x939b, 0x336},
     {0x35d13f6, 0x9536, 0x341}, {0x3667459, 0x96d6, 0x34a}, {0x36feee0, 0x987b, 0x351}, {0x37983d5, 0x9a24, 0x35a},
     {0x383337f, 0x9bd1, 0x366}, {0x38cfe29, 0x9d84, 0x36d}, {0x396e41e, 0x9f3b, 0x377}, {0x3a0e5ac, 0xa0f7, 0x380},
     {0x3ab031f, 0xa2b7, 0x38d}, {0x3b53cc3, 0xa47d, 0x395}, {0x3bf92e9, 0xa648, 0x39d}, {0x3ca05df, 0xa817, 0x3aa},
     {0x3d495f7, 0xa9ec, 0x3b2}, {0x3df4381, 0xabc5, 0x3bf}, {0x3ea0ece, 0xada4, 0x3c9}, {0x3f4f833, 0xaf88, 0x3d4}}};

/// Coefficients of interval i < 64.
[[gnu::always_inline]] ROTOSCALE_HD constexpr ex2_interval ex2_coefficients(std::uint32_t i) {
#if defined(__CUDA_ARCH__)
  constexpr ex2_table all = ex2_intervals;  // device code cannot read namespace-scope arrays
  return all.of[i];
#else
  return ex2_intervals.of[i];
#endif
}

/// l² / 2^19 without the partial products of the 19 low columns. Bits i and j of l meet in column i + j + 1; a bit with
/// itself is in column 2 i.
[[gnu::always_inline]] ROTOSCALE_HD constexpr std::uint32_t ex2_square(std::uint32_t l) {
  // 1. Bits 9 to 16 among themselves: all are in kept columns, except bit 9 with itself, which the shift drops.
  // 2. Bits 2 to 8 with a bit from 9 to 16: kept if i + j > 17.
  // 3. Bits 0 to 8 among themselves are below the kept columns.
  const std::uint32_t high = l >> 9;
  std::uint32_t sum = (high * high) >> 1;
  for (std::uint32_t i = 2; i < 9; ++i) sum += (l >> i & 1) * (l >> (18 - i));
  return sum;
}

/// ex2.approx.ftz.f32: 2^x with a relative error below 2^-22.
/// - x < -126: 0; x >= 128: Inf
/// - subnormal x: 1
/// - NaN: 0x7FFFFFFF
[[gnu::always_inline]] ROTOSCALE_HD constexpr float ex2_approx(float x) {
  const std::uint32_t u = fp32_bits(x), magnitude = u & 0x7FFFFFFFu;
  const bool negative = u >> 31 != 0;
  // 1. |x| in units of 2^-23, truncated. A negative x takes the ones' complement, or is negated if it is an integer.
  const float bounded = fp32_from_bits(magnitude < 0x43000000u ? magnitude : 0x43000000u);  // 128
  const auto units = static_cast<std::uint32_t>(static_cast<std::int32_t>(bounded * 0x1p+23f));
  const std::uint32_t fixed = negative ? ((units & 0x7FFFFFu) != 0 ? ~units : 0u - units) : units;
  const std::int32_t n = static_cast<std::int32_t>(fixed) >> 23;
  // 2. The polynomial in units of 2^-23. Summing two halves keeps it within 32 bits.
  const std::uint32_t l = fixed & 0x1FFFFu;
  const ex2_interval c = ex2_coefficients(fixed >> 17 & 63);
  const std::uint32_t low = c.c1 * (l & 1) + c.c2 * ex2_square(l) + ((c.c0 & 3) << 13) + 0x37E2;
  const std::uint32_t fraction = (c.c0 >> 2) + ((c.c1 * (l >> 1) + (low >> 1)) >> 14);
  // 3. Scale by 2^n.
  const std::uint32_t y = (fraction & 0x7FFFFFu) | static_cast<std::uint32_t>(n + 127) << 23;
  const std::uint32_t bits = n < -126 ? 0u : n > 127 ? fp32_infinity_bits : y;
  return fp32_from_bits(magnitude > fp32_infinity_bits ? 0x7FFFFFFFu : bits);
}

}  // namespace rotoscale
