// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Block scales. E8M0: the four rules in use, and the policies in which shipped quantizers differ at equal amax (OCP MX
// v1.0 section 6.3 recommends `floor`; the others conform as well and give other bits). Floating-point scales (NVFP4's
// E4M3): the arithmetic of NVIDIA's Transformer Engine, in FP32.
#pragma once

#include "rotoscale/round.hpp"

namespace rotoscale {

/// How a block's amax becomes a power of two, before division by 2^emax of the element format; E8M0 scales only.
enum class scale_rule {
  floor,  ///< exponent of amax (OCP); the block maximum may saturate
  ceil,   ///< next power of two unless amax is one
  even,   ///< exponent of amax rounded to the element's mantissa width: for E2M1 up from mantissa 1.75 (AMD, Quark)
  rceil   ///< least power of two at which amax does not saturate (NVIDIA)
};

/// The places where quantizers with the same scale_rule still disagree.
struct block_policy {
  /// What a NaN does to its block.
  enum class nan_rule {
    ignore,             ///< NaN takes no part in amax; the element conversion sees it
    ignore_unless_all,  ///< the same, but a block of nothing else counts as one with Inf
    nan_scale           ///< the block's scale becomes NaN
  };
  /// The scale of a block whose amax is Inf, or rounds up to it.
  enum class infinity_rule {
    exponent_128,   ///< Inf counts as 2^128 (beyond every floating-point scale: the largest one)
    largest_scale,  ///< the largest finite scale
    nan_scale       ///< NaN
  };

  std::uint8_t zero_byte = 0;                         ///< scale of a block of zeros
  std::uint8_t least_byte = 0;                        ///< least scale of any other block
  nan_rule nan = nan_rule::nan_scale;                 ///< NaN in the block
  infinity_rule infinity = infinity_rule::nan_scale;  ///< Inf in the block

