// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Block-scaled (MX) tensors: their storage (block_format, block_matrix), the options of quantization and named presets.
// The files quantize_ref.hpp and dequantize_ref.hpp define every bit. Fast versions: quantize.hpp, dequantize.hpp.
#pragma once

#include <type_traits>

#include "rotoscale/hadamard.hpp"
#include "rotoscale/pack.hpp"
#include "rotoscale/philox.hpp"
#include "rotoscale/scale.hpp"

namespace rotoscale {

/// Storage of a block-scaled tensor: `rows` × `length` elements share one scale.
struct block_format {
  format element;   ///< at most 8 bits
  int length = 32;  ///< elements along the contraction axis
  /// E8M0, or an unsigned floating-point format of at most 8 bits with a NaN.
  format scale = formats::e8m0;
  int rows = 1;  ///< rows that share the scale

  ROTOSCALE_ISA_TAG constexpr bool operator==(const block_format&) const = default;

  /// E8M0 scales are powers of two chosen by a scale_rule; other scales take FP32 arithmetic.
  ROTOSCALE_HD constexpr bool has_e8m0_scale() const {
    // operator== takes references, and device code cannot refer to a namespace-scope constant.
    constexpr format e8m0_format = formats::e8m0;
    return scale == e8m0_format;
  }
};

/// Block formats of OCP MX v1.0, section 5, and NVIDIA's NVFP4 (arXiv:2509.25149).
inline constexpr block_format mxfp4{formats::e2m1};
inline constexpr block_format mxfp6_e2m3{formats::e2m3};                 ///< E2M3, blocks of 32
inline constexpr block_format mxfp6_e3m2{formats::e3m2};                 ///< E3M2, blocks of 32
inline constexpr block_format mxfp8_e4m3{formats::e4m3};                 ///< E4M3, blocks of 32
inline constexpr block_format mxfp8_e5m2{formats::e5m2};                 ///< E5M2, blocks of 32
inline constexpr block_format mxint8{formats::int8};                     ///< INT8, blocks of 32
inline constexpr block_format nvfp4{formats::e2m1, 16, formats::ue4m3};  ///< E2M1, blocks of 16 under UE4M3

/// `f` with one scale for length × length elements (32 × 32 in Primus-Turbo's weights). Without rotation and stochastic
/// rounding, a matrix and its transpose then dequantize to the same values.
ROTOSCALE_HD constexpr block_format square_blocks(block_format f) { return {f.element, f.length, f.scale, f.length}; }

/// Options of quantization: input rounding, rotation, scale rule, element rounding.
struct block_options {
  /// Inputs are first rounded to this format (nearest even). FP32 and FP64 inputs are taken as they are.
  format source = formats::fp32;
  rotoscale::rotation rotation = {};                                 ///< applied before amax is taken
  scale_rule rule = scale_rule::floor;                               ///< rule for E8M0 scales
  block_policy policy = policies::ocp;                               ///< blocks of zeros, with NaN or with Inf
  rotoscale::rounding rounding = rotoscale::rounding::nearest_even;  ///< rounding of elements
  /// Stochastic rounding: element (r, c) of a rows × k output takes word r * k + c. With eden a scale takes its first
  /// element's word.
  random_stream random = {};
  int random_count = 32;  ///< random bits used of each word, 1 to 32
  /// Second-level factor of a tensor with floating-point scales (tensor_encode_factor): finite, above zero.
  float encode_factor = 1.0f;
  scale_choice choice = scale_choice::amax;  ///< amax becomes this; another value needs floating-point scales
};

/// Options of shipped quantizers. Brackets name the input type for which the preset holds; without brackets, any type.
namespace presets {
/// ROCm TransformerEngine, AMD's production kernel: H16 rotation, EVEN scale, the kernel's NaN and Inf policy [BF16].
inline constexpr block_options te_rocm{formats::bf16, {16}, scale_rule::even, policies::te_rocm};
/// AMD's Primus-Turbo without its optional rotation. Its weights are square_blocks(mxfp4).
inline constexpr block_options primus{formats::fp32, {}, scale_rule::even, policies::primus};
/// AITER's mx_quant_utils.h, mode Even.
inline constexpr block_options aiter_even{formats::fp32, {}, scale_rule::even, policies::aiter_even};
/// AITER, mode RoundUp.
inline constexpr block_options aiter_round_up{formats::fp32, {}, scale_rule::rceil, policies::aiter_nonzero};
/// AITER, mode RoundDown.
inline constexpr block_options aiter_round_down{formats::fp32, {}, scale_rule::floor, policies::aiter};
inline constexpr block_options aiter_ceil{formats::fp32, {}, scale_rule::ceil, policies::aiter_nonzero};  ///< mode Ceil
/// torchao's to_mx, mode FLOOR, as of 0.19 (0.18 gives Inf other scales: docs/reference/oracles.md).
inline constexpr block_options torchao_floor{formats::fp32, {}, scale_rule::floor, policies::ocp};
inline constexpr block_options torchao_rceil{formats::fp32, {}, scale_rule::rceil, policies::ocp};  ///< mode RCEIL
inline constexpr block_options torchao_even{formats::fp32, {}, scale_rule::even, policies::ocp};    ///< mode EVEN
inline constexpr block_options torchao_ceil{formats::fp32, {}, scale_rule::ceil, policies::ocp};    ///< mode CEIL
/// torchao's NVFP4 with one level (nvfp4_quantize without a tensor scale): encode_factor stays 1.
inline constexpr block_options torchao_nvfp4{formats::fp32, {}, scale_rule::floor, policies::torchao_nvfp4};
/// NVIDIA's Transformer Engine: MXFP8, and NVFP4 with block_options::encode_factor.
inline constexpr block_options nvidia{formats::fp32, {}, scale_rule::rceil, policies::nvidia};
/// The procedure of OCP MX v1.0, section 6.3.
inline constexpr block_options ocp{formats::fp32, {}, scale_rule::floor, policies::ocp};
}  // namespace presets

/// Axis of the source matrix along which blocks run. A column-wise result is stored transposed.
enum class block_axis { row, column };

/// A quantized matrix: `rows` vectors of `k` elements, blocks along k. Strides are in bytes. For a source of M × N:
/// - block_axis::row gives rows = M, k = N
/// - block_axis::column gives rows = N, k = M
template <class Byte>
struct block_matrix {
  index_t rows = 0;          ///< number of vectors
  index_t k = 0;             ///< elements of a vector, along the contraction axis
  Byte* codes = nullptr;     ///< packed (pack.hpp), vector by vector
  index_t code_stride = 0;   ///< bytes between the codes of consecutive vectors
  Byte* scales = nullptr;    ///< one byte per block
  index_t scale_stride = 0;  ///< bytes between consecutive rows of scales

