// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operand type per k-block (128 k) and tile of fp32_blockwise on sm_90: written by upconvert_k_blocks.hpp, read by the
// kernel. A window_tile² tile multiplies a k-block in int8 if all of its rows allow it, else in E5M2. A k-block outside
// its row's window of scales can still be int8, relative to another power of two: its shift.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/dialect/packed.hpp"
#include "gpu/gemm/arguments.hpp"
#include "rotoscale/bits.hpp"

namespace rotoscale::gpu {

inline constexpr int k_block_length = 128;

/// Binades above the int8 window that E5M2 still holds.
inline constexpr int window_headroom = 3;
/// Binades below the window's largest scale that E5M2 holds, for non-zero blocks.
inline constexpr int window_depth = fold_window - window_headroom;

/// Factor from a sum of a window's int8 products to the sum of the E5M2 products.
inline constexpr float window_unit = pow2_fp32(2 * (fold_top - 1 - int8_window - window_headroom));
static_assert(pow2_fp32(2 * window_headroom) * window_unit == int8_unit);

/// 4 * log2 of a row's sum of squares, in units of its least scale, rounded up. If the values of two rows add up to at
/// most exact_log_squares, any subset of their products has an exact FP32 sum (Cauchy and Schwarz). Then the order of
/// additions cannot change a bit.
using log_squares = std::uint16_t;
inline constexpr int exact_log_squares = 4 * 2 * 24;
/// Marks a row that falls back to the SIMT kernel. Such a row does not bound the sums of other rows of its tile. In a
/// tile's value it is a flag.
inline constexpr log_squares fallback_row = 0x8000;

/// Upper bound of 4 * log2 of a normal number. It also bounds a number larger by 2^-16 of it, since sums of squares
/// are rounded.
ROTOSCALE_HD constexpr int quarters_of_log2(float squares) {
  const std::uint32_t bits = fp32_bits(squares * (1.0f + 0x1p-16f)), fraction = bits & 0x007FFFFFu;
  return 4 * (static_cast<int>(bits >> 23) - 127) + 1 + (fraction >= 0x1837F0u ? 1 : 0) +
         (fraction >= 0x3504F3u ? 1 : 0) + (fraction >= 0x5744FCu ? 1 : 0);
}

/// K-blocks are bits, 32 per word.
ROTOSCALE_HD constexpr int k_block_count(int k) { return (k + k_block_length - 1) / k_block_length; }
ROTOSCALE_HD constexpr int k_block_words(int k) { return (k_block_count(k) + 31) / 32; }
ROTOSCALE_HD constexpr int window_tiles(int rows) { return (rows + window_tile - 1) / window_tile; }

/// How a tile multiplies a k-block.
enum class k_block_kind {
  plain,    ///< int8, each row in its window
  shifted,  ///< int8, each row in its window or in one that is `shift` binades above (below, if negative)
  e5m2
};

/// Tables over the tiles of window_tile rows: A's, then B's.
struct tile_table {
  log_squares* squares;  ///< largest value of a tile's rows, without the rows that fall back; plus the flag
  std::uint32_t*
      k_blocks;  ///< [tiles, 2, words], two bit masks of k-blocks: not plain in all rows; not representable in int8
  std::uint16_t* shifts;  ///< [tiles, k-blocks, window_tile]: BF16 powers of two of rows in shifted k-blocks
  int tiles_a, tiles_b, words;
  __device__ int tiles() const { return tiles_a + tiles_b; }
};

/// BF16 of 2^shift, for B times window_unit.
ROTOSCALE_HD constexpr std::uint16_t shift_factor(int shift, bool second) {
  return static_cast<std::uint16_t>(fp32_bits(pow2_fp32(shift) * (second ? window_unit : 1.0f)) >> 16);
}

/// A tile's value without its flag.
ROTOSCALE_HD constexpr int limit_of(log_squares tile) { return tile & (fallback_row - 1); }

/// K-block kinds of a tile of window_tile rows and columns, or of a part of it.
struct tile_k_blocks {
  const std::uint32_t *a, *b;
  int count, words;   ///< number of k-blocks, and of their words
  bool exact;         ///< false: all k-blocks are E5M2
  bool has_fallback;  ///< some rows or columns fall back
  /// `row`, `column`: in units of window_tile.
  __device__ tile_k_blocks(const tile_table& t, int k, int row, int column)
      : a(t.k_blocks + std::int64_t{2} * row * t.words),
        b(t.k_blocks + std::int64_t{2} * (t.tiles_a + column) * t.words),
        count(k_block_count(k)),
        words(t.words) {
    const log_squares x = t.squares[row], y = t.squares[t.tiles_a + column];
    exact = limit_of(x) + limit_of(y) <= exact_log_squares;
    has_fallback = ((x | y) & fallback_row) != 0;
  }
  /// Bits of the k-blocks 32 w to 32 w + 31 of one kind.
  __device__ std::uint32_t word(int w, k_block_kind kind) const {
    const int left = count - 32 * w;
    const std::uint32_t all = left >= 32 ? ~0u : (1u << left) - 1, e5m2 = exact ? a[words + w] | b[words + w] : all;
    if (kind == k_block_kind::e5m2) return e5m2;
    const std::uint32_t outside = a[w] | b[w];
    return (kind == k_block_kind::shifted ? outside : all & ~outside) & ~e5m2;
  }
  /// Calls `use` with each k-block of a kind, in ascending order.
  template <class Use>
  __device__ void each(k_block_kind kind, const Use& use) const {
    for (int w = 0; w < words; ++w) {
      for (std::uint32_t bits = word(w, kind); bits != 0; bits &= bits - 1) use(32 * w + lowest_bit(bits));
    }
  }
  __device__ int count_of(k_block_kind kind) const {
    int n = 0;
    for (int w = 0; w < words; ++w) n += count_bits(word(w, kind));
    return n;
  }
  __device__ static bool has(const std::uint32_t* of, int k_block) {
    return (of[k_block / 32] >> (k_block % 32) & 1u) != 0;
  }
  /// True if the whole tile falls back. With `accumulate` its outputs must not be written before. Otherwise the
  /// fallback recomputes only smaller tiles.
  __device__ bool falls_back(const gemm_arguments& p) const { return has_fallback && p.accumulate; }
};

}  // namespace rotoscale::gpu
