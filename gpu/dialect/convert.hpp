// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Conversions between FP32 and FP16, FP8 or E2M1 codes. Each uses the device's instruction if that gives the bits of
// rotoscale/, and portable code elsewhere.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "rotoscale/small_float.hpp"

namespace rotoscale::gpu {

/// Returns the value of FP16 bits. NVIDIA's instruction loses the sign of a NaN.
__device__ inline float fp16_value(std::uint16_t bits) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
  return y;
#elif defined(ROTOSCALE_AMD)
  return static_cast<float>(bit_cast<_Float16>(bits));
#else
  return static_cast<float>(fp16::from_bits(bits));
#endif
}

/// FP16 bits of x, nearest even, Inf on overflow.
__device__ inline std::uint32_t fp16_bits(float x) { return fp16(x, rounding::nearest_even, overflow::to_inf).bits(); }
/// FP16 bits of two numbers, `low` in the lower half.
__device__ inline std::uint32_t fp16_pair(float low, float high) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return fp16_bits(low) | fp16_bits(high) << 16;
#endif
}

/// Returns the value of an E4M3 or E5M2 code. The code's bits move into an FP32, and an exact product corrects the
/// exponent.
ROTOSCALE_HD constexpr float fp8_value(bool e4m3, std::uint32_t code) {
  const std::uint32_t magnitude = code & 0x7Fu, sign = (code & 0x80u) << 24;
  if (e4m3) {
    if (magnitude == 0x7F) return fp32_from_bits(fp32_nan_bits);
    return fp32_from_bits(magnitude << 20 | sign) * pow2_fp32(120);
  }
  if (magnitude > 0x7C) return fp32_from_bits(fp32_nan_bits);
  if (magnitude == 0x7C) return fp32_from_bits(fp32_infinity_bits | sign);
  return fp32_from_bits(magnitude << 21 | sign) * pow2_fp32(112);
}

/// x * y rounded to FP32, never contracted into an FMA.
__device__ inline float rounded_product(float x, float y) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  return __fmul_rn(x, y);
#else
#if defined(__clang__)
#pragma clang fp contract(off)
#endif
  return x * y;
#endif
}

/// encode(F, x, nearest_even, saturate). F has at most 8 bits, subnormal numbers and, if signed, -0. x must not be NaN,
/// nor negative if F is unsigned.
template <format F>
__device__ inline std::uint32_t encode_nearest(float x) {
  static_assert(F.bits() <= 8 && F.exponent_bits > 0 && F.has_subnormals && F.is_signed == F.has_negative_zero());
  constexpr int drop = 23 - F.mantissa_bits;
  constexpr std::uint32_t bias_gap = static_cast<std::uint32_t>(127 - F.bias) << F.mantissa_bits;
  constexpr auto largest = static_cast<std::uint32_t>(F.max_code());
  const std::uint32_t u = fp32_bits(x) & fp32_magnitude_mask;
  const std::uint32_t normal = ((u + ((1u << (drop - 1)) - 1) + (u >> drop & 1u)) >> drop) - bias_gap;
  // Subnormal results: the addition rounds at the format's step, which is the last place of `magic`.
  constexpr float magic = pow2_fp32(F.min_exponent() - F.mantissa_bits + 23);
  const std::uint32_t subnormal = fp32_bits(fp32_from_bits(u) + magic) - fp32_bits(magic);
  constexpr std::uint32_t least_normal = static_cast<std::uint32_t>(F.min_exponent() + 127) << 23;
  const std::uint32_t finite = u < least_normal ? subnormal : normal;
  const std::uint32_t sign = F.is_signed ? fp32_bits(x) >> 31 << F.magnitude_bits() : 0;
  return (finite < largest ? finite : largest) | sign;
}

/// Two FP8 codes, `even` in the low byte. Neither number may be NaN.
template <format F>
__device__ inline std::uint32_t fp8_codes(float even, float odd) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  std::uint16_t both;
  if constexpr (F.mantissa_bits == 3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(odd), "f"(even));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(odd), "f"(even));
  }
  return both;
#else
  return encode_nearest<F>(even) | encode_nearest<F>(odd) << 8;
#endif
}

/// True if the device has gfx950's conversion to E2M1.
#if defined(__gfx950__)
inline constexpr bool has_e2m1_conversion = true;
#else
inline constexpr bool has_e2m1_conversion = false;
#endif

/// Replaces byte `Byte` of `word` by the E2M1 codes of even / scale and odd / scale, nearest even, saturating. `scale`
/// is a power of two.
template <unsigned Byte>
__device__ inline std::uint32_t insert_e2m1([[maybe_unused]] std::uint32_t word, [[maybe_unused]] float even,
                                            [[maybe_unused]] float odd, [[maybe_unused]] float scale) {
#if defined(__gfx950__)
  return __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(word, even, odd, scale, Byte);
#else
  return word;
#endif
}

}  // namespace rotoscale::gpu
