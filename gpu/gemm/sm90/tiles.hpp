// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Tiles of the sm_90 GEMM kernels: outputs of a block or a cluster of two, their division between warpgroups, and the
// stages in shared memory. All tiles have the same order of sums along K.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/gemm/arguments.hpp"
#include "gpu/gemm/sm90/output.hpp"
#include "gpu/gemm/tile_walk.hpp"

namespace rotoscale::gpu::sm90 {

inline constexpr int box_bytes = 128;        // bytes of a row per stage
inline constexpr int transposed_box_k = 64;  // k of a transposed box, two bytes each
inline constexpr int threads = 384;          // one producer warpgroup, two consumers

/// The entry of arch.hpp with this tile.
constexpr tile_shape tile_shape_for(int rows, int columns) {
  for (const tile_shape& t : sm90_tiles) {
    if (t.m == rows && t.n == columns) return t;
  }
  return {};
}

/// Rows × Columns outputs from operands of one width. E5M2 sums are promoted every Promotion k (0: never). A transposed
/// operand has rows contiguous in memory instead of k (BF16 in tiles of 256 × 256 only).
///
///   tile        blocks  a block    a warpgroup
///   256 × 256   2       128 × 256  64 × 256; promoted every 128 k: 256 × 128, twice 64 × 128
///   128 × 128   1       128 × 128  64 × 128
///    64 × 256   1        64 × 256  64 × 128
///   256 ×  64   1       256 ×  64  twice 64 × 64
template <operand_width Width, int Rows, int Columns, int Promotion = 0, bool TransposedA = false,
          bool TransposedB = false>
struct tile {
  static constexpr operand_width width = Width;
  static constexpr int rows = Rows, all_columns = Columns, promotion = Promotion;
  static constexpr bool transposed_a = TransposedA, transposed_b = TransposedB;
  static constexpr fp8_products products = fp8_products::e5m2;  ///< for FP8 widths
  static constexpr bool folded = Width != operand_width::bf16;  ///< sums need a power of two of row and column
  static constexpr bool has_factors = !folded;                  ///< sums may have factors in device memory
  static constexpr bool clears = false;  ///< clears accumulators before the first wgmma, which does not read them
  using number = std::conditional_t<Width == operand_width::int8, std::int32_t, float>;

  static constexpr bool large = Rows == 256 && Columns == 256;
  static constexpr int blocks = large ? 2 : 1;
  /// The operand whose rows both blocks need.
  static constexpr bool shares_a = large && Promotion == 128, shares_b = large && !shares_a;
  static constexpr int block_rows = shares_b ? Rows / 2 : Rows, block_columns = shares_a ? Columns / 2 : Columns;
  /// Rows per copy of a block.
  static constexpr int box_a = shares_a ? block_rows / 2 : block_rows,
                       box_b = shares_b ? block_columns / 2 : block_columns;
  static constexpr int groups_down = block_rows == 64 ? 1 : 2, groups_across = 2 / groups_down;
  /// A warpgroup has tiles of 64 rows by `columns`.
  static constexpr int warpgroup_tiles = block_rows / groups_down / 64, columns = block_columns / groups_across;

  static constexpr int size_a = block_rows * box_bytes, stage_size = size_a + block_columns * box_bytes;
  static constexpr tile_shape shape = tile_shape_for(Rows, Columns);
  static constexpr int max_stages = shape.max_stages;
  static constexpr int shared_size(int stages) { return stages * stage_size + 1024; }  // plus alignment
  static_assert(shape.processors == blocks && shared_size(max_stages) <= 222 * 1024, "a block has 227 KiB");
  static_assert(!(TransposedA || TransposedB) || (large && Width == operand_width::bf16));

  /// First output of block `rank`.
  __device__ static fragment_position first_of(tile_position at, std::uint32_t rank) {
    const int block = static_cast<int>(rank);
    return {at.row * Rows + (shares_b ? block * block_rows : 0),
            at.column * Columns + (shares_a ? block * block_columns : 0)};
  }
  __device__ static int row_of_group(int group) { return groups_down == 2 ? group * 64 * warpgroup_tiles : 0; }
  __device__ static int column_of_group(int group) { return groups_across == 2 ? group * columns : 0; }
};

/// 256 × 256 outputs from per-tensor FP8, with one factor per operand.
template <fp8_products Products, int Promotion>
struct fp8_tile : tile<operand_width::e5m2, 256, 256, Promotion> {
  static constexpr fp8_products products = Products;
  static constexpr bool folded = false, has_factors = true;
};

/// Addresses in shared memory: barriers of 8 bytes, then per stage the rows of A and of B, 128 bytes each.
template <class Tile>
struct pipeline {
  std::uint32_t full, empty, data;
  __device__ std::uint32_t full_at(int s) const { return full + 8 * static_cast<std::uint32_t>(s); }
  __device__ std::uint32_t empty_at(int s) const { return empty + 8 * static_cast<std::uint32_t>(s); }
  __device__ std::uint32_t a(int s) const { return data + static_cast<std::uint32_t>(s * Tile::stage_size); }
  __device__ std::uint32_t b(int s) const { return a(s) + Tile::size_a; }
};

/// The next stage, and the parity of its phase.
struct ring {
  int stage = 0;
  std::uint32_t phase = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

}  // namespace rotoscale::gpu::sm90
