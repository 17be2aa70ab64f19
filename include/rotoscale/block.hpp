// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Block-scaled (MX) tensors: what is stored, how it is chosen, and the reference quantizer that defines every bit.
// quantize.hpp has the fast one.
#pragma once

#include <type_traits>

#include "rotoscale/hadamard.hpp"
#include "rotoscale/pack.hpp"
#include "rotoscale/philox.hpp"
#include "rotoscale/scale.hpp"
#include "rotoscale/small_float.hpp"
#include "rotoscale/view.hpp"

namespace rotoscale {

/// What is stored: `rows` × `length` elements share one scale, `length` along the contraction axis.
struct block_format {
  format element;  ///< of at most 8 bits
  int length = 32;
  /// E8M0, or a floating-point format of at most 8 bits with a NaN and without negative numbers.
  format scale = formats::e8m0;
  int rows = 1;

  constexpr bool operator==(const block_format&) const = default;

  /// Power-of-two scales follow a scale_rule; others take FP32 arithmetic.
  ROTOSCALE_HD constexpr bool has_e8m0_scale() const {
    constexpr format e8m0 = formats::e8m0;  // == takes references, and device code has none to a namespace's constant
    return scale == e8m0;
  }
};

/// The concrete formats of OCP MX v1.0, section 5, and NVIDIA's NVFP4 (arXiv:2509.25149).
inline constexpr block_format mxfp4{formats::e2m1};
inline constexpr block_format mxfp6_e2m3{formats::e2m3};
inline constexpr block_format mxfp6_e3m2{formats::e3m2};
inline constexpr block_format mxfp8_e4m3{formats::e4m3};
inline constexpr block_format mxfp8_e5m2{formats::e5m2};
inline constexpr block_format mxint8{formats::int8};
inline constexpr block_format nvfp4{formats::e2m1, 16, formats::ue4m3};

/// The same with one scale for length × length elements (32 × 32 in Primus-Turbo's weights): without a rotation and
/// random bits, a matrix and its transpose then hold the same values.
ROTOSCALE_HD constexpr block_format square_blocks(block_format f) { return {f.element, f.length, f.scale, f.length}; }

/// How it is chosen.
struct block_options {
  /// Inputs are first rounded to this (nearest even), as if the tensor was stored so; FP32 and FP64: taken as they are.
  format source = formats::fp32;
  rotoscale::rotation rotation = {};
  scale_rule rule = scale_rule::floor;
  block_policy policy = policies::ocp;
  rotoscale::rounding rounding = rotoscale::rounding::nearest_even;
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
inline constexpr block_options aiter_round_up{formats::fp32, {}, scale_rule::rceil, policies::aiter_nonzero};
inline constexpr block_options aiter_round_down{formats::fp32, {}, scale_rule::floor, policies::aiter};
inline constexpr block_options aiter_ceil{formats::fp32, {}, scale_rule::ceil, policies::aiter_nonzero};
/// torchao's to_mx by ScaleCalculationMode, as of 0.19 (0.18 gives Inf other scales: docs/oracles.md).
inline constexpr block_options torchao_floor{formats::fp32, {}, scale_rule::floor, policies::ocp};
inline constexpr block_options torchao_rceil{formats::fp32, {}, scale_rule::rceil, policies::ocp};
inline constexpr block_options torchao_even{formats::fp32, {}, scale_rule::even, policies::ocp};
inline constexpr block_options torchao_ceil{formats::fp32, {}, scale_rule::ceil, policies::ocp};
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
  index_t rows = 0;
  index_t k = 0;
  Byte* codes = nullptr;
  index_t code_stride = 0;
  Byte* scales = nullptr;
  index_t scale_stride = 0;

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

/// An element of a source array as FP32: exact, but for FP64, which is rounded to odd. Under E8M0 scales and without a
/// rotation the scale and the deterministic roundings are then what the exact value gives, for magnitudes below 2^128
/// (others count as FP32's largest number) and elements whose least number is at least 2^-20 (all named ones).
ROTOSCALE_HD constexpr float source_value(float x) { return x; }
ROTOSCALE_HD constexpr float source_value(double x) {
  return fp32_from_bits(static_cast<std::uint32_t>(
      convert(formats::fp64, bit_cast<std::uint64_t>(x), formats::fp32, rounding::to_odd, overflow::to_inf)));
}
template <format F>
ROTOSCALE_HD constexpr float source_value(small_float<F> x) {
  return static_cast<float>(x);
}

/// `x` as the source format would have stored it.
ROTOSCALE_HD constexpr float round_source(format source, float x) {
  constexpr format fp32 = formats::fp32;
  return source == fp32 ? x : decode(source, encode(source, x, rounding::nearest_even, overflow::to_inf));
}

/// Code of x / 2^(scale_byte - 127). The division is a change of exponent, so there is one rounding.
ROTOSCALE_HD constexpr std::uint32_t encode_scaled(format element, float x, std::uint8_t scale_byte, rounding r,
                                                   random_bits random) {
  unpacked u = unpack(formats::fp32, fp32_bits(x));
  u.exponent -= scale_exponent(scale_byte);
  return static_cast<std::uint32_t>(round_to(element, u, r, overflow::saturate, random));
}

/// What elements are multiplied by under a floating-point scale: 1 / (scale * (1 / encode_factor)), each step rounded
/// to FP32, at most FLT_MAX (TE's block_scale_inverse).
ROTOSCALE_HD constexpr float scale_inverse(format scale, std::uint8_t code, float encode_factor) {
  constexpr float largest = 0x1.FFFFFEp127f;
  const float divisor = decode(scale, code) * (1.0f / encode_factor);
  return divisor > 0x1p-128f ? 1.0f / divisor : largest;  // 1 / 2^-128 would be Inf
}

/// The amax of a block of which no number was seen yet: above all bits of magnitudes.
inline constexpr std::uint32_t no_amax = 0xFFFFFFFFu;

/// Largest magnitude as FP32 bits of `length` more elements of a block of which `amax` was seen before, under the
/// policy's view of NaN.
ROTOSCALE_HD constexpr std::uint32_t block_amax(const float* x, int length, const block_policy& policy,
                                                std::uint32_t amax = no_amax) {
  for (int i = 0; i < length; ++i) {
    const std::uint32_t u = fp32_bits(x[i]) & fp32_magnitude_mask;
    if (fp32_is_nan(u) && policy.nan != block_policy::nan_rule::nan_scale) continue;
    amax = amax == no_amax || u > amax ? u : amax;
  }
  return amax;
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

/// Are formats and options consistent, extents equal, k whole runs and rows whole blocks? The quantizers assert it;
/// callers with user input ask first, or use checked.hpp, which also checks memory.
template <class T>
ROTOSCALE_HD constexpr bool quantize_is_defined(block_format f, const block_options& o, matrix<T> source,
                                                block_axis axis, block_matrix<std::uint8_t> out) {
  if (!formats_are_defined(f) || !runs_are_defined(f, o.rotation) || !options_are_defined(f, o)) return false;
  const int rows = axis == block_axis::row ? 0 : 1;
  return out.rows >= 0 && out.k >= 0 && source.extent(rows) == out.rows && source.extent(1 - rows) == out.k &&
         out.k % run_length(f, o.rotation) == 0 && out.rows % f.rows == 0;
}

/// `run` elements of row `r` from column `c` on, as their blocks see them.
template <class T>
ROTOSCALE_HD constexpr void load_run(const block_options& o, matrix<T> in, index_t r, index_t c, int run, float* x) {
  for (int i = 0; i < run; ++i) x[i] = round_source(o.source, source_value(in(r, c + i)));
  rotate_run(x, run, o.rotation);
}

ROTOSCALE_HD constexpr std::uint8_t choose_scale(block_format f, const block_options& o, std::uint32_t amax) {
  if (amax == no_amax) amax = o.policy.nan == block_policy::nan_rule::ignore_unless_all ? fp32_infinity_bits : 0;
  return f.has_e8m0_scale() ? shared_scale(amax, f.element, o.rule, o.policy)
                            : shared_scale(amax, f.element, f.scale, o.encode_factor, o.policy);
}

/// Code of an element under its block's scale; zero under a NaN scale. NaN from FP32 arithmetic is canonical, since its
/// sign differs between processors.
ROTOSCALE_HD constexpr std::uint32_t encode_element(block_format f, const block_options& o, float x, std::uint8_t scale,
                                                    random_bits random) {
  if (f.scale.is_nan(scale)) return 0;
  if (f.has_e8m0_scale()) return encode_scaled(f.element, x, scale, o.rounding, random);
  const float scaled = canonical_nan(x * scale_inverse(f.scale, scale, o.encode_factor));
  return static_cast<std::uint32_t>(encode(f.element, scaled, o.rounding, overflow::saturate, random));
}

/// Rows [tile * f.rows, (tile + 1) * f.rows) of quantize_ref's output, and their row of scales.
template <class T>
ROTOSCALE_HD constexpr void quantize_tile_ref(block_format f, const block_options& o, matrix<T> source, block_axis axis,
                                              block_matrix<std::uint8_t> out, index_t tile) {
  const matrix<T> in = axis == block_axis::row ? source : transposed(source);
  const int run = run_length(f, o.rotation);
  const index_t r0 = tile * f.rows;
  float x[max_run_length] = {};
  const index_t last_byte = packed_bytes(f.element, out.k) - 1;
  if (out.k > 0) {
    for (index_t r = r0; r < r0 + f.rows; ++r) out.codes[r * out.code_stride + last_byte] = 0;  // its unused bits
  }
  for (index_t c0 = 0; c0 < out.k; c0 += run) {
    std::uint8_t* scales = out.scales + tile * out.scale_stride + c0 / f.length;
    std::uint32_t amax[max_run_length] = {};
    for (int b = 0; b < run / f.length; ++b) amax[b] = no_amax;
    for (index_t r = r0; r < r0 + f.rows; ++r) {
      load_run(o, in, r, c0, run, x);
      for (int b = 0; b < run / f.length; ++b) {
        amax[b] = block_amax(x + b * f.length, f.length, o.policy, amax[b]);
      }
    }
    for (int b = 0; b < run / f.length; ++b) scales[b] = choose_scale(f, o, amax[b]);
    for (index_t r = r0; r < r0 + f.rows; ++r) {
      if (f.rows > 1) load_run(o, in, r, c0, run, x);
      for (int i = 0; i < run; ++i) {
        const std::uint8_t scale = scales[i / f.length];
        random_bits random{0, o.random_count};
        const auto index = static_cast<std::uint64_t>(r * out.k + c0 + i);
        if (o.rounding == rounding::stochastic) random.word = o.random.word(index);
        store_code(f.element, out.codes + r * out.code_stride, c0 + i, encode_element(f, o, x[i], scale, random));
      }
    }
  }
}

/// The definition. Extents must match and k be a multiple of the block length and of the rotation's points, rows of
/// f.rows (asserted). Blocks whose scale is NaN get zero codes.
template <class T>
ROTOSCALE_HD constexpr void quantize_ref(block_format f, const block_options& o, matrix<T> source, block_axis axis,
                                         block_matrix<std::uint8_t> out) {
  ROTOSCALE_ASSERT(quantize_is_defined(f, o, source, axis, out));
  for (index_t tile = 0; tile < out.rows / f.rows; ++tile) quantize_tile_ref(f, o, source, axis, out, tile);
}

/// Code `code` under block scale `scale` as FP32: exact unless it leaves FP32's range (then rounded once, or Inf).
ROTOSCALE_HD constexpr float decode_scaled(block_format f, std::uint32_t code, std::uint8_t scale) {
  if (f.scale.is_nan(scale)) return fp32_from_bits(fp32_nan_bits);
  if (!f.has_e8m0_scale()) return canonical_nan(decode(f.element, code) * decode(f.scale, scale));
  unpacked u = unpack(f.element, code);
  u.exponent += scale_exponent(scale);
  return fp32_from_bits(
      static_cast<std::uint32_t>(round_to(formats::fp32, u, rounding::nearest_even, overflow::to_inf)));
}

/// Element (r, c) of a quantized matrix as FP32, without a second-level factor.
ROTOSCALE_HD constexpr float decode_element(block_format f, block_matrix<const std::uint8_t> in, index_t r, index_t c) {
  return decode_scaled(f, load_code(f.element, in.codes + r * in.code_stride, c),
                       in.scales[r / f.rows * in.scale_stride + c / f.length]);
}

/// FP32 to an element of a target array.
ROTOSCALE_HD constexpr void store_value(float x, float& to) { to = x; }
template <format F>
ROTOSCALE_HD constexpr void store_value(float x, small_float<F>& to) {
  to = small_float<F>(x, rounding::nearest_even, overflow::to_inf);
}

/// Are the formats consistent, extents equal and k whole blocks? The dequantizers assert it.
template <class T>
ROTOSCALE_HD constexpr bool dequantize_is_defined(block_format f, block_matrix<const std::uint8_t> in, block_axis axis,
                                                  matrix<T> target) {
  const int rows = axis == block_axis::row ? 0 : 1;
  return formats_are_defined(f) && runs_are_defined(f, {}) && in.rows >= 0 && in.k >= 0 && in.k % f.length == 0 &&
         target.extent(rows) == in.rows && target.extent(1 - rows) == in.k;
}

/// Values of a quantized matrix in the orientation of its source, times `decode_factor` (1 / encode_factor where a
/// second-level factor was used), as FP32 or rounded to T. A rotation stays in: it cancels in the GEMM.
template <class T>
ROTOSCALE_HD constexpr void dequantize_ref(block_format f, block_matrix<const std::uint8_t> in, block_axis axis,
                                           matrix<T> target, float decode_factor = 1.0f) {
  const matrix<T> out = axis == block_axis::row ? target : transposed(target);
  ROTOSCALE_ASSERT(dequantize_is_defined(f, in, axis, target));
  for (index_t r = 0; r < in.rows; ++r) {
    for (index_t c = 0; c < in.k; ++c) {
      store_value(canonical_nan(decode_element(f, in, r, c) * decode_factor), out(r, c));
    }
  }
}

}  // namespace rotoscale
