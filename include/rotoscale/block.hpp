// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Block-scaled (MX) tensors: what is stored and how it is chosen. quantize_ref.hpp and dequantize_ref.hpp define every
// bit, quantize.hpp and dequantize.hpp are fast.
#pragma once

#include <type_traits>

#include "rotoscale/hadamard.hpp"
#include "rotoscale/pack.hpp"
#include "rotoscale/philox.hpp"
#include "rotoscale/scale.hpp"

namespace rotoscale {

/// What is stored: `rows` × `length` elements share one scale, `length` along the contraction axis.
struct block_format {
  format element;   ///< of at most 8 bits
  int length = 32;  ///< elements along the contraction axis
  /// E8M0, or a floating-point format of at most 8 bits with a NaN and without negative numbers.
  format scale = formats::e8m0;
  int rows = 1;  ///< rows that share the scale

  ROTOSCALE_ISA_TAG constexpr bool operator==(const block_format&) const = default;

  /// Power-of-two scales follow a scale_rule; others take FP32 arithmetic.
  ROTOSCALE_HD constexpr bool has_e8m0_scale() const {
    // == takes references, and device code has none to a namespace's constant.
    constexpr format e8m0_format = formats::e8m0;
    return scale == e8m0_format;
  }
};

/// The concrete formats of OCP MX v1.0, section 5, and NVIDIA's NVFP4 (arXiv:2509.25149).
inline constexpr block_format mxfp4{formats::e2m1};
inline constexpr block_format mxfp6_e2m3{formats::e2m3};                 ///< E2M3, blocks of 32
inline constexpr block_format mxfp6_e3m2{formats::e3m2};                 ///< E3M2, blocks of 32
inline constexpr block_format mxfp8_e4m3{formats::e4m3};                 ///< E4M3, blocks of 32
inline constexpr block_format mxfp8_e5m2{formats::e5m2};                 ///< E5M2, blocks of 32
inline constexpr block_format mxint8{formats::int8};                     ///< INT8, blocks of 32
inline constexpr block_format nvfp4{formats::e2m1, 16, formats::ue4m3};  ///< E2M1, blocks of 16 under UE4M3

/// The same with one scale for length × length elements (32 × 32 in Primus-Turbo's weights): without a rotation and
/// random bits, a matrix and its transpose then hold the same values.
ROTOSCALE_HD constexpr block_format square_blocks(block_format f) { return {f.element, f.length, f.scale, f.length}; }

/// How it is chosen.
struct block_options {
  /// Inputs are first rounded to this (nearest even), as if the tensor was stored so; FP32 and FP64: taken as they are.
  format source = formats::fp32;
  rotoscale::rotation rotation = {};                                 ///< before amax is taken
  scale_rule rule = scale_rule::floor;                               ///< for E8M0 scales
  block_policy policy = policies::ocp;                               ///< blocks of zeros, NaN and Inf
  rotoscale::rounding rounding = rotoscale::rounding::nearest_even;  ///< of elements
  random_stream random = {};  ///< for stochastic rounding: element (r, c) of a rows × k output takes word r * k + c
  int random_count = 32;      ///< how many bits of that word are used, 1 to 32
  /// For floating-point scales: second-level factor of the tensor (tensor_encode_factor), finite and above zero.
  float encode_factor = 1.0f;
};

/// Shipped implementations by name: what they do with an array of the type in brackets (else of any).
namespace presets {
/// AMD's production kernel (ROCm TransformerEngine): H16, EVEN scale, NaN and Inf as its kernel treats them [BF16].
inline constexpr block_options te_rocm{formats::bf16, {16}, scale_rule::even, policies::te_rocm};
/// AMD's Primus-Turbo, without its optional rotation; its weights are square_blocks(mxfp4).
inline constexpr block_options primus{formats::fp32, {}, scale_rule::even, policies::primus};
/// AITER's mx_quant_utils.h by mode.
inline constexpr block_options aiter_even{formats::fp32, {}, scale_rule::even, policies::aiter_even};
/// Mode RoundUp.
inline constexpr block_options aiter_round_up{formats::fp32, {}, scale_rule::rceil, policies::aiter_nonzero};
/// Mode RoundDown.
inline constexpr block_options aiter_round_down{formats::fp32, {}, scale_rule::floor, policies::aiter};
inline constexpr block_options aiter_ceil{formats::fp32, {}, scale_rule::ceil, policies::aiter_nonzero};  ///< mode Ceil
/// torchao's to_mx by ScaleCalculationMode, as of 0.19 (0.18 gives Inf other scales: docs/reference/oracles.md).
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

/// Along which axis of the source matrix blocks run. A column-wise result is stored transposed.
enum class block_axis { row, column };

/// A quantized matrix: `rows` vectors of `k` elements, blocks along k. For a source of M × N, block_axis::row gives
/// rows = M, k = N and block_axis::column gives rows = N, k = M. Strides are in bytes.
template <class Byte>
struct block_matrix {
  index_t rows = 0;          ///< vectors
  index_t k = 0;             ///< elements of a vector, along the contraction axis
  Byte* codes = nullptr;     ///< packed (pack.hpp), vector by vector
  index_t code_stride = 0;   ///< bytes from a vector's codes to the next
  Byte* scales = nullptr;    ///< one byte a block
  index_t scale_stride = 0;  ///< bytes from a row of scales to the next

