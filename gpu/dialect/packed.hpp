// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operations on two 16-bit or four 8-bit numbers in a register, and rounding to BF16. NVIDIA's instructions with nvcc,
// portable code of the same bits elsewhere.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "rotoscale/round.hpp"

namespace rotoscale::gpu {

/// True if kernels use arithmetic of BF16 pairs. AMD has none; host mode does, for tests.
#if defined(ROTOSCALE_AMD)
inline constexpr bool has_packed_bf16 = false;
#else
inline constexpr bool has_packed_bf16 = true;
#endif

/// PTX prmt.b32. Byte i of the result is byte n of `high:low`, where n is the low three bits of the selector's nibble
/// i. If bit 3 of the nibble is set, the result byte is eight copies of that byte's top bit.
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
/// The same with an immediate selector.
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

/// sum (32 bits) plus the products of the four int8 of a and b.
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

/// Position of the lowest set bit of x, which must not be zero.
__device__ inline int lowest_bit(std::uint32_t x) {
#if defined(ROTOSCALE_CUDA)
  return __ffs(static_cast<int>(x)) - 1;
#else
  return __builtin_ctz(x);
#endif
}
/// Number of set bits.
__device__ inline int count_bits(std::uint32_t x) {
#if defined(ROTOSCALE_CUDA)
  return __popc(x);
#else
  return __builtin_popcount(x);
#endif
}

/// Upper 32 bits of the product.
__device__ inline std::uint32_t multiply_high(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>(std::uint64_t{a} * b >> 32);
}

/// A divisor and its reciprocal: floor(2^32 / divisor), at most 2^32 - 1.
struct known_divisor {
  std::uint32_t divisor = 1, inverse = 0xFFFFFFFFu;
  known_divisor() = default;
  __host__ explicit known_divisor(std::uint32_t d)
      : divisor(d), inverse(d == 1 ? 0xFFFFFFFFu : static_cast<std::uint32_t>((std::uint64_t{1} << 32) / d)) {}
};
/// x / by.divisor and the remainder.
struct quotient_and_rest {
  std::uint32_t quotient, rest;
};
__device__ inline quotient_and_rest divide(std::uint32_t x, const known_divisor& by) {
  std::uint32_t quotient = multiply_high(x, by.inverse), rest = x - quotient * by.divisor;
  if (rest >= by.divisor) {  // the inverse is rounded down, so the quotient may be too small by 1
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

/// Maximum of three, one instruction on Hopper.
__device__ inline std::uint32_t max3_u16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  return __vimax3_u16x2(a, b, c);
#else
  return ~min_u16x2(min_u16x2(~a, ~b), ~c);
#endif
}

/// a * b + c of BF16 pairs, rounded once to nearest even. For finite numbers whose result FP64 holds exactly.
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

/// Rounds FP32 bits to BF16 in the upper half, nearest even; the lower half is undefined. u must not be NaN.
ROTOSCALE_HD constexpr std::uint32_t round_number_to_bf16(std::uint32_t u) { return u + 0x7FFFu + (u >> 16 & 1u); }
/// BF16 bits of x, nearest even. A NaN keeps its sign and is otherwise canonical, as round_to defines.
ROTOSCALE_HD constexpr std::uint32_t canonical_bf16(float x) {
  const std::uint32_t u = fp32_bits(x);
  return (fp32_is_nan(u) ? (u & fp32_sign_mask) | fp32_nan_bits : round_number_to_bf16(u)) >> 16;
}
/// BF16 bits of x, nearest even. A NaN keeps its upper half, so that a tensor core's NaN (nan_bits) is stored
/// unchanged. Its payload must be in the upper half.
ROTOSCALE_HD constexpr std::uint32_t bf16_bits_keeping_nan(float x) {
  const std::uint32_t u = fp32_bits(x);
  return fp32_is_nan(u) ? u >> 16 : round_number_to_bf16(u) >> 16;
}
/// Rounds FP32 bits to BF16 in the upper half, nearest even; the lower half is undefined. A NaN is quieted and keeps
/// its payload: quantizers only test for NaN.
ROTOSCALE_HD constexpr std::uint32_t round_to_bf16_quieting_nan(std::uint32_t u) {
  return fp32_is_nan(u) ? u | 0x00400000u : round_number_to_bf16(u);
}

/// BF16 bits of two numbers, `low` in the lower half, nearest even. A NaN stays NaN. On NVIDIA it becomes 0x7FFF, the
/// upper half of the tensor cores' NaN.
__device__ inline std::uint32_t bf16_pair(float low, float high) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return round_to_bf16_quieting_nan(fp32_bits(low)) >> 16 | (round_to_bf16_quieting_nan(fp32_bits(high)) & 0xFFFF0000u);
#endif
}

/// Products of BF16 pairs, nearest even.
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
