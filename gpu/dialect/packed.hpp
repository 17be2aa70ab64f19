// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Two 16-bit numbers in a register: the few operations that quantizers and expansions need, NVIDIA's instructions where
// nvcc compiles, and what they mean elsewhere.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "rotoscale/round.hpp"

namespace rotoscale::gpu {

/// Has the device arithmetic of BF16 pairs? AMD's has none; in host mode it is tested.
#if defined(ROTOSCALE_AMD)
inline constexpr bool has_packed_bf16 = false;
#else
inline constexpr bool has_packed_bf16 = true;
#endif

/// Byte i of the result is byte n of `high:low`, n the low three bits of the selector's nibble i; where bit 3 is set,
/// eight copies of that byte's top bit (PTX prmt.b32).
__device__ inline std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
  std::uint32_t result = 0;
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
#else
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t nibble = selector >> (4 * i) & 15u;
    const std::uint32_t byte = (nibble % 8 < 4 ? low >> (8 * (nibble % 4)) : high >> (8 * (nibble % 4))) & 0xFFu;
    result |= (nibble < 8 ? byte : byte >> 7 != 0 ? 0xFFu : 0u) << (8 * i);
  }
#endif
  return result;
}
/// The same for a selector that is part of the instruction.
template <std::uint32_t Selector>
__device__ inline std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  std::uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "n"(Selector));
  return result;
#else
  return permute_bytes(low, high, Selector);
#endif
}

/// sum, of 32 bits, plus the four products of int8 in the bytes of a and b.
template <class Int>
__device__ inline Int dot_int8x4(std::uint32_t a, std::uint32_t b, Int sum) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  return static_cast<Int>(__dp4a(static_cast<int>(a), static_cast<int>(b), static_cast<int>(sum)));
#elif defined(ROTOSCALE_AMD) && defined(__HIP_DEVICE_COMPILE__)
  return static_cast<Int>(
      __builtin_amdgcn_sdot4(static_cast<int>(a), static_cast<int>(b), static_cast<int>(sum), false));
#else
  for (int i = 0; i < 32; i += 8) {
    sum += static_cast<Int>(static_cast<std::int8_t>(a >> i) * static_cast<std::int8_t>(b >> i));
  }
  return sum;
#endif
}

/// (a & mask) | c, one instruction on NVIDIA.
__device__ inline std::uint32_t and_or(std::uint32_t a, std::uint32_t mask, std::uint32_t c) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(a), "r"(mask), "r"(c));
  return result;
#else
  return (a & mask) | c;
#endif
}

/// Position of the lowest bit that is set; x must not be zero.
__device__ inline int lowest_bit(std::uint32_t x) {
#if defined(ROTOSCALE_CUDA)
  return __ffs(static_cast<int>(x)) - 1;
#else
  return __builtin_ctz(x);
#endif
}
/// How many bits are set.
__device__ inline int count_bits(std::uint32_t x) {
#if defined(ROTOSCALE_CUDA)
  return __popc(x);
#else
  return __builtin_popcount(x);
#endif
}

/// The upper half of a product.
__device__ inline std::uint32_t multiply_high(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>(std::uint64_t{a} * b >> 32);
}

/// A divisor, and by what a device multiplies instead: 2^32 / divisor, rounded down, at most 2^32 - 1.
struct known_divisor {
  std::uint32_t divisor = 1, inverse = 0xFFFFFFFFu;
  known_divisor() = default;
  __host__ explicit known_divisor(std::uint32_t d)
      : divisor(d), inverse(d == 1 ? 0xFFFFFFFFu : static_cast<std::uint32_t>((std::uint64_t{1} << 32) / d)) {}
};
/// x / by.divisor and what is left of x.
struct quotient_and_rest {
  std::uint32_t quotient, rest;
};
__device__ inline quotient_and_rest divide(std::uint32_t x, const known_divisor& by) {
  std::uint32_t quotient = multiply_high(x, by.inverse), rest = x - quotient * by.divisor;
  if (rest >= by.divisor) {  // the inverse is too small by less than 1, and so is the quotient
    ++quotient;
    rest -= by.divisor;
  }
  return {quotient, rest};
}

