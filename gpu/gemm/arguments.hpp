// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Arguments common to all GEMM kernels of gpu/, and the arithmetic around the matrix unit that kernels
// and CPU models share: folding of block scales into E5M2 and int8, powers of two, and the last step of an output.
#pragma once

#include "gpu/api/gemm.hpp"
#include "gpu/dialect/convert.hpp"
#include "gpu/dialect/hip.hpp"
#include "rotoscale/gemm_epilogue.hpp"
#include "rotoscale/round.hpp"
#include "rotoscale/scale.hpp"

namespace rotoscale::gpu {

/// Outputs are computed by products of one kind in tiles of this many rows and columns.
inline constexpr int window_tile = 256;

/// Narrowest type in which a row's products are exact. A tile uses the widest of its rows of A and of B; widths may be
/// OR-ed, above `bf16` means `bf16`.
enum class operand_width : unsigned char { int8 = 0, e5m2 = 1, bf16 = 2 };
ROTOSCALE_HD constexpr operand_width combined_width(std::uint32_t combined) {
  return static_cast<operand_width>(combined > 2 ? 2 : combined);
}

/// What becomes of a tile's accumulators.
enum class output_mode {
  vector,   ///< BF16 in whole 16-byte vectors, no C, no bias
  pairs,    ///< FP32, columns two at a time, no bias
  general,  ///< anything
  partial   ///< FP32 sums of a part of K
};

/// What the kernel of the narrowest width leaves to the kernel of the rest. The former writes it (as a rule that
/// nothing is left), the latter expands and counts.
struct rest_work {
  std::uint32_t widest;    ///< operand_width of the widest row
  std::uint32_t taken;     ///< chunks of rows that somebody expands or has expanded
  std::uint32_t expanded;  ///< those that lie in memory
};

struct gemm_arguments {
  int m = 0, n = 0, k = 0;
  int parts = 1;                   ///< of K (split-K); with more than one, sums go to `partial`
  int part_k = 0;                  ///< k of a part, a multiple of 128; the last may have fewer
  int tile_m = 256, tile_n = 256;  ///< outputs that are computed together
  int stages = 4;                  ///< of the pipeline in shared memory
  int band_log = 3;                ///< 2^band_log rows of tiles are walked through before the next
  bool bands_of_columns = false;   ///< so many columns
  float* partial = nullptr;        ///< [parts, m, n] accumulators, those of folded operands not brought back
  void* out = nullptr;             ///< [m, n], BF16 or FP32
  std::int64_t out_stride = 0;     ///< elements
  bool bf16_out = false;
  bool bf16_rounded = false;   ///< FP32 that is rounded to BF16
  bool vector_stores = false;  ///< BF16, rows of `out` and n in multiples of 16 bytes
  bool pair_stores = false;    ///< FP32, rows of `out` and n in multiples of 8 bytes
  bool accumulate = false;     ///< adds beta * out
  float alpha = 1.0f, beta = 0.0f;
  const float *factor_a = nullptr, *factor_b = nullptr;  ///< one number each, null: 1; they multiply alpha
  const float* bias = nullptr;                           ///< [n] or null
  const int* base = nullptr;  ///< exponents of folded rows: those of A, from base_b on those of B
  int base_b = 0;
  const operand_width* widths = nullptr;          ///< of rows as `base`; null: every tile is the kernel's
  operand_width min_width = operand_width::int8;  ///< of the first kernel's tiles
  rest_work* rest = nullptr;                      ///< set where `widths` is
  std::uint32_t nan_bits = 0x7FFFFFFFu;
};

/// Does the kernel of the rest compute tiles of `width`?
ROTOSCALE_HD constexpr bool is_rest(const gemm_arguments& p, operand_width width) { return width > p.min_width; }

// ------------------------------------------------------------------ folding block scales into E5M2

/// E2M1 times 2^s is a normal number of E5M2 for s in [-13, 13]. A row's scales are taken relative to its largest, so
/// that s = byte - largest + 13: rows whose blocks span at most 26 binades fit, exactly and without subnormal numbers,
/// hence the choice of the base cannot be seen in an aligned sum.
inline constexpr int fold_top = 13, fold_window = 26;

/// What a folded row is multiplied by is 2^this.
ROTOSCALE_HD constexpr int fold_base(int largest_byte) { return largest_byte - 127 - fold_top; }

ROTOSCALE_HD constexpr int largest_of_base(int base) { return base + 127 + fold_top; }

/// The E5M2 code of E2M1 code `code` in a block with scale `byte`.
ROTOSCALE_HD constexpr std::uint8_t fold_code(std::uint32_t code, int byte, int largest_byte) {
  if (byte == nan_scale_byte) return static_cast<std::uint8_t>(formats::e5m2.nan_code());
  const std::uint32_t magnitude = code & 7u;
  if (magnitude == 0) return static_cast<std::uint8_t>((code & 8u) << 4);
  const int s = byte - largest_byte + fold_top;
  // Magnitudes 1 to 7 are 0.5, 1, 1.5, 2, 3, 4, 6: with two mantissa bits, codes 0, 4, 6, 8, ... after 2^(s-1)'s.
  return static_cast<std::uint8_t>((code & 8u) << 4 |
                                   (static_cast<std::uint32_t>(4 * (s + 14)) + (magnitude == 1 ? 0u : 2u * magnitude)));
}

// ------------------------------------------------------------------ folding block scales into int8

/// Twice an E2M1 value times 2^s, s = byte - largest + 3, is an int8 for s in [0, 3]: rows whose blocks span at most 3
/// binades. Blocks of zeros count only where they are within it.
inline constexpr int int8_window = 3;
static_assert((2 * 6 << int8_window) <= 127);

/// A sum of int8 products times this is the sum of the E5M2 products, both against the rows' largest scale.
inline constexpr float int8_unit = pow2_fp32(2 * (fold_top - 1 - int8_window));

/// A row's int8 numbers are multiples of 2^(3 - span). Divided by it, their squares must sum up to less than 2^24.
/// Then, by Cauchy and Schwarz, so does any subset of a row's products with another such row: every FP32 addition of
/// such sums is exact, and their order cannot be seen.
ROTOSCALE_HD constexpr bool sums_are_exact(std::uint64_t squares, int span) {
  return squares < std::uint64_t{1} << (24 + 2 * (int8_window - span));
}

// ------------------------------------------------------------------ sums brought back

/// x * 2^e, rounded once, for a sum x of folded products (0 or 2^-41 <= |x| < 2^58). The first factor is exact, or
/// overflows where the result does; where the second is limited, the result is zero or Inf anyway.
ROTOSCALE_HD constexpr float times_power(float x, int e) {
  const int first = e < -84 ? -84 : e > 84 ? 84 : e;
  const int rest = e - first;
  return x * pow2_fp32(first) * pow2_fp32(rest < -126 ? -126 : rest > 127 ? 127 : rest);
}
/// Bases of a row of A and a row of B for which x * 2^base_a * 2^base_b, in this order, rounds once as well.
ROTOSCALE_HD constexpr bool first_base_is_plain(int base) { return base >= -84 && base <= 69; }
ROTOSCALE_HD constexpr bool second_base_is_plain(int base) { return base >= -126; }

}  // namespace rotoscale::gpu
