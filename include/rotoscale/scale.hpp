// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// E8M0 block scales: the four rules in use, and the policies in which shipped quantizers differ at equal amax.
// OCP MX v1.0 section 6.3 recommends `floor`; the others conform as well and give other bits.
#pragma once

#include "rotoscale/round.hpp"

namespace rotoscale {

/// How a block's amax becomes a power of two, before division by 2^emax of the element format.
enum class scale_rule {
  floor,  ///< exponent of amax (OCP); the block maximum may saturate
  ceil,   ///< next power of two unless amax is one
  even,   ///< exponent of amax rounded to the element's mantissa width: for E2M1 up from mantissa 1.75 (AMD, Quark)
  rceil   ///< least power of two at which amax does not saturate (NVIDIA)
};

/// The places where quantizers with the same scale_rule still disagree.
struct block_policy {
  enum class nan_rule {
    ignore,    ///< NaN takes no part in amax; the element conversion sees it
    nan_scale  ///< the block's scale becomes NaN (0xFF)
  };
  enum class infinity_rule {
    exponent_128,   ///< Inf counts as 2^128
    largest_scale,  ///< 0xFE
    nan_scale       ///< 0xFF
  };

  std::uint8_t zero_byte = 0;   ///< scale of a block of zeros
  std::uint8_t least_byte = 0;  ///< least scale of any other block
  nan_rule nan = nan_rule::nan_scale;
  infinity_rule infinity = infinity_rule::nan_scale;

  constexpr bool operator==(const block_policy&) const = default;
};

/// Policies by the implementation that has them.
namespace policies {
using nan_rule = block_policy::nan_rule;
using infinity_rule = block_policy::infinity_rule;
/// ROCm TransformerEngine's fused kernel, as in AMD's MLPerf v6.0 runs.
inline constexpr block_policy te_rocm{127, 0, nan_rule::ignore, infinity_rule::exponent_128};
inline constexpr block_policy ocp{0, 0, nan_rule::nan_scale, infinity_rule::nan_scale};
}  // namespace policies

inline constexpr std::uint8_t nan_scale_byte = 0xFF;

/// E8M0 byte for a block whose largest magnitude has the FP32 bits `amax` (sign clear; NaN if the policy let one in).
ROTOSCALE_HD constexpr std::uint8_t shared_scale(std::uint32_t amax, format element, scale_rule rule,
                                                 const block_policy& policy) {
  if (amax == 0) return policy.zero_byte;
  if (fp32_is_nan(amax)) return nan_scale_byte;
  constexpr std::uint32_t mantissa_mask = 0x007FFFFFu;
  std::uint32_t u = amax;
  // Rounding amax to the element's mantissa may carry into Inf, which the policy then treats as Inf.
  if (rule == scale_rule::even && u < fp32_infinity_bits) u += 1u << (22 - element.mantissa_bits);
  if (u >= fp32_infinity_bits) {
    if (policy.infinity == block_policy::infinity_rule::nan_scale) return nan_scale_byte;
    if (policy.infinity == block_policy::infinity_rule::largest_scale) return nan_scale_byte - 1;
    u = fp32_infinity_bits;
  }
  int byte = static_cast<int>(u >> 23) - element.max_exponent();
  const std::uint32_t mantissa = u & mantissa_mask;
  if (rule == scale_rule::ceil) byte += mantissa != 0;
  if (rule == scale_rule::rceil) {
    byte += mantissa >
            static_cast<std::uint32_t>((element.max_code() & element.mantissa_mask()) << (23 - element.mantissa_bits));
  }
  if (byte < policy.least_byte) byte = policy.least_byte;
  return static_cast<std::uint8_t>(byte < nan_scale_byte ? byte : nan_scale_byte - 1);
}

/// Exponent e of the scale 2^e stored as `byte` (not 0xFF).
ROTOSCALE_HD constexpr int scale_exponent(std::uint8_t byte) { return static_cast<int>(byte) - 127; }

/// The scale as FP32; 0x00 is the subnormal 2^-127, 0xFF is NaN.
ROTOSCALE_HD constexpr float scale_value(std::uint8_t byte) {
  return byte == nan_scale_byte ? fp32_from_bits(fp32_nan_bits) : pow2_fp32(scale_exponent(byte));
}

static_assert(shared_scale(fp32_bits(1.75f), formats::e2m1, scale_rule::even, policies::te_rocm) == 126);
static_assert(shared_scale(fp32_bits(1.7499999f), formats::e2m1, scale_rule::even, policies::te_rocm) == 125);
static_assert(shared_scale(fp32_infinity_bits, formats::e2m1, scale_rule::even, policies::te_rocm) == 253);

}  // namespace rotoscale