__device__ inline std::uint32_t min_u16x2(std::uint32_t a, std::uint32_t b) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  return __vminu2(a, b);
#else
  const std::uint32_t low = (a & 0xFFFFu) < (b & 0xFFFFu) ? a & 0xFFFFu : b & 0xFFFFu;
  return low | (a >> 16 < b >> 16 ? a & 0xFFFF0000u : b & 0xFFFF0000u);
#endif
}

/// The largest of three, one instruction on Hopper.
__device__ inline std::uint32_t max3_u16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  return __vimax3_u16x2(a, b, c);
#else
  return ~min_u16x2(min_u16x2(~a, ~b), ~c);
#endif
}

/// a * b + c in BF16, rounded once to nearest even. For finite numbers whose result FP64 holds exactly.
__device__ inline std::uint32_t fma_bf16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  std::uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
#else
  std::uint32_t result = 0;
  for (int half = 0; half < 2; ++half) {
    const auto value = [half](std::uint32_t pair) {
      return static_cast<double>(fp32_from_bits((half == 0 ? pair << 16 : pair) & 0xFFFF0000u));
    };
    const auto exact = bit_cast<std::uint64_t>(value(a) * value(b) + value(c));
    result |= static_cast<std::uint32_t>(convert(formats::fp64, exact, formats::bf16)) << (16 * half);
  }
  return result;
#endif
}

/// BF16 of FP32 bits in the upper half, nearest even, other bits below; for all numbers but NaN. canonical_bf16 is the
/// definition's rule for NaN as well (round_to); the exceptions on devices are the three functions behind this one.
ROTOSCALE_HD constexpr std::uint32_t round_number_to_bf16(std::uint32_t u) { return u + 0x7FFFu + (u >> 16 & 1u); }
/// BF16 bits of x, nearest even; NaN keeps its sign and is otherwise canonical.
ROTOSCALE_HD constexpr std::uint32_t canonical_bf16(float x) {
  const std::uint32_t u = fp32_bits(x);
  return (fp32_is_nan(u) ? (u & fp32_sign_mask) | fp32_nan_bits : round_number_to_bf16(u)) >> 16;
}
/// BF16 bits; a NaN keeps its upper half, so that a unit's NaN (nan_bits) is stored as the unit has it. Its payload
/// must lie there.
ROTOSCALE_HD constexpr std::uint32_t bf16_bits_keeping_nan(float x) {
  const std::uint32_t u = fp32_bits(x);
  return fp32_is_nan(u) ? u >> 16 : round_number_to_bf16(u) >> 16;
}
/// BF16 in the upper half, other bits below; a NaN is quieted and keeps its payload, since a quantizer asks only
/// whether it is one.
ROTOSCALE_HD constexpr std::uint32_t round_to_bf16_quieting_nan(std::uint32_t u) {
  return fp32_is_nan(u) ? u | 0x00400000u : round_number_to_bf16(u);
}

/// Two numbers as BF16, `low` in the lower half, nearest even. A NaN stays one: on NVIDIA 0x7FFF, which is also the
/// upper half of its matrix units' NaN.
__device__ inline std::uint32_t bf16_pair(float low, float high) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return round_to_bf16_quieting_nan(fp32_bits(low)) >> 16 | (round_to_bf16_quieting_nan(fp32_bits(high)) & 0xFFFF0000u);
#endif
}

/// Products of two pairs of BF16 numbers, nearest even.
__device__ inline std::uint32_t multiply_bf16(std::uint32_t x, std::uint32_t y) {
#if defined(ROTOSCALE_CUDA)
  std::uint32_t z;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
#else
  const std::uint32_t low = bf16_bits_keeping_nan(fp32_from_bits(x << 16) * fp32_from_bits(y << 16));
  const std::uint32_t high = bf16_bits_keeping_nan(fp32_from_bits(x & 0xFFFF0000u) * fp32_from_bits(y & 0xFFFF0000u));
  return low | high << 16;
#endif
}

}  // namespace rotoscale::gpu