  /// Converts mutable bytes to const bytes.
  template <class U>
    requires(std::is_same_v<U, const Byte> && !std::is_const_v<Byte>)
  ROTOSCALE_HD constexpr operator block_matrix<U>() const {
    return {rows, k, codes, code_stride, scales, scale_stride};
  }
};

/// The dense layout: codes [rows, packed k], scales [rows / f.rows, k / f.length]. Unused bits of a row's last byte are
/// zero.
template <class Byte>
ROTOSCALE_HD constexpr block_matrix<Byte> dense_blocks(block_format f, index_t rows, index_t k, Byte* codes,
                                                       Byte* scales) {
  return {rows, k, codes, packed_bytes(f.element, k), scales, k / f.length};
}

/// Elements along k that are loaded together: a block, or all blocks that one rotation spans.
ROTOSCALE_HD constexpr int run_length(block_format f, const rotation& r) {
  return r.points > f.length ? r.points : f.length;
}

/// Is `r` valid for blocks of `f`? Its points are 0 or a power of two from 2 to 256 that divides the block length or is
/// a multiple of it.
ROTOSCALE_HD constexpr bool runs_are_defined(block_format f, const rotation& r) {
  if (f.length < 1 || f.rows < 1 || r.points < 0 || r.points == 1 || (r.points & (r.points - 1)) != 0) return false;
  const int run = run_length(f, r);
  return run <= max_run_length && run % f.length == 0 && (r.points == 0 || run % r.points == 0);
}

/// Do the element and scale formats meet block_format's conditions?
ROTOSCALE_HD constexpr bool formats_are_defined(block_format f) {
  return f.element.bits() <= 8 && f.scale.bits() <= 8 && f.scale.has_nan() && !f.scale.is_signed;
}

/// Can `f` have scales that are chosen by the elements' errors (four_over_six, eden)? E2M1 elements, and extents that
/// are powers of two, under a scale whose mantissa holds 1.5. eden: blocks of one row.
ROTOSCALE_HD constexpr bool takes_choice(block_format f, scale_choice choice) {
  const auto is_power = [](int n) { return (n & (n - 1)) == 0; };
  constexpr format e2m1_format = formats::e2m1;
  const bool has_half =
      f.scale.mantissa_bits > 0 && decode(f.scale, f.scale.max_code()) >= 1.5f * pow2_fp32(f.scale.max_exponent());
  return f.element == e2m1_format && f.length > 1 && is_power(f.length) && is_power(f.rows) && has_half &&
         (choice != scale_choice::eden || f.rows == 1);
}

/// Are the options valid for blocks of `f`?
/// - random_count is 1 to 32.
/// - Under a floating-point scale, encode_factor is finite and above zero.
/// - Under a floating-point scale, the policy's bytes are numbers. (TE's zero byte 127 is the NaN of UE4M3.)
/// - E8M0 scales have no choice. four_over_six and eden round to nearest even.
ROTOSCALE_HD constexpr bool options_are_defined(block_format f, const block_options& o) {
  if (o.random_count < 1 || o.random_count > 32) return false;
  if (f.has_e8m0_scale()) return o.choice == scale_choice::amax;
  const bool by_error = o.choice == scale_choice::four_over_six || o.choice == scale_choice::eden;
  if (by_error && (!takes_choice(f, o.choice) || o.rounding != rounding::nearest_even)) return false;
  const bool factor_ok = o.encode_factor > 0.0f && fp32_bits(o.encode_factor) < fp32_infinity_bits;
  return factor_ok && o.policy.zero_byte <= f.scale.max_code() && o.policy.least_byte <= f.scale.max_code();
}

}  // namespace rotoscale
