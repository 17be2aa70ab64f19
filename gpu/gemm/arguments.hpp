// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Arguments common to all GEMM kernels of gpu/, and the arithmetic that kernels and CPU models share. It folds block
// scales into E5M2 and int8, makes powers of two, and unfolds sums.
#pragma once

#include "gpu/api/gemm.hpp"
#include "gpu/dialect/convert.hpp"
#include "gpu/dialect/hip.hpp"
#include "rotoscale/gemm_epilogue.hpp"
#include "rotoscale/round.hpp"
#include "rotoscale/scale.hpp"

namespace rotoscale::gpu {

/// Rows and columns of a tile of outputs that share one operand width.
inline constexpr int window_tile = 256;

/// Narrowest type in which a row's products are exact. A tile uses the widest of its rows of A and of B. Widths may be
/// OR-ed: values above `bf16` mean `bf16`.
enum class operand_width : unsigned char { int8 = 0, e5m2 = 1, bf16 = 2 };
ROTOSCALE_HD constexpr operand_width combined_width(std::uint32_t combined) {
  return static_cast<operand_width>(combined > 2 ? 2 : combined);
}

/// Output path of a tile's accumulators.
enum class output_mode {
  vector,   ///< BF16 in whole 16-byte vectors, no C, no bias
  pairs,    ///< FP32, columns two at a time, no bias
  general,  ///< any output
  partial   ///< FP32 sums of one part of K
};

/// Work list of the fallback kernel, which computes the tiles wider than the first kernel's. The first kernel writes it
/// (usually: nothing to do). The fallback kernel converts the operands and counts chunks.
struct fallback_work {
  std::uint32_t widest;     ///< operand_width of the widest row
  std::uint32_t taken;      ///< chunks of rows whose conversion has started
  std::uint32_t converted;  ///< chunks whose conversion is complete in memory
};

struct gemm_arguments {
  int m = 0, n = 0, k = 0;
  int parts = 1;                   ///< split-K; with more than one part, sums go to `partial`
  int part_k = 0;                  ///< k of a part, a multiple of 128; the last may have fewer
  int tile_m = 256, tile_n = 256;  ///< outputs per tile
  int stages = 4;                  ///< pipeline stages in shared memory
  int band_log = 3;                ///< raster order: 2^band_log rows of tiles per band
  bool bands_of_columns = false;   ///< bands are columns of tiles instead
  float* partial = nullptr;        ///< [parts, m, n] accumulators; of folded operands still folded
  void* out = nullptr;             ///< [m, n], BF16 or FP32
  std::int64_t out_stride = 0;     ///< elements
  bool bf16_out = false;
  bool bf16_rounded = false;   ///< FP32 output, rounded to BF16
  bool vector_stores = false;  ///< BF16, rows of `out` and n in multiples of 16 bytes
  bool pair_stores = false;    ///< FP32, rows of `out` and n in multiples of 8 bytes
  bool accumulate = false;     ///< adds beta * out
  float alpha = 1.0f, beta = 0.0f;
  const float *factor_a = nullptr, *factor_b = nullptr;  ///< one number each, null: 1; multiply alpha
  const float* bias = nullptr;                           ///< [n] or null
  const float* output_bias = nullptr;                    ///< [n] or null, added to rounded BF16
  const int* base = nullptr;                             ///< exponents of folded rows: A's, then B's from base_b on
  int base_b = 0;
  const operand_width* widths = nullptr;          ///< widths of rows, like `base`; null: the kernel takes every tile
  operand_width min_width = operand_width::int8;  ///< width of the first kernel's tiles
  fallback_work* fallback = nullptr;              ///< set if `widths` is
  std::uint32_t nan_bits = 0x7FFFFFFFu;
};

/// True if the fallback kernel computes tiles of `width`.
ROTOSCALE_HD constexpr bool is_fallback(const gemm_arguments& p, operand_width width) { return width > p.min_width; }

// ------------------------------------------------------------------ folding block scales into E5M2

/// E2M1 times 2^s is a normal number of E5M2 for s in [-13, 13]. With s = byte - largest + 13, scales of a row are
/// relative to its largest. Rows whose blocks span at most 26 binades fit exactly, without subnormal numbers. Hence the
/// choice of the base cannot change an aligned sum.
inline constexpr int fold_top = 13, fold_window = 26;

/// A folded row's values are its codes times 2^this.
ROTOSCALE_HD constexpr int fold_base(int largest_byte) { return largest_byte - 127 - fold_top; }

ROTOSCALE_HD constexpr int largest_of_base(int base) { return base + 127 + fold_top; }

/// The E5M2 code of E2M1 code `code` in a block with scale `byte`.
ROTOSCALE_HD constexpr std::uint8_t fold_code(std::uint32_t code, int byte, int largest_byte) {
  if (byte == nan_scale_byte) return static_cast<std::uint8_t>(formats::e5m2.nan_code());
  const std::uint32_t magnitude = code & 7u;
  if (magnitude == 0) return static_cast<std::uint8_t>((code & 8u) << 4);
  const int s = byte - largest_byte + fold_top;
  // Magnitudes 1 to 7 are 0.5, 1, 1.5, 2, 3, 4, 6. With two mantissa bits their codes are 0, 4, 6, 8, ... after the
  // code of 2^(s-1).
  return static_cast<std::uint8_t>((code & 8u) << 4 |
                                   (static_cast<std::uint32_t>(4 * (s + 14)) + (magnitude == 1 ? 0u : 2u * magnitude)));
}

// ------------------------------------------------------------------ folding block scales into int8

/// Twice an E2M1 value times 2^s, s = byte - largest + 3, is an int8 for s in [0, 3]. Rows whose blocks span at most 3
/// binades fit. Blocks of zeros count only if they are within that span.
inline constexpr int int8_window = 3;
static_assert((2 * 6 << int8_window) <= 127);

/// Factor from a sum of int8 products to the sum of the E5M2 products, both relative to the rows' largest scale.
inline constexpr float int8_unit = pow2_fp32(2 * (fold_top - 1 - int8_window));

/// A row's int8 numbers are multiples of u = 2^(3 - span). True if their squares sum to less than 2^24 u². By
/// Cauchy-Schwarz, any subset of products of two such rows then sums to less than 2^24 units. So every FP32 addition of
/// these products is exact, in any order.
ROTOSCALE_HD constexpr bool sums_are_exact(std::uint64_t squares, int span) {
  return squares < std::uint64_t{1} << (24 + 2 * (int8_window - span));
}

// ------------------------------------------------------------------ unfolding sums

/// x * 2^e, rounded once, for a sum x of folded products (0 or 2^-41 <= |x| < 2^58). The first factor is exact, or
/// overflows if the result does. If the second factor is clamped, the result is zero or Inf anyway.
ROTOSCALE_HD constexpr float times_power(float x, int e) {
  const int first = e < -84 ? -84 : e > 84 ? 84 : e;
  const int rest = e - first;
  return x * pow2_fp32(first) * pow2_fp32(rest < -126 ? -126 : rest > 127 ? 127 : rest);
}
/// Tests of the first and second factor: x * 2^base_a * 2^base_b, in this order, rounds once if both hold.
ROTOSCALE_HD constexpr bool first_base_is_plain(int base) { return base >= -84 && base <= 69; }
ROTOSCALE_HD constexpr bool second_base_is_plain(int base) { return base >= -126; }

}  // namespace rotoscale::gpu
