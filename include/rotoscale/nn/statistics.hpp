// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Errors of quantization: sums that a backend forms in its memory, and figures that the host derives from them. All are
// plain data, so one download has a whole step's.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "rotoscale/config.hpp"

namespace rotoscale::nn {

/// Largest span of block scales, in binades, of an FP4 row that sm_90's GEMM multiplies as int8. A row beyond
/// E5M2's limit makes its tile use BF16 (docs/reference/contracts.md).
inline constexpr int int8_window_binades = 3;
inline constexpr int e5m2_window_binades = 26;  ///< the same for E5M2

/// Below this ratio of gradient norm to quantization noise training is expected to stall: sqrt(3) (arXiv 2505.19115).
inline constexpr double stall_ratio = 1.7320508075688772;

/// One form of a tensor against its source, which is rotated in FP32 if the recipe rotates, and not rounded to BF16.
/// Stored elements are decoded with block scale and factor. A pair with a NaN or Inf counts as nonfinite only. Blocks
/// of zeros have no part in the spread of scales.
struct operand_statistics {
  double signal = 0;            ///< Σ reference²
  double noise = 0;             ///< Σ (reference - stored)², differences rounded to FP32
  std::int64_t elements = 0;    ///< rows · k; 0: not observed
  std::int64_t nonzero = 0;     ///< reference is not 0
  std::int64_t flushed = 0;     ///< stored as 0, though the reference is not
  std::int64_t saturated = 0;   ///< reference is beyond the largest number under its scale
  std::int64_t nonfinite = 0;   ///< reference or stored is NaN or Inf
  std::int64_t rows = 0;        ///< rows with a block of nonzero elements under a scale
  std::int64_t spread_sum = 0;  ///< sum over these rows: binades from the least to the largest scale
  std::int64_t rows_int8 = 0;   ///< of these, spread at most int8_window_binades
  std::int64_t rows_e5m2 = 0;   ///< of these, spread at most e5m2_window_binades
  std::int32_t spread_max = 0;  ///< binades, over all rows
  float amax = 0;               ///< largest finite magnitude of the source
  float rotated_amax = 0;       ///< the same of the reference
  std::int32_t reserved = 0;    ///< 0

  /// Root mean square of the reference.
  double rms() const { return elements == 0 ? 0.0 : std::sqrt(signal / static_cast<double>(elements)); }
  /// 10 log10(signal / noise); nullopt if either is 0.
  std::optional<double> sqnr_db() const {
    if (!(noise > 0) || !(signal > 0)) return std::nullopt;
    return 10 * std::log10(signal / noise);
  }
  /// amax over rms of the rotated source; nullopt for zeros.
  std::optional<double> crest() const { return ratio(rotated_amax); }
  /// The same before the rotation.
  std::optional<double> source_crest() const { return ratio(amax); }
  /// Share of the nonzero elements.
  double flushed_share() const { return share(flushed, nonzero); }
  /// Of all elements.
  double saturated_share() const { return share(saturated, elements); }
  /// Mean over rows, in binades.
  double mean_spread() const { return share(spread_sum, rows); }
  /// n / of, 0 where there are none.
  static double share(std::int64_t n, std::int64_t of) {
    return of == 0 ? 0.0 : static_cast<double>(n) / static_cast<double>(of);
  }

 private:
  std::optional<double> ratio(float largest) const {
    if (!(rms() > 0)) return std::nullopt;
    return static_cast<double>(largest) / rms();
  }
};
static_assert(std::is_trivially_copyable_v<operand_statistics> && sizeof(operand_statistics) == 104);

/// A tensor against a reference of it.
struct comparison_statistics {
  double reference_squares = 0;  ///< Σ reference²
  double squares = 0;            ///< Σ value²
  double product = 0;            ///< Σ reference · value
  double error_squares = 0;      ///< Σ (reference - value)², differences rounded to FP32
  std::int64_t elements = 0;     ///< elements; 0: not compared

  /// |value - reference| / |reference|.
  std::optional<double> relative_error() const {
    if (!(reference_squares > 0)) return std::nullopt;
    return std::sqrt(error_squares / reference_squares);
  }
  /// Cosine of the angle between both.
  std::optional<double> cosine() const {
    if (!(reference_squares > 0) || !(squares > 0)) return std::nullopt;
    return product / std::sqrt(reference_squares) / std::sqrt(squares);
  }
  /// |reference| / |value - reference|, to compare with stall_ratio; nullopt without a difference.
  std::optional<double> norm_to_noise() const {
    if (!(error_squares > 0) || !(reference_squares > 0)) return std::nullopt;
    return std::sqrt(reference_squares / error_squares);
  }
  /// Adds a pair of tensors, as if both pairs were one.
  void add(const comparison_statistics& o) {
    reference_squares += o.reference_squares;
    squares += o.squares;
    product += o.product;
    error_squares += o.error_squares;
    elements += o.elements;
  }
};
static_assert(std::is_trivially_copyable_v<comparison_statistics> && sizeof(comparison_statistics) == 40);

/// Of host memory, of equal lengths; sums in the order of elements.
inline comparison_statistics compare(std::span<const float> value, std::span<const float> reference) {
  comparison_statistics s;
  s.elements = static_cast<std::int64_t>(value.size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    const double x = static_cast<double>(reference[i]), y = static_cast<double>(value[i]),
                 error = static_cast<double>(reference[i] - value[i]);
    s.reference_squares += x * x;
    s.squares += y * y;
    s.product += x * y;
    s.error_squares += error * error;
  }
  return s;
}

}  // namespace rotoscale::nn
