// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The reference quantizer, which defines every bit of a block-scaled tensor. quantize.hpp has the fast version.
#pragma once

#include "rotoscale/block.hpp"
#include "rotoscale/small_float.hpp"
#include "rotoscale/view.hpp"

namespace rotoscale {

/// An element of a source array as FP32: exact for FP32 and smaller formats; FP64 is rounded to odd.
///
/// With E8M0 scales and no rotation, scale and deterministic roundings then equal the exact FP64 value's. This holds
/// for magnitudes below 2^128; larger ones count as FP32's largest number. The least number of the element format must
/// be at least 2^-20, as in all named formats.
ROTOSCALE_HD constexpr float source_value(float x) { return x; }
/// FP64, rounded to odd.
ROTOSCALE_HD constexpr float source_value(double x) {
  return fp32_from_bits(static_cast<std::uint32_t>(
      convert(formats::fp64, bit_cast<std::uint64_t>(x), formats::fp32, rounding::to_odd, overflow::to_inf)));
}
/// Any small format: exact.
template <format F>
ROTOSCALE_HD constexpr float source_value(small_float<F> x) {
  return static_cast<float>(x);
}

/// Code of x / 2^(scale_byte - 127). Division only changes the exponent, so there is one rounding.
ROTOSCALE_HD constexpr std::uint32_t encode_scaled(format element, float x, std::uint8_t scale_byte, rounding r,
                                                   random_bits random) {
  unpacked u = unpack(formats::fp32, fp32_bits(x));
  u.exponent -= scale_exponent(scale_byte);
  return static_cast<std::uint32_t>(round_to(element, u, r, overflow::saturate, random));
}

/// Start value of amax, above the bits of any magnitude: no element took part yet.
inline constexpr std::uint32_t no_amax = 0xFFFFFFFFu;
/// amax of two parts of a block.
ROTOSCALE_HD constexpr std::uint32_t larger_amax(std::uint32_t a, std::uint32_t b) {
  return a == no_amax || (b != no_amax && b > a) ? b : a;
}

/// FP32 bits of max(amax, |x|) over `length` more elements of a block. The policy decides whether NaN counts.
ROTOSCALE_HD constexpr std::uint32_t block_amax(const float* x, int length, const block_policy& policy,
                                                std::uint32_t amax = no_amax) {
  for (int i = 0; i < length; ++i) {
    const std::uint32_t u = fp32_bits(x[i]) & fp32_magnitude_mask;
    if (fp32_is_nan(u) && policy.nan != block_policy::nan_rule::nan_scale) continue;
    amax = larger_amax(amax, u);
  }
  return amax;
}

/// Are formats and options consistent, extents equal, k whole runs and rows whole blocks? The quantizers require it.
/// Callers with user input ask first or use checked.hpp, which also checks memory.
template <class T>
ROTOSCALE_HD constexpr bool quantize_is_defined(block_format f, const block_options& o, matrix<T> source,
                                                block_axis axis, block_matrix<std::uint8_t> out) {
  if (!formats_are_defined(f) || !runs_are_defined(f, o.rotation) || !options_are_defined(f, o)) return false;
  const int rows = axis == block_axis::row ? 0 : 1;
  return out.rows >= 0 && out.k >= 0 && source.extent(rows) == out.rows && source.extent(1 - rows) == out.k &&
         out.k % run_length(f, o.rotation) == 0 && out.rows % f.rows == 0;
}

/// Loads `run` elements of row `r` from column `c` on: rounded to o.source and rotated.
template <class T>
ROTOSCALE_HD constexpr void load_run(const block_options& o, matrix<T> in, index_t r, index_t c, int run, float* x) {
  for (int i = 0; i < run; ++i) x[i] = round_to_format(o.source, source_value(in(r, c + i)));
  rotate_run(x, run, o.rotation);
}

/// Largest magnitude of a tensor along `axis`, after rounding to o.source and rotation: the argument of
/// tensor_encode_factor. NaN is ignored. Returns 0 if there is nothing else, and Inf if the tensor has one. k must be
/// whole runs (required).
template <class T>
ROTOSCALE_HD constexpr float tensor_amax(block_format f, const block_options& o, matrix<T> source, block_axis axis) {
  const matrix<T> in = axis == block_axis::row ? source : transposed(source);
  const int run = run_length(f, o.rotation);
  ROTOSCALE_REQUIRE(runs_are_defined(f, o.rotation) && in.extent(1) % run == 0);
  block_policy without_nan;
  without_nan.nan = block_policy::nan_rule::ignore;
  std::uint32_t amax = 0;
  float x[max_run_length] = {};
  for (index_t r = 0; r < in.extent(0); ++r) {
    for (index_t c = 0; c < in.extent(1); c += run) {
      load_run(o, in, r, c, run, x);
      amax = block_amax(x, run, without_nan, amax);
    }
  }
  return fp32_from_bits(amax);
}

/// The scale of a block with this amax, as block_amax returns it. `expansion`: four_over_six's 1.5.
ROTOSCALE_HD constexpr std::uint8_t choose_scale(block_format f, const block_options& o, std::uint32_t amax,
                                                 float expansion = 1.0f) {
  if (amax == no_amax) amax = o.policy.nan == block_policy::nan_rule::ignore_unless_all ? fp32_infinity_bits : 0;
  return f.has_e8m0_scale() ? shared_scale(amax, f.element, o.rule, o.policy)
                            : shared_scale(amax, f.element, f.scale, o.encode_factor, o.policy, o.choice, expansion);
}

/// An element under a floating-point scale, before it is rounded. NaN from FP32 arithmetic is canonicalised, since
/// processors differ in its sign.
ROTOSCALE_HD constexpr float scaled_element(block_format f, const block_options& o, float x, std::uint8_t scale) {
  return canonical_nan(x * scale_inverse(f.scale, scale, o.encode_factor));
}
/// Code of an element under its block's scale; zero under a NaN scale.
ROTOSCALE_HD constexpr std::uint32_t encode_element(block_format f, const block_options& o, float x, std::uint8_t scale,
                                                    random_bits random) {
  if (f.scale.is_nan(scale)) return 0;
  if (f.has_e8m0_scale()) return encode_scaled(f.element, x, scale, o.rounding, random);
  return static_cast<std::uint32_t>(
      encode(f.element, scaled_element(f, o, x, scale), o.rounding, overflow::saturate, random));
}

/// Factor of the second scale of four_over_six.
inline constexpr float four_over_six = 1.5f;

/// Error of an element under a scale, times encode_factor: code * scale - x * encode_factor, rounded to FP32 once.
ROTOSCALE_HD inline float element_error(block_format f, const block_options& o, float x, std::uint8_t scale) {
  const std::uint32_t code = encode_element(f, o, x, scale, {});
  return __builtin_fmaf(-x, o.encode_factor, decode(f.element, code) * decode(f.scale, scale));
}
/// Squares of two neighbours: the first one rounded, the second one fused.
ROTOSCALE_HD inline float pair_error(float first, float second) {
  return __builtin_fmaf(second, second, first * first);
}

/// Sum of 2^n terms in a binary tree of neighbours: ((t0 + t1) + (t2 + t3)) + ...
class neighbour_sum {
 public:
  /// Adds the next term.
  ROTOSCALE_HD constexpr void add(float term) {
    int level = 0;
    for (; (count_ >> level & 1u) != 0; ++level) term = part_[level] + term;
    part_[level] = value_ = term;
    ++count_;
  }
  /// After 2^n terms.
  ROTOSCALE_HD constexpr float value() const { return value_; }

