// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// FP32 functions and sums whose every operation is stated, so that they give the same bits on any machine, compiler and
// thread count. Style rule of nn/: no `a * b + c`; write fma, which no compiler may split or form differently. A
// product handed to an inline function that adds to it is one as well: fma(a, b, 0.0f).
#pragma once

#include "rotoscale/bits.hpp"

namespace rotoscale::nn {

/// a * b + c with one rounding.
ROTOSCALE_HD inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
/// Correctly rounded.
ROTOSCALE_HD inline float sqrt(float x) { return __builtin_sqrtf(x); }
/// Correctly rounded.
ROTOSCALE_HD inline double sqrt(double x) { return __builtin_sqrt(x); }

/// e^r for |r| <= ln 2 / 2 by its Taylor series to r^7: the remainder is below 2^-28.
[[gnu::always_inline]] ROTOSCALE_HD inline float exp_taylor(float r) {
  float p = fma(r, 1.0f / 5040.0f, 1.0f / 720.0f);
  p = fma(p, r, 1.0f / 120.0f);
  p = fma(p, r, 1.0f / 24.0f);
  p = fma(p, r, 1.0f / 6.0f);
  p = fma(p, r, 0.5f);
  p = fma(p, r, 1.0f);
  p = fma(p, r, 1.0f);
  return p;
}

/// exp(x) of -87.33 <= x <= 88.72 by fewer operations: the same bits.
[[gnu::always_inline]] ROTOSCALE_HD inline float exp_normal(float x) {
  // 1. x = n ln 2 + r, |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer, which the sum's low bits then hold; ln
  // 2 is split in two (Cody and Waite).
  const float shifted = fma(x, 0x1.715476p+0f, 0x1.8p+23f);
  const float n = shifted - 0x1.8p+23f;
  const float r = fma(n, -0x1.7F7D1Cp-20f, fma(n, -0x1.62E400p-1f, x));
  // 2. e^r.
  const float p = exp_taylor(r);
  // 3. Times 2^n: the result is normal, so n is added to the exponent.
  return fp32_from_bits(fp32_bits(p) + (fp32_bits(shifted) << 23));
}

/// e^x: error below 2 units in the last place; 0 below -87.33 (no subnormal results), Inf above 88.72.
/// Always inline: loops over rows become vector code only then.
[[gnu::always_inline]] ROTOSCALE_HD inline float exp(float x) {
  const float y = exp_normal(x);  // of numbers beyond the range, and of NaN, any bits
  return x < -87.33f ? 0.0f : (x > 88.72f ? fp32_from_bits(fp32_infinity_bits) : (x != x ? x : y));
}

/// 2^x as p · 2^n, with n in the place of an exponent. A polynomial of degree 3 on [-1/2, 1/2] gives p. Its constant is
/// 1, and its largest relative error is minimal (Lawson's iteration).
struct binary_power {
  float p;          ///< 2^(x - n), of [2^-0.5, 2^0.5]
  std::uint32_t n;  ///< n · 2^23, modulo 2^32: to be added to p's bits
};
/// x of |x| < 2^22 as its nearest integer n and 2^(x - n).
[[gnu::always_inline]] ROTOSCALE_HD inline binary_power split_exp2(float x) {
  // Adding 1.5 * 2^23 rounds to an integer n, whose low bits are then the sum's.
  const float shifted = x + 0x1.8p+23f;
  const float f = x - (shifted - 0x1.8p+23f);
  float p = fma(f, 0x1.c2a22cp-5f, 0x1.f00c5ap-3f);
  p = fma(p, f, 0x1.62f5fcp-1f);
  p = fma(p, f, 1.0f);
  return {p, fp32_bits(shifted) << 23};
}
/// 2^x for x <= 127: relative error below 1.02e-4 (13 bits), 2^0 exactly 1; NaN for NaN and +Inf. The result is 0 below
/// -60: nonzero results then span no more exponents than a step of a matrix unit needs.
[[gnu::always_inline]] ROTOSCALE_HD inline float exp2(float x) {
  const auto [p, n] = split_exp2(x);
  return x < -60.0f ? 0.0f : p * fp32_from_bits(n + fp32_bits(1.0f));
}
/// exp2(x) of |x| <= 60, by fewer operations. The bits are the same, since both factors and the product are normal.
[[gnu::always_inline]] ROTOSCALE_HD inline float exp2_normal(float x) {
  const auto [p, n] = split_exp2(x);
  return fp32_from_bits(fp32_bits(p) + n);
}

/// exp(x) for x <= 0 or NaN, by fewer operations. The bits equal those of exp, except for the bits of a NaN.
[[gnu::always_inline]] ROTOSCALE_HD inline float exp_of_difference(float x) {
  const float shifted = fma(x, 0x1.715476p+0f, 0x1.8p+23f);
  const float n = shifted - 0x1.8p+23f;
  const float p = exp_taylor(fma(n, -0x1.7F7D1Cp-20f, fma(n, -0x1.62E400p-1f, x)));
  const float y = p * fp32_from_bits((fp32_bits(shifted) << 23) + fp32_bits(1.0f));
  return x < -87.33f ? 0.0f : y;
}

/// Natural logarithm of a positive normal x: error below 3 units in the last place. Inf and NaN are returned unchanged.
[[gnu::always_inline]] ROTOSCALE_HD inline float log(float x) {
  const std::uint32_t u = fp32_bits(x);
  // 1. x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const int e = static_cast<int>((u + 0x004AFB0Du) >> 23) - 127;
  const float m = fp32_from_bits(u - (static_cast<std::uint32_t>(e) << 23));
  // 2. log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| <= 0.1716: series to s^11.
  const float s = (m - 1.0f) / (m + 1.0f);
  const float s2 = s * s;
  float p = fma(s2, 2.0f / 11.0f, 2.0f / 9.0f);
  p = fma(p, s2, 2.0f / 7.0f);
  p = fma(p, s2, 2.0f / 5.0f);
  p = fma(p, s2, 2.0f / 3.0f);
  p = fma(p * s2, s, 2.0f * s);
  const float n = static_cast<float>(e);
  const float y = fma(n, 0x1.62E400p-1f, fma(n, 0x1.7F7D1Cp-20f, p));
  return u < fp32_infinity_bits ? y : x;
}

inline constexpr int sum_lanes = 16;  ///< partial sums of ordered_sum

/// The order of every sum along a row. Lane j takes the elements j, j + 16, ... in turn. Then lanes are folded by
/// halves (j + 8, j + 4, j + 2, j + 1). `step(i, partial)` returns partial with element i added.
template <class Step>
ROTOSCALE_HD inline float ordered_sum(index_t n, const Step& step) {
  float lane[sum_lanes] = {};
  index_t i = 0;
  for (; i + sum_lanes <= n; i += sum_lanes) {
    for (int j = 0; j < sum_lanes; ++j) lane[j] = step(i + j, lane[j]);
  }
  for (int j = 0; i + j < n; ++j) lane[j] = step(i + j, lane[j]);
  for (int width = sum_lanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

}  // namespace rotoscale::nn
