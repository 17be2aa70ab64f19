// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Block scales from amax.
// - E8M0: the four rules in use, and the policies in which shipped quantizers differ at equal amax. OCP MX v1.0,
//   section
//   6.3, recommends `floor`; the other rules conform too, with other bits.
// - Floating-point scales (NVFP4's E4M3): the FP32 arithmetic of NVIDIA's Transformer Engine (TE).
#pragma once

#include "rotoscale/round.hpp"

namespace rotoscale {

/// Rounding of a block's amax to a power of two, before the division by 2^emax of the element format. E8M0 scales only.
enum class scale_rule {
  floor,  ///< exponent of amax (OCP); the block maximum may saturate
  ceil,   ///< amax if it is a power of two, else the next power of two
  even,   ///< amax rounded to the element's mantissa width; E2M1 rounds up from mantissa 1.75 (AMD, Quark)
  rceil   ///< least power of two for which amax does not saturate (NVIDIA)
};

/// Target of a block's largest magnitude under a floating-point scale.
enum class scale_choice {
  amax,           ///< the element format's largest number
  four_over_six,  ///< E2M1's 6, or 4 where that has the smaller sum of squared errors (arXiv:2512.02010)
  headroom,       ///< 16/17 of the largest number: above it after no rounding of a normal scale (arXiv:2601.22813)
  eden            ///< MS-EDEN: 16/17/0.93 of it; scales are corrected per run, and rounded stochastically (the same)
};

/// Details in which quantizers with the same scale_rule differ.
struct block_policy {
  /// Effect of a NaN on its block.
  enum class nan_rule {
    ignore,             ///< amax ignores NaN; the element conversion handles it
    ignore_unless_all,  ///< the same, but a block of NaN alone counts as one with Inf
    nan_scale           ///< the block's scale becomes NaN
  };
  /// The scale of a block whose amax is Inf, or rounds up to it.
  enum class infinity_rule {
    exponent_128,   ///< Inf counts as 2^128; floating-point scales saturate
    largest_scale,  ///< the largest finite scale
    nan_scale       ///< the block's scale becomes NaN
  };

  std::uint8_t zero_byte = 0;                         ///< scale of a block of zeros
  std::uint8_t least_byte = 0;                        ///< lower bound on the scale of other blocks
  nan_rule nan = nan_rule::nan_scale;                 ///< NaN in the block
  infinity_rule infinity = infinity_rule::nan_scale;  ///< Inf in the block

