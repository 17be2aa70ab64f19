// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Bit casts, counts and shifts. This is the only numerics header that uses compiler builtins: nvcc takes std::bit_cast
// and std::countl_zero in device code only with extra flags.
#pragma once

#include "rotoscale/config.hpp"

namespace rotoscale {

/// std::bit_cast for device code as well.
template <class To, class From>
ROTOSCALE_HD constexpr To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

/// The bits of an FP32 number.
ROTOSCALE_HD constexpr std::uint32_t fp32_bits(float x) { return bit_cast<std::uint32_t>(x); }
/// The FP32 number with these bits.
ROTOSCALE_HD constexpr float fp32_from_bits(std::uint32_t u) { return bit_cast<float>(u); }

inline constexpr std::uint32_t fp32_sign_mask = 0x80000000u;       ///< the sign bit
inline constexpr std::uint32_t fp32_magnitude_mask = 0x7FFFFFFFu;  ///< all other bits
inline constexpr std::uint32_t fp32_infinity_bits = 0x7F800000u;   ///< +Inf
inline constexpr std::uint32_t fp32_nan_bits = 0x7FC00000u;        ///< the canonical NaN of this library

/// Are these the bits of a NaN of either sign?
ROTOSCALE_HD constexpr bool fp32_is_nan(std::uint32_t u) { return (u & fp32_magnitude_mask) > fp32_infinity_bits; }
/// `x`; any NaN becomes fp32_nan_bits.
ROTOSCALE_HD constexpr float canonical_nan(float x) {
  return fp32_is_nan(fp32_bits(x)) ? fp32_from_bits(fp32_nan_bits) : x;
}

/// Position of the highest set bit of x, counted from 0; x must not be zero.
ROTOSCALE_HD constexpr int highest_bit(std::uint64_t x) {
  ROTOSCALE_ASSERT(x != 0);
#if defined(__CUDA_ARCH__)  // the device pass has no __builtin_clzll in constexpr functions; same result
  int n = 0;
  while (x >>= 1) ++n;
  return n;
#else
  return 63 - __builtin_clzll(x);
#endif
}

/// 2^e as FP32 for -149 <= e <= 127 (subnormal below -126).
ROTOSCALE_HD constexpr float pow2_fp32(int e) {
  ROTOSCALE_ASSERT(e >= -149 && e <= 127);
  return fp32_from_bits(e >= -126 ? static_cast<std::uint32_t>(e + 127) << 23 : 1u << (e + 149));
}

/// x / 2^n, with bit 0 set (sticky) if a nonzero bit was shifted out.
ROTOSCALE_HD constexpr std::uint64_t shift_right_sticky(std::uint64_t x, int n) {
  if (n <= 0) return x << -n;
  if (n > 63) return x != 0;
  return (x >> n) | ((x & ((std::uint64_t{1} << n) - 1)) != 0);
}

static_assert(pow2_fp32(0) == 1.0f && pow2_fp32(-149) > 0.0f && pow2_fp32(-127) == 0x1p-127f);
static_assert(shift_right_sticky(0b1001, 1) == 0b101 && shift_right_sticky(0b1000, 1) == 0b100);

}  // namespace rotoscale