  /// Of mutable bytes to of const ones.
  template <class U>
    requires(std::is_same_v<U, const Byte> && !std::is_const_v<Byte>)
  ROTOSCALE_HD constexpr operator block_matrix<U>() const {
    return {rows, k, codes, code_stride, scales, scale_stride};
  }
};

/// The densest layout: codes [rows, packed k], scales [rows / f.rows, k / f.length]. Unused bits of a row's last byte
/// are zero.
template <class Byte>
ROTOSCALE_HD constexpr block_matrix<Byte> dense_blocks(block_format f, index_t rows, index_t k, Byte* codes,
                                                       Byte* scales) {
  return {rows, k, codes, packed_bytes(f.element, k), scales, k / f.length};
}

/// Elements along k that are loaded together: a block, or the blocks that one rotation spans.
ROTOSCALE_HD constexpr int run_length(block_format f, const rotation& r) {
  return r.points > f.length ? r.points : f.length;
}

/// Do runs and blocks fit together: points a power of two, 2 to 256, that divides the block length or is a multiple?
ROTOSCALE_HD constexpr bool runs_are_defined(block_format f, const rotation& r) {
  if (f.length < 1 || f.rows < 1 || r.points < 0 || r.points == 1 || (r.points & (r.points - 1)) != 0) return false;
  const int run = run_length(f, r);
  return run <= max_run_length && run % f.length == 0 && (r.points == 0 || run % r.points == 0);
}

/// Have the element and scale formats what block_format asks for?
ROTOSCALE_HD constexpr bool formats_are_defined(block_format f) {
  return f.element.bits() <= 8 && f.scale.bits() <= 8 && f.scale.has_nan() && !f.scale.is_signed;
}

/// Are the options meant for such blocks: random_count 1 to 32, and under a floating-point scale encode_factor finite
/// and above zero and the policy's bytes numbers (TE's zero byte 127 is the NaN of UE4M3)?
ROTOSCALE_HD constexpr bool options_are_defined(block_format f, const block_options& o) {
  if (o.random_count < 1 || o.random_count > 32) return false;
  if (f.has_e8m0_scale()) return true;
  const bool factor_ok = o.encode_factor > 0.0f && fp32_bits(o.encode_factor) < fp32_infinity_bits;
  return factor_ok && o.policy.zero_byte <= f.scale.max_code() && o.policy.least_byte <= f.scale.max_code();
}

}  // namespace rotoscale
