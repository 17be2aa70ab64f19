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
#include "rotoscale/view.hpp"

namespace rotoscale {

/// What is stored: `length` elements share one E8M0 scale.
struct block_format {
  format element;
  int length = 32;

  constexpr bool operator==(const block_format&) const = default;
};

/// The concrete formats of OCP MX v1.0, section 5.
inline constexpr block_format mxfp4{formats::e2m1};
inline constexpr block_format mxfp8_e4m3{formats::e4m3};
inline constexpr block_format mxfp8_e5m2{formats::e5m2};

/// How it is chosen.
struct block_options {
  format source = formats::fp32;  ///< inputs are first rounded to this (nearest even), as if the tensor was stored so
  rotoscale::rotation rotation = {};
  scale_rule rule = scale_rule::floor;
  block_policy policy = policies::ocp;
  rotoscale::rounding rounding = rotoscale::rounding::nearest_even;
  random_stream random = {};  ///< for stochastic rounding: element (r, c) of a rows × k output takes word r * k + c
};

/// AMD's production recipe: BF16 in, H16, EVEN scale, nearest even, NaN and Inf as its kernel treats them.
inline constexpr block_options te_rocm{formats::bf16, {16, 0}, scale_rule::even, policies::te_rocm};

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

/// The densest layout: codes [rows, packed k], scales [rows, k / length].
template <class Byte>
ROTOSCALE_HD constexpr block_matrix<Byte> dense_blocks(block_format f, index_t rows, index_t k, Byte* codes,
                                                       Byte* scales) {
  return {rows, k, codes, packed_bytes(f.element, k), scales, k / f.length};
}

/// `x` as the source format would have stored it.
ROTOSCALE_HD constexpr float round_source(format source, float x) {
  constexpr format fp32 = formats::fp32;  // == takes references, and device code has none to a namespace's constant
  return source == fp32 ? x : decode(source, encode(source, x, rounding::nearest_even, overflow::to_inf));
}

/// Code of x / 2^(scale_byte - 127). The division is a change of exponent, so there is one rounding.
ROTOSCALE_HD constexpr std::uint32_t encode_scaled(format element, float x, std::uint8_t scale_byte, rounding r,
                                                   std::uint32_t random) {
  unpacked u = unpack(formats::fp32, fp32_bits(x));
  u.exponent -= scale_exponent(scale_byte);
  return static_cast<std::uint32_t>(round_to(element, u, r, overflow::saturate, random));
}

/// Largest magnitude of a block as FP32 bits, under the policy's view of NaN.
ROTOSCALE_HD constexpr std::uint32_t block_amax(const float* x, int length, const block_policy& policy) {
  std::uint32_t amax = 0;
  for (int i = 0; i < length; ++i) {
    const std::uint32_t u = fp32_bits(x[i]) & fp32_magnitude_mask;
    if (fp32_is_nan(u) && policy.nan == block_policy::nan_rule::ignore) continue;
    amax = u > amax ? u : amax;
  }
  return amax;
}

/// Largest block length of quantize_ref's local buffer.
inline constexpr int max_block_length = 256;

/// Are the extents consistent, k a multiple of the block length, and the options meant for such blocks? The quantizers
/// assert it; callers with user input ask first.
ROTOSCALE_HD constexpr bool quantize_is_defined(block_format f, const block_options& o, matrix<const float> source,
                                                block_axis axis, block_matrix<std::uint8_t> out) {
  const int rows = axis == block_axis::row ? 0 : 1;
  const int points = o.rotation.points;
  const bool rotation_fits = points == 0 || (points > 0 && (points & (points - 1)) == 0 && f.length % points == 0);
  return f.length >= 1 && f.length <= max_block_length && rotation_fits && source.extent(rows) == out.rows &&
         source.extent(1 - rows) == out.k && out.k % f.length == 0;
}

/// Row `r` of quantize_ref's output.
ROTOSCALE_HD constexpr void quantize_row_ref(block_format f, const block_options& o, matrix<const float> source,
                                             block_axis axis, block_matrix<std::uint8_t> out, index_t r) {
  const matrix<const float> in = axis == block_axis::row ? source : transposed(source);
  for (index_t b = 0; b < out.k / f.length; ++b) {
    float x[max_block_length] = {};
    for (int i = 0; i < f.length; ++i) x[i] = round_source(o.source, in(r, b * f.length + i));
    rotate_block(x, f.length, o.rotation);
    const std::uint8_t scale = shared_scale(block_amax(x, f.length, o.policy), f.element, o.rule, o.policy);
    out.scales[r * out.scale_stride + b] = scale;
    for (int i = 0; i < f.length; ++i) {
      const index_t c = b * f.length + i;
      const auto word_index = static_cast<std::uint64_t>(r * out.k + c);
      const std::uint32_t random = o.rounding == rounding::stochastic ? o.random.word(word_index) : 0;
      const std::uint32_t code =
          scale == nan_scale_byte ? 0 : encode_scaled(f.element, x[i], scale, o.rounding, random);
      store_code(f.element, out.codes + r * out.code_stride, c, code);
    }
  }
}

/// The definition. Extents must match and k must be a multiple of the block length (asserted; a block whose scale is
/// NaN gets zero codes).
ROTOSCALE_HD constexpr void quantize_ref(block_format f, const block_options& o, matrix<const float> source,
                                         block_axis axis, block_matrix<std::uint8_t> out) {
  ROTOSCALE_ASSERT(quantize_is_defined(f, o, source, axis, out));
  for (index_t r = 0; r < out.rows; ++r) quantize_row_ref(f, o, source, axis, out, r);
}

/// Element (r, c) of a quantized matrix as FP32: exact unless it leaves FP32's range (then rounded once, or Inf).
ROTOSCALE_HD constexpr float decode_element(block_format f, block_matrix<const std::uint8_t> in, index_t r, index_t c) {
  const std::uint8_t scale = in.scales[r * in.scale_stride + c / f.length];
  if (scale == nan_scale_byte) return fp32_from_bits(fp32_nan_bits);
  unpacked u = unpack(f.element, load_code(f.element, in.codes + r * in.code_stride, c));
  u.exponent += scale_exponent(scale);
  return fp32_from_bits(
      static_cast<std::uint32_t>(round_to(formats::fp32, u, rounding::nearest_even, overflow::to_inf)));
}

/// FP32 values of a quantized matrix in the orientation of its source. A rotation stays in: it cancels in the GEMM.
ROTOSCALE_HD constexpr void dequantize_ref(block_format f, block_matrix<const std::uint8_t> in, block_axis axis,
                                           matrix<float> target) {
  const matrix<float> out = axis == block_axis::row ? target : transposed(target);
  ROTOSCALE_ASSERT(out.extent(0) == in.rows && out.extent(1) == in.k);
  for (index_t r = 0; r < in.rows; ++r) {
    for (index_t c = 0; c < in.k; ++c) out(r, c) = decode_element(f, in, r, c);
  }
}

}  // namespace rotoscale
