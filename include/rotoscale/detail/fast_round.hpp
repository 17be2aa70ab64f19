// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// encode() for FP32 without branches. U is std::uint32_t or lanes_u32 with FP32 bits, so one source serves a number and
// a register. Vectors are passed by reference: passing by value depends on compiler flags. round.hpp is the definition;
// the test compares all 2^32 inputs.
#pragma once

#include <type_traits>

#include "rotoscale/detail/simd.hpp"
#include "rotoscale/round.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

template <class U>
struct floats_of;
template <>
struct floats_of<std::uint32_t> {
  using type = float;
};
template <>
struct floats_of<lanes_u32> {
  using type = lanes_f32;
};

/// round_to(bf16, ·) as FP32 bits, nearest even, for all numbers except NaN.
template <class U>
constexpr void round_number_to_bf16(U& u) {
  u = (u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u;
}

/// round_number_to_bf16 with NaN, which becomes canonical and keeps its sign.
template <class U>
constexpr void round_to_bf16(U& u) {
  U rounded = u;
  round_number_to_bf16(rounded);
  u = (u & fp32_magnitude_mask) > fp32_infinity_bits ? (u & fp32_sign_mask) | fp32_nan_bits : rounded;
}

/// FP16 bits to FP32 bits, exactly: moves the fields, then adds the difference of the biases. Inf and NaN keep the
/// largest exponent.
template <class U>
constexpr void widen_fp16(U& u) {
  const U sign = (u & 0x8000u) << 16, magnitude = (u & 0x7FFFu) << 13;
  const auto value = __builtin_bit_cast(typename floats_of<U>::type, magnitude) * 0x1p112f;
  u = sign | (magnitude >= 0x7C00u << 13 ? magnitude | fp32_infinity_bits : __builtin_bit_cast(U, value));
}

/// Compile-time constants of a format of at most 8 bits.
template <format F>
struct fast_format {
  static_assert(F.bits() <= 8 && F.has_zero && F.has_subnormals && F.specials != specials::fnuz);
  static constexpr int drop = 23 - F.mantissa_bits;  ///< FP32 mantissa bits below the last place
  static constexpr std::uint32_t largest = fp32_bits(decode(F, F.max_code()));
  static constexpr std::uint32_t least_normal = static_cast<std::uint32_t>(F.min_exponent() + 127) << 23;
  /// Difference between the exponent fields of FP32 and F, at the position of F's exponent field.
  static constexpr std::uint32_t bias_gap = static_cast<std::uint32_t>(127 - F.bias) << F.mantissa_bits;
  static constexpr int step_exponent = F.min_exponent() - F.mantissa_bits;  ///< exponent of the least subnormal number
  static constexpr auto nan_code =
      static_cast<std::uint32_t>(F.has_nan() ? F.nan_code() & F.magnitude_mask() : F.max_code());
};

/// FP32 magnitude bits to the magnitude code; nearest even, saturating.
template <format F, class U>
constexpr void nearest_magnitude(U& m) {
  using floats = typename floats_of<U>::type;
  using c = fast_format<F>;
  const U least = m < c::largest ? m : U{} + c::largest;
  // Below the least normal number the FP32 adder rounds: add a power of two whose last place is F's step.
  constexpr float magic = pow2_fp32(c::step_exponent + 23);
  const floats shifted = __builtin_bit_cast(floats, least) + magic;
  U code = __builtin_bit_cast(U, shifted) - fp32_bits(magic);
  if constexpr (c::largest > c::least_normal) {
    const U normal = ((least + ((1u << (c::drop - 1)) - 1u) + ((least >> c::drop) & 1u)) >> c::drop) - c::bias_gap;
    code = least < c::least_normal ? code : normal;
  }
  if constexpr (c::nan_code != F.max_code()) code = m > fp32_infinity_bits ? U{} + c::nan_code : code;
  m = code;
}

/// FP32 magnitude bits to the magnitude code; rounding::stochastic, saturating. `random` has the bits of random_bits at
/// the top and zeros below, so lower bits of the fraction cause no carry.
template <format F, class U>
constexpr void stochastic_magnitude(U& m, const U& random) {
  using floats = typename floats_of<U>::type;
  using c = fast_format<F>;
  const U least = m < c::largest ? m : U{} + c::largest;
  // The leading 32 bits of the fraction below the last place decide. Below the least normal number they are the
  // remainder of a division by the step, which is exact in FP32.
  const U small = least < c::least_normal ? least : U{};
  const floats steps = __builtin_bit_cast(floats, small) * pow2_fp32(-c::step_exponent);
  constexpr float all_bits = 0x1p32f;
  U kept{}, fraction{};
  if constexpr (std::is_same_v<U, std::uint32_t>) {
    kept = static_cast<U>(steps);
    fraction = static_cast<U>((steps - static_cast<float>(kept)) * all_bits);
  } else {
    kept = __builtin_convertvector(steps, U);
    fraction = __builtin_convertvector((steps - __builtin_convertvector(kept, floats)) * all_bits, U);
  }
  if constexpr (c::largest > c::least_normal) {
    kept = least < c::least_normal ? kept : (least >> c::drop) - c::bias_gap;
    fraction = least < c::least_normal ? fraction : least << (32 - c::drop);
  }
  U code = fraction + random < fraction ? kept + 1u : kept;
  if constexpr (c::nan_code != F.max_code()) code = m > fp32_infinity_bits ? U{} + c::nan_code : code;
  m = code;
}

/// Gives a magnitude code the sign of the FP32 number `bits`.
template <format F, class U>
constexpr void add_sign(U& code, const U& bits) {
  static_assert(F.is_signed);
  if constexpr (F.twos_complement) {
    const U negative = bits >> 31;
    code = ((code ^ (U{} - negative)) + negative) & ((1u << F.bits()) - 1u);
  } else {
    code |= (bits >> (31 - F.magnitude_bits())) & static_cast<std::uint32_t>(F.sign_mask());
  }
}

/// Replaces the FP32 bits in `u` by their code: encode(F, x).
template <format F, class U>
constexpr void fast_encode(U& u) {
  U code = u & fp32_magnitude_mask;
  nearest_magnitude<F>(code);
  add_sign<F>(code, u);
  u = code;
}

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