  ROTOSCALE_ISA_TAG constexpr bool operator==(const block_policy&) const = default;
};

/// Policies by the implementation that has them.
namespace policies {
using nan_rule = block_policy::nan_rule;            ///< shorthand
using infinity_rule = block_policy::infinity_rule;  ///< shorthand
/// ROCm TransformerEngine's fused kernel, as in AMD's MLPerf v6.0 runs.
/// Its maximum starts from a value of the block, so NaN alone survives it (exponent field 255, as Inf's).
inline constexpr block_policy te_rocm{127, 0, nan_rule::ignore_unless_all, infinity_rule::exponent_128};
/// OCP MX v1.0, section 6.3, and torchao.
inline constexpr block_policy ocp{0, 0, nan_rule::nan_scale, infinity_rule::nan_scale};
/// Primus-Turbo's rows of blocks (its 32 × 32 blocks begin the maximum at 0: `ignore`).
inline constexpr block_policy primus{0, 0, nan_rule::ignore_unless_all, infinity_rule::exponent_128};
/// AITER's header in its EVEN mode.
inline constexpr block_policy aiter_even{0, 0, nan_rule::ignore, infinity_rule::exponent_128};
/// AITER's header in its other modes; RoundUp and Ceil never give byte 0 to a nonzero block.
inline constexpr block_policy aiter{0, 0, nan_rule::ignore, infinity_rule::nan_scale};
/// AITER's RoundUp and Ceil.
inline constexpr block_policy aiter_nonzero{0, 1, nan_rule::ignore, infinity_rule::nan_scale};
/// NVIDIA's Transformer Engine (MXFP8 and NVFP4).
inline constexpr block_policy nvidia{0, 0, nan_rule::ignore, infinity_rule::largest_scale};
/// torchao's NVFP4 with one level: no scale below E4M3's least normal number, 2^-6, not even of zeros; NaN is kept.
inline constexpr block_policy torchao_nvfp4{8, 8, nan_rule::nan_scale, infinity_rule::largest_scale};
}  // namespace policies

namespace detail {
/// Mantissa bits of an element's largest number. Without exponent bits its first bit is in the mantissa field (INT8:
/// 6).
ROTOSCALE_HD constexpr int top_mantissa_bits(format element) {
  return element.exponent_bits == 0 ? element.mantissa_bits - 1 : element.mantissa_bits;
}
}  // namespace detail

inline constexpr std::uint8_t nan_scale_byte = 0xFF;   ///< E8M0's NaN
inline constexpr std::uint8_t unit_scale_byte = 0x7F;  ///< E8M0's 2^0

/// E8M0 byte for a block whose largest magnitude has the FP32 bits `amax` (sign clear; NaN if the policy let one in).
ROTOSCALE_HD constexpr std::uint8_t shared_scale(std::uint32_t amax, format element, scale_rule rule,
                                                 const block_policy& policy) {
  if (amax == 0) return policy.zero_byte;
  if (fp32_is_nan(amax)) return nan_scale_byte;
  constexpr std::uint32_t mantissa_mask = 0x007FFFFFu;
  const int width = detail::top_mantissa_bits(element);
  int field = static_cast<int>(amax >> 23);
  std::uint32_t mantissa = amax & mantissa_mask;
  if (field == 0) {  // subnormal: its own exponent, which matters to elements below 2 (INT8)
    const int shift = 23 - highest_bit(amax);
    field = 1 - shift;
    mantissa = amax << shift & mantissa_mask;
  }
  // Rounding amax to the element's mantissa may carry into Inf, which the policy then treats as Inf.
  if (rule == scale_rule::even && field < 255) field += (mantissa + (1u << (22 - width))) >> 23 != 0;
  if (field == 255) {
    if (policy.infinity == block_policy::infinity_rule::nan_scale) return nan_scale_byte;
    if (policy.infinity == block_policy::infinity_rule::largest_scale) return nan_scale_byte - 1;
  }
  int byte = field - element.max_exponent();
  if (rule == scale_rule::ceil) byte += mantissa != 0;
  if (rule == scale_rule::rceil) {
    byte += mantissa > (static_cast<std::uint32_t>(element.max_code() << (23 - width)) & mantissa_mask);
  }
  if (byte < policy.least_byte) byte = policy.least_byte;
  return static_cast<std::uint8_t>(byte < nan_scale_byte ? byte : nan_scale_byte - 1);
}

/// Code in `scale`, a floating-point format with a NaN, for a block whose largest magnitude has the FP32 bits `amax`:
/// amax / (largest element) * encode_factor, each step and the conversion rounded to nearest even, saturating. That is
/// TE's compute_decoding_scaling_factor up to v2.13, and torchao's where there is one level; later versions multiply by
/// encode_factor * (1 / largest), which differs in about one block of four million.
ROTOSCALE_HD constexpr std::uint8_t shared_scale(std::uint32_t amax, format element, format scale, float encode_factor,
                                                 const block_policy& policy) {
  const auto nan = static_cast<std::uint8_t>(scale.nan_code());
  if (amax == 0) return policy.zero_byte;
  if (fp32_is_nan(amax)) return nan;
  if (amax == fp32_infinity_bits && policy.infinity == block_policy::infinity_rule::nan_scale) return nan;
  const float wanted = fp32_from_bits(amax) / decode(element, element.max_code()) * encode_factor;
  const auto code = static_cast<std::uint8_t>(encode(scale, wanted));
  return code < policy.least_byte ? policy.least_byte : code;
}

/// Second-level factor of NVFP4 for a tensor whose largest magnitude is `amax`: the product of the largest element and
/// the largest scale, divided by amax, at most FLT_MAX; 1 for a tensor of zeros or with an Inf. Elements are quantized
/// as if the tensor were multiplied by it, so 1 / encode_factor belongs to the decoded tensor (TE: S_enc and S_dec).
ROTOSCALE_HD constexpr float tensor_encode_factor(float amax, format element, format scale) {
  if (amax == 0.0f) return 1.0f;
  const float factor = decode(scale, scale.max_code()) * decode(element, element.max_code()) / amax;
  if (factor == 0.0f) return 1.0f;  // amax is Inf
  return factor < 0x1.FFFFFEp127f ? factor : 0x1.FFFFFEp127f;
}

/// Exponent e of the scale 2^e stored as `byte` (not 0xFF).
ROTOSCALE_HD constexpr int scale_exponent(std::uint8_t byte) { return static_cast<int>(byte) - 127; }

/// An E8M0 scale as FP32; 0x00 is the subnormal 2^-127, 0xFF is NaN.
ROTOSCALE_HD constexpr float scale_value(std::uint8_t byte) {
  return byte == nan_scale_byte ? fp32_from_bits(fp32_nan_bits) : pow2_fp32(scale_exponent(byte));
}

/// A scale of any format as FP32.
ROTOSCALE_HD constexpr float scale_value(format scale, std::uint8_t code) {
  constexpr format e8m0_format = formats::e8m0;
  return scale == e8m0_format ? scale_value(code) : decode(scale, code);
}

/// What elements are multiplied by under a floating-point scale: 1 / (scale * (1 / encode_factor)), each step rounded
/// to FP32, at most FLT_MAX (TE's block_scale_inverse).
ROTOSCALE_HD constexpr float scale_inverse(float scale, float encode_factor) {
  constexpr float largest = 0x1.FFFFFEp127f;
  const float divisor = scale * (1.0f / encode_factor);
  return divisor > 0x1p-128f ? 1.0f / divisor : largest;  // 1 / 2^-128 would be Inf
}
/// The same of a scale's code.
ROTOSCALE_HD constexpr float scale_inverse(format scale, std::uint8_t code, float encode_factor) {
  return scale_inverse(decode(scale, code), encode_factor);
}

static_assert(shared_scale(fp32_bits(1.75f), formats::e2m1, scale_rule::even, policies::te_rocm) == 126);
static_assert(shared_scale(fp32_bits(1.7499999f), formats::e2m1, scale_rule::even, policies::te_rocm) == 125);
static_assert(shared_scale(fp32_bits(6.0f), formats::e2m1, formats::ue4m3, 1.0f, policies::nvidia) == 0x38);
static_assert(tensor_encode_factor(6.0f, formats::e2m1, formats::ue4m3) == 448.0f);
static_assert(shared_scale(fp32_infinity_bits, formats::e2m1, scale_rule::even, policies::te_rocm) == 253);

}  // namespace rotoscale