 private:
  std::uint32_t count_ = 0;
  float part_[24] = {}, value_ = 0.0f;
};

/// four_over_six's scale of block `b` of a run, whose scale for 6 is `six`. Errors are added over rows from `r0` on.
template <class T>
ROTOSCALE_HD constexpr std::uint8_t choose_four_over_six(block_format f, const block_options& o, matrix<T> in,
                                                         index_t r0, index_t c0, int b, std::uint32_t amax,
                                                         std::uint8_t six) {
  const std::uint8_t four = choose_scale(f, o, amax, four_over_six);
  neighbour_sum of_six, of_four;
  float x[max_run_length] = {};
  for (index_t r = r0; r < r0 + f.rows; ++r) {
    load_run(o, in, r, c0, run_length(f, o.rotation), x);
    for (const float* at = x + b * f.length; at < x + (b + 1) * f.length; at += 2) {
      of_six.add(pair_error(element_error(f, o, at[0], six), element_error(f, o, at[1], six)));
      of_four.add(pair_error(element_error(f, o, at[0], four), element_error(f, o, at[1], four)));
    }
  }
  return of_four.value() < of_six.value() ? four : six;
}

/// Sums of EDEN over two neighbours of a run: y * y and y * q of scaled elements y and their codes' numbers q.
struct eden_terms {
  float squares;   ///< y * y
  float products;  ///< y * q
};
/// The terms of two neighbours: the first product rounded, the second one fused.
ROTOSCALE_HD inline eden_terms pair_terms(float y0, float q0, float y1, float q1) {
  return {__builtin_fmaf(y1, y1, y0 * y0), __builtin_fmaf(y1, q1, y0 * q0)};
}
/// EDEN's correction of a run's scales; 1 where the quotient is no positive number.
ROTOSCALE_HD constexpr float eden_correction(float squares, float products) {
  const float c = squares / products;
  return c > 0.0f && c <= 0x1.FFFFFEp127f ? c : 1.0f;
}
/// An element as EDEN's sums take it: scaled, or 0 under a scale of 0, which loses it.
ROTOSCALE_HD constexpr float eden_element(block_format f, const block_options& o, float x, std::uint8_t scale) {
  return decode(f.scale, scale) == 0.0f ? 0.0f : scaled_element(f, o, x, scale);
}
/// A block's scale times the correction of its run, rounded stochastically, not below the policy's least byte. Scales
/// of NaN and scales of blocks without a nonzero number stay.
ROTOSCALE_HD constexpr std::uint8_t correct_scale(block_format f, const block_options& o, std::uint32_t amax,
                                                  std::uint8_t scale, float correction, std::uint32_t word) {
  if (f.scale.is_nan(scale) || amax == 0 || amax == no_amax) return scale;
  const auto code = static_cast<std::uint8_t>(encode(f.scale, decode(f.scale, scale) * correction, rounding::stochastic,
                                                     overflow::saturate, {word, o.random_count}));
  return code < o.policy.least_byte ? o.policy.least_byte : code;
}
/// Corrects the scales of a run whose rotated elements are `x`, and whose blocks have these maxima. `index`: random
/// word of the first element.
template <class Words>
ROTOSCALE_HD constexpr void correct_scales(block_format f, const block_options& o, const float* x, int run,
                                           const std::uint32_t* amax, std::uint8_t* scales, std::uint64_t index,
                                           const Words& words) {
  neighbour_sum squares, products;
  for (int i = 0; i < run; i += 2) {
    const std::uint8_t scale = scales[i / f.length];
    const float y0 = eden_element(f, o, x[i], scale), y1 = eden_element(f, o, x[i + 1], scale);
    const eden_terms t = pair_terms(y0, decode(f.element, encode_element(f, o, x[i], scale, {})), y1,
                                    decode(f.element, encode_element(f, o, x[i + 1], scale, {})));
    squares.add(t.squares);
    products.add(t.products);
  }
  const float correction = eden_correction(squares.value(), products.value());
  for (int b = 0; b < run / f.length; ++b) {
    const std::uint64_t first = index + static_cast<std::uint64_t>(b * f.length);
    scales[b] = correct_scale(f, o, amax[b], scales[b], correction, words.word(first));
  }
}

/// Quantizes rows [tile * f.rows, (tile + 1) * f.rows) of quantize_ref's output, with their row of scales. `words`: a
/// random_stream or random_words.
template <class T, class Words>
ROTOSCALE_HD constexpr void quantize_tile_ref(block_format f, const block_options& o, matrix<T> source, block_axis axis,
                                              block_matrix<std::uint8_t> out, index_t tile, const Words& words) {
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
    for (int b = 0; b < run / f.length; ++b) {
      scales[b] = choose_scale(f, o, amax[b]);
      if (o.choice != scale_choice::four_over_six) continue;
      scales[b] = choose_four_over_six(f, o, in, r0, c0, b, amax[b], scales[b]);
    }
    for (index_t r = r0; r < r0 + f.rows; ++r) {
      if (f.rows > 1) load_run(o, in, r, c0, run, x);
      for (int i = 0; i < run; ++i) {
        const std::uint8_t scale = scales[i / f.length];
        random_bits random{0, o.random_count};
        const auto index = static_cast<std::uint64_t>(r * out.k + c0 + i);
        if (o.rounding == rounding::stochastic) random.word = words.word(index);
        store_code(f.element, out.codes + r * out.code_stride, c0 + i, encode_element(f, o, x[i], scale, random));
      }
    }
    if (o.choice == scale_choice::eden) {
      correct_scales(f, o, x, run, amax, scales, static_cast<std::uint64_t>(r0 * out.k + c0), words);
    }
  }
}

/// The definition of quantization. Blocks with a NaN scale get zero codes. Required: extents match, k is a multiple of
/// the block length and of the rotation's points, and rows of f.rows. Stochastic rounding of element (r, c) of the
/// rows × k result takes word r * k + c of `words`.
template <class T, class Words>
ROTOSCALE_HD constexpr void quantize_ref(block_format f, const block_options& o, matrix<T> source, block_axis axis,
                                         block_matrix<std::uint8_t> out, const Words& words) {
  ROTOSCALE_REQUIRE(quantize_is_defined(f, o, source, axis, out));
  for (index_t tile = 0; tile < out.rows / f.rows; ++tile) quantize_tile_ref(f, o, source, axis, out, tile, words);
}
/// quantize_ref with the words of `o.random`.
template <class T>
ROTOSCALE_HD constexpr void quantize_ref(block_format f, const block_options& o, matrix<T> source, block_axis axis,
                                         block_matrix<std::uint8_t> out) {
  quantize_ref(f, o, source, axis, out, o.random);
}

}  // namespace rotoscale