  ROTOSCALE_ISA_TAG constexpr bool operator==(const block_policy&) const = default;
};

/// Policies by implementation.
namespace policies {
using nan_rule = block_policy::nan_rule;            ///< shorthand
using infinity_rule = block_policy::infinity_rule;  ///< shorthand
/// ROCm TransformerEngine's fused kernel, as in AMD's MLPerf v6.0 runs. Its maximum starts from a value of the block,
/// so a block of NaN alone has a NaN maximum, with Inf's exponent field 255.
inline constexpr block_policy te_rocm{127, 0, nan_rule::ignore_unless_all, infinity_rule::exponent_128};
/// OCP MX v1.0, section 6.3, and torchao.
inline constexpr block_policy ocp{0, 0, nan_rule::nan_scale, infinity_rule::nan_scale};
/// Primus-Turbo's rows of blocks. (Its 32 × 32 blocks start the maximum at 0, which is `ignore`.)
inline constexpr block_policy primus{0, 0, nan_rule::ignore_unless_all, infinity_rule::exponent_128};
/// AITER's header, mode Even.
inline constexpr block_policy aiter_even{0, 0, nan_rule::ignore, infinity_rule::exponent_128};
/// AITER's header, mode RoundDown.
inline constexpr block_policy aiter{0, 0, nan_rule::ignore, infinity_rule::nan_scale};
/// AITER's header, modes RoundUp and Ceil, which never give byte 0 to a nonzero block.
inline constexpr block_policy aiter_nonzero{0, 1, nan_rule::ignore, infinity_rule::nan_scale};
/// NVIDIA's Transformer Engine (MXFP8 and NVFP4).
inline constexpr block_policy nvidia{0, 0, nan_rule::ignore, infinity_rule::largest_scale};
/// torchao's NVFP4 with one level: no scale is below E4M3's least normal number 2^-6, even for zeros. NaN is kept.
inline constexpr block_policy torchao_nvfp4{8, 8, nan_rule::nan_scale, infinity_rule::largest_scale};
}  // namespace policies

namespace detail {
/// Mantissa bits below the leading bit of an element's largest number. INT8 stores the leading bit, so it has 6.
ROTOSCALE_HD constexpr int top_mantissa_bits(format element) {
  return element.exponent_bits == 0 ? element.mantissa_bits - 1 : element.mantissa_bits;
}
}  // namespace detail

inline constexpr std::uint8_t nan_scale_byte = 0xFF;   ///< E8M0's NaN
inline constexpr std::uint8_t unit_scale_byte = 0x7F;  ///< E8M0's 2^0

/// E8M0 byte of a block. `amax`: FP32 bits of its largest magnitude, without sign; NaN if the policy keeps it.
ROTOSCALE_HD constexpr std::uint8_t shared_scale(std::uint32_t amax, format element, scale_rule rule,
                                                 const block_policy& policy) {
  if (amax == 0) return policy.zero_byte;
  if (fp32_is_nan(amax)) return nan_scale_byte;
  constexpr std::uint32_t mantissa_mask = 0x007FFFFFu;
  const int width = detail::top_mantissa_bits(element);
  int field = static_cast<int>(amax >> 23);
  std::uint32_t mantissa = amax & mantissa_mask;
  if (field == 0) {  // subnormal amax: normalised, since its exponent matters to elements below 2 (INT8)
    const int shift = 23 - highest_bit(amax);
    field = 1 - shift;
    mantissa = amax << shift & mantissa_mask;
  }
  // Rounding amax to the element's mantissa may carry to Inf, which the policy treats as Inf.
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

/// The element that the largest magnitude of a block becomes: the largest one or a part of it, rounded to FP32.
ROTOSCALE_HD constexpr float element_target(format element, scale_choice choice) {
  const float largest = decode(element, element.max_code());
  if (choice == scale_choice::eden) return 16.0f * largest / 15.81f;
  return choice == scale_choice::headroom ? 16.0f * largest / 17.0f : largest;
}

/// Scale code of a block: amax / element_target * encode_factor, in the floating-point format `scale`. `amax` is the
/// FP32 bits of the block's largest magnitude. Each step and the conversion round to nearest even, saturating.
/// `expansion` multiplies the scale before the conversion: 1.5 makes 4 of the amax instead of 6.
///
/// It equals TE's compute_decoding_scaling_factor up to v2.13, and torchao's with one level. Later versions of TE
/// multiply by encode_factor * (1 / largest), which differs in about one of four million blocks.
ROTOSCALE_HD constexpr std::uint8_t shared_scale(std::uint32_t amax, format element, format scale, float encode_factor,
                                                 const block_policy& policy, scale_choice choice = scale_choice::amax,
                                                 float expansion = 1.0f) {
  const auto nan = static_cast<std::uint8_t>(scale.nan_code());
  if (amax == 0) return policy.zero_byte;
  if (fp32_is_nan(amax)) return nan;
  if (amax == fp32_infinity_bits && policy.infinity == block_policy::infinity_rule::nan_scale) return nan;
  const float wanted = fp32_from_bits(amax) / element_target(element, choice) * encode_factor * expansion;
  const auto code = static_cast<std::uint8_t>(encode(scale, wanted));
  return code < policy.least_byte ? policy.least_byte : code;
}

/// Largest scale of a tensor before it is multiplied: under four_over_six and eden the largest power of two.
ROTOSCALE_HD constexpr float scale_target(format scale, scale_choice choice) {
  const bool multiplied = choice == scale_choice::four_over_six || choice == scale_choice::eden;
  return multiplied ? pow2_fp32(scale.max_exponent()) : decode(scale, scale.max_code());
}

/// Second-level factor (encode_factor) of an NVFP4 tensor with largest magnitude `amax`: element_target * scale_target
/// / amax, at most FLT_MAX. Returns 1 for a tensor of zeros or with an Inf. The tensor is multiplied by it before
/// quantization, so its decoded values need the factor 1 / encode_factor (TE: S_enc and S_dec).
ROTOSCALE_HD constexpr float tensor_encode_factor(float amax, format element, format scale,
                                                  scale_choice choice = scale_choice::amax) {
  if (amax == 0.0f) return 1.0f;
  const float factor = scale_target(scale, choice) * element_target(element, choice) / amax;
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

/// Factor of the elements under a floating-point scale: 1 / (scale * (1 / encode_factor)), at most FLT_MAX. Each step
/// is rounded to FP32 (TE's block_scale_inverse).
ROTOSCALE_HD constexpr float scale_inverse(float scale, float encode_factor) {
  constexpr float largest = 0x1.FFFFFEp127f;
  const float divisor = scale * (1.0f / encode_factor);
  return divisor > 0x1p-128f ? 1.0f / divisor : largest;  // 1 / 2^-128 would be Inf
}
/// scale_inverse for a scale's code.
ROTOSCALE_HD constexpr float scale_inverse(format scale, std::uint8_t code, float encode_factor) {
  return scale_inverse(decode(scale, code), encode_factor);
}

static_assert(shared_scale(fp32_bits(1.75f), formats::e2m1, scale_rule::even, policies::te_rocm) == 126);
static_assert(shared_scale(fp32_bits(1.7499999f), formats::e2m1, scale_rule::even, policies::te_rocm) == 125);
static_assert(shared_scale(fp32_bits(6.0f), formats::e2m1, formats::ue4m3, 1.0f, policies::nvidia) == 0x38);
static_assert(tensor_encode_factor(6.0f, formats::e2m1, formats::ue4m3) == 448.0f);
static_assert(tensor_encode_factor(6.0f, formats::e2m1, formats::ue4m3, scale_choice::four_over_six) == 256.0f);
static_assert(shared_scale(fp32_infinity_bits, formats::e2m1, scale_rule::even, policies::te_rocm) == 253);

}  // namespace rotoscale
