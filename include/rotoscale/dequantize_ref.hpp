// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The reference dequantizer, the value of one code under its block's scale, the inverse rotation of a matrix, and the
// signal-to-noise ratio. The fast dequantizer is in dequantize.hpp.
#pragma once

#include <cmath>
#include <limits>

#include "rotoscale/block.hpp"
#include "rotoscale/small_float.hpp"
#include "rotoscale/view.hpp"

namespace rotoscale {

/// Value of `code` under block scale `scale` as FP32. Exact within FP32's range; beyond it rounded once, or Inf.
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

/// Stores FP32 into a target array's element.
ROTOSCALE_HD constexpr void store_value(float x, float& to) { to = x; }
/// Rounds to nearest even; Inf beyond the range.
template <format F>
ROTOSCALE_HD constexpr void store_value(float x, small_float<F>& to) {
  to = small_float<F>(x, rounding::nearest_even, overflow::to_inf);
}

/// Are the formats consistent, the extents equal and is k whole blocks? The dequantizers require it.
template <class T>
ROTOSCALE_HD constexpr bool dequantize_is_defined(block_format f, block_matrix<const std::uint8_t> in, block_axis axis,
                                                  matrix<T> target) {
  const int rows = axis == block_axis::row ? 0 : 1;
  return formats_are_defined(f) && runs_are_defined(f, {}) && in.rows >= 0 && in.k >= 0 && in.k % f.length == 0 &&
         target.extent(rows) == in.rows && target.extent(1 - rows) == in.k;
}

/// Dequantizes into the orientation of the source, times `decode_factor`, as FP32 or rounded to T. `decode_factor` is 1
/// / encode_factor where a second-level factor was used. A rotation is not undone: it cancels in the GEMM.
template <class T>
ROTOSCALE_HD constexpr void dequantize_ref(block_format f, block_matrix<const std::uint8_t> in, block_axis axis,
                                           matrix<T> target, float decode_factor = 1.0f) {
  const matrix<T> out = axis == block_axis::row ? target : transposed(target);
  ROTOSCALE_REQUIRE(dequantize_is_defined(f, in, axis, target));
  for (index_t r = 0; r < in.rows; ++r) {
    for (index_t c = 0; c < in.k; ++c) {
      store_value(canonical_nan(decode_element(f, in, r, c) * decode_factor), out(r, c));
    }
  }
}

/// Inverts the rotation of dequantized values in place, so that they approximate the source. Blocks of `f` run along
/// `axis`, and values are whole runs (run_length).
ROTOSCALE_HD constexpr void unrotate(block_format f, const rotation& r, matrix<float> values, block_axis axis) {
  const matrix<float> m = axis == block_axis::row ? values : transposed(values);
  ROTOSCALE_REQUIRE(runs_are_defined(f, r) && m.extent(1) % run_length(f, r) == 0);
  if (r.points == 0) return;
  const int run = run_length(f, r);
  float x[max_run_length] = {};
  for (index_t i = 0; i < m.extent(0); ++i) {
    for (index_t first = 0; first < m.extent(1); first += run) {
      for (int e = 0; e < run; ++e) x[e] = m(i, first + e);
      unrotate_run(x, run, r);
      for (int e = 0; e < run; ++e) m(i, first + e) = x[e];
    }
  }
}

namespace detail {
template <class T>
ROTOSCALE_ISA_TAG double fp64_value(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<double>(x);
  } else {
    return static_cast<double>(static_cast<float>(x));
  }
}
}  // namespace detail

/// Signal-to-noise ratio of `y` as an approximation of `x` in dB: `10 log10(sum of x² / sum of (x - y)²)` in FP64, row
/// by row. Inf if both are equal. Extents must be equal.
template <class T, class U>
ROTOSCALE_ISA_TAG double sqnr(matrix<T> x, matrix<U> y) {
  ROTOSCALE_REQUIRE(x.extent(0) == y.extent(0) && x.extent(1) == y.extent(1));
  double signal = 0, noise = 0;
  for (index_t r = 0; r < x.extent(0); ++r) {
    for (index_t c = 0; c < x.extent(1); ++c) {
      const double want = detail::fp64_value(x(r, c)), got = detail::fp64_value(y(r, c));
      signal += want * want;
      noise += (want - got) * (want - got);
    }
  }
  return noise == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / noise);
}

}  // namespace rotoscale
