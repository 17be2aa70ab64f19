// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// fp32_blockwise on sm_90 cuts K into boxes of 128: a tile of window_tile² multiplies each box in int8 where all of its
// rows allow it, else in E5M2. A box of a row that lies outside the row's window of scales may be int8 as well, against
// another power of two, its shift. What expand_boxes.hpp finds out about rows and tiles, and what the kernel asks.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/dialect/packed.hpp"
#include "gpu/gemm/arguments.hpp"
#include "rotoscale/bits.hpp"

namespace rotoscale::gpu {

inline constexpr int box_k = 128;

/// int8 holds a row's blocks in a window of scales, E5M2 also those so many binades above it.
inline constexpr int window_headroom = 3;
/// Of the scales of a row's blocks other than zeros, relative to the window's largest, what E5M2 holds below it.
inline constexpr int window_depth = fold_window - window_headroom;

/// A sum of products of a window's int8 numbers times this is the sum of the E5M2 products.
inline constexpr float window_unit = pow2_fp32(2 * (fold_top - 1 - int8_window - window_headroom));
static_assert(pow2_fp32(2 * window_headroom) * window_unit == int8_unit);

/// Quarters of the binary logarithm of a row's sum of squares, in units of its least scale, rounded up. Two rows whose
/// numbers add up to at most exact_log_squares have products of which any subset's sum is an exact FP32 number, by
/// Cauchy and Schwarz, so that the order of additions cannot be seen.
using log_squares = std::uint16_t;
inline constexpr int exact_log_squares = 4 * 2 * 24;
/// Marks a row that falls back to the definition's kernel; it does not bound the sums of other rows of its tile. In a
/// tile's value it is a flag.
inline constexpr log_squares definition_row = 0x8000;

/// Never less than 4 * log2 of a normal number, nor of one that is greater by 2^-16 of it, as sums of squares may be.
ROTOSCALE_HD constexpr int quarters_of_log2(float squares) {
  const std::uint32_t bits = fp32_bits(squares * (1.0f + 0x1p-16f)), fraction = bits & 0x007FFFFFu;
  return 4 * (static_cast<int>(bits >> 23) - 127) + 1 + (fraction >= 0x1837F0u ? 1 : 0) +
         (fraction >= 0x3504F3u ? 1 : 0) + (fraction >= 0x5744FCu ? 1 : 0);
}

/// Boxes of 128 k are bits, 32 of them a word.
ROTOSCALE_HD constexpr int box_count(int k) { return (k + box_k - 1) / box_k; }
ROTOSCALE_HD constexpr int box_words(int k) { return (box_count(k) + 31) / 32; }
ROTOSCALE_HD constexpr int window_tiles(int rows) { return (rows + window_tile - 1) / window_tile; }

/// How a tile multiplies a box.
enum class box_kind {
  plain,    ///< int8, every row's in its window
  shifted,  ///< int8, a row's either in its window or in one that is `shift` binades above (below, if negative)
  e5m2
};

/// Of tiles of window_tile rows, A's, then B's.
struct tile_table {
  log_squares* squares;  ///< the greatest of a tile's rows, but for the definition's; its flag
  std::uint32_t*
      boxes;  ///< [tiles, 2, words]: boxes that are not plain for all rows; of them, those that int8 cannot hold
  std::uint16_t* shifts;  ///< [tiles, boxes, window_tile]: BF16 powers of two of rows in boxes that are shifted
  int tiles_a, tiles_b, words;
  __device__ int tiles() const { return tiles_a + tiles_b; }
};

/// BF16 of 2^shift, B's times window_unit.
ROTOSCALE_HD constexpr std::uint16_t shift_factor(int shift, bool second) {
  return static_cast<std::uint16_t>(fp32_bits(pow2_fp32(shift) * (second ? window_unit : 1.0f)) >> 16);
}

/// A tile's number without its flag.
ROTOSCALE_HD constexpr int limit_of(log_squares tile) { return tile & (definition_row - 1); }

/// How a tile of window_tile rows and columns (or a part of it) is multiplied.
struct tile_boxes {
  const std::uint32_t *a, *b;
  int count, words;     ///< boxes of K
  bool exact;           ///< else all boxes are E5M2
  bool has_definition;  ///< has it rows or columns of the definition's?
  /// `row`, `column`: of tiles of window_tile.
  __device__ tile_boxes(const tile_table& t, int k, int row, int column)
      : a(t.boxes + std::int64_t{2} * row * t.words),
        b(t.boxes + std::int64_t{2} * (t.tiles_a + column) * t.words),
        count(box_count(k)),
        words(t.words) {
    const log_squares x = t.squares[row], y = t.squares[t.tiles_a + column];
    exact = limit_of(x) + limit_of(y) <= exact_log_squares;
    has_definition = ((x | y) & definition_row) != 0;
  }
  /// Bits of boxes 32 w to 32 w + 31 that are of a kind.
  __device__ std::uint32_t word(int w, box_kind kind) const {
    const int left = count - 32 * w;
    const std::uint32_t all = left >= 32 ? ~0u : (1u << left) - 1, e5m2 = exact ? a[words + w] | b[words + w] : all;
    if (kind == box_kind::e5m2) return e5m2;
    const std::uint32_t outside = a[w] | b[w];
    return (kind == box_kind::shifted ? outside : all & ~outside) & ~e5m2;
  }
  /// Calls `use` with each box of a kind, in ascending order.
  template <class Use>
  __device__ void each(box_kind kind, const Use& use) const {
    for (int w = 0; w < words; ++w) {
      for (std::uint32_t bits = word(w, kind); bits != 0; bits &= bits - 1) use(32 * w + lowest_bit(bits));
    }
  }
  __device__ int count_of(box_kind kind) const {
    int n = 0;
    for (int w = 0; w < words; ++w) n += count_bits(word(w, kind));
    return n;
  }
  __device__ static bool has(const std::uint32_t* of, int box) { return (of[box / 32] >> (box % 32) & 1u) != 0; }
  /// Does the whole tile fall back? With `accumulate` its outputs must not be written before; otherwise the fallback
  /// computes only the smaller tiles that need it again.
  __device__ bool is_left(const gemm_arguments& p) const { return has_definition && p.accumulate; }
};

}  // namespace rotoscale::gpu
