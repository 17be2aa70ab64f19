// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Division of a block's tile of C among waves in gfx950's GEMM, with its cost and register estimates.
#pragma once

#include <algorithm>

#include "gpu/dialect/amd_matrix.hpp"

namespace rotoscale::gpu::gfx950 {

inline constexpr int step_k = 256;            // k per step: the four scales in a dword cover it, for two row tiles
inline constexpr int code_tile_bytes = 1024;  // 16 rows × 64 bytes of codes

/// Rows × Columns outputs of a block, Rows / waves_down × Columns / waves_across of a wave.
/// - Usually four waves are side by side, and each has all rows of its columns.
/// - The largest tiles take eight waves. With four, the 256 sums per lane and the fragments would be in both halves of
///   the registers, with moves in between.
/// - Waves above each other load the same codes of B, so waves_down is 2 only if the tile has no more columns than
///   rows.
template <int Rows, int Columns>
struct tile {
  static constexpr int rows = Rows, columns = Columns;
  static constexpr bool large = Rows * Columns >= 240 * 256 || Rows == 256;
  static constexpr int waves_down = large && Columns <= Rows ? 2 : 1, waves_across = large && waves_down == 1 ? 8 : 4;
  static constexpr int waves = waves_down * waves_across, threads = 64 * waves;
  static constexpr int wave_rows = Rows / waves_down, wave_columns = Columns / waves_across;
  static constexpr int block_row_tiles = Rows / 16, row_tiles = wave_rows / 16, column_tiles = wave_columns / 16;
  static constexpr int row_pairs = row_tiles / 2, column_pairs = (column_tiles + 1) / 2;  // share dwords of scales
  static_assert(wave_rows % 32 == 0 && wave_columns % 16 == 0);

  /// Cycles of a step of FP4, from the peaks in rocprofiler-compute's tables of gfx950 (ROCm/rocm-systems).
  /// - Products: 16 cycles each, on four matrix cores.
  /// - LDS: the write of A and all waves' reads of it, at 128 bytes per cycle.
  /// - Vector cache: codes of A and B, at 128 bytes per cycle.
  /// - L2: half of the peak of 64 bytes per cycle and CU is assumed.
  static constexpr int product_cycles = 2 * row_tiles * column_tiles * waves * 16 / 4;
  static constexpr int lds_cycles = 2 * (waves * row_tiles + block_row_tiles) * code_tile_bytes / 128;
  static constexpr int cache_cycles = 2 * (block_row_tiles + waves * column_tiles) * code_tile_bytes / 128;
  static constexpr int l2_cycles = (Rows + Columns) * 128 / 32;
  /// Upper bound in percent of the matrix cores' rate.
  static constexpr int percent = 100 * product_cycles / std::max({product_cycles, lds_cycles, cache_cycles, l2_cycles});
};

/// Properties that also depend on the elements. A's fragments are read from LDS in turns. A turn has two row tiles of
/// FP4 or one of FP8 (the same bytes), for half of the step's k.
template <class Tile, gemm_element ElementA, gemm_element ElementB>
struct shape : Tile {
  using Tile::column_pairs, Tile::column_tiles, Tile::row_pairs, Tile::row_tiles, Tile::waves;
  static constexpr gemm_element element_a = ElementA, element_b = ElementB;
  static constexpr int parts_a = amd::scaled_fragment<ElementA>::parts, parts_b = amd::scaled_fragment<ElementB>::parts;
  static constexpr int step_code_tiles = 2 * parts_a * Tile::block_row_tiles;  // code tiles of A
  /// LDS holds two steps of A. The epilogue reuses it for the sums.
  static constexpr int step_bytes = step_code_tiles * code_tile_bytes, sum_tile_bytes = 64 * 16;
  static constexpr int least_sum_bytes = 4 * sum_tile_bytes * waves,
                       lds_bytes = std::max(2 * step_bytes, least_sum_bytes);
  static constexpr int turn_tiles = 2 / parts_a, half_turns = row_tiles / turn_tiles, turns = 2 * half_turns;
  static constexpr int turns_ahead = std::min(half_turns, 2);  // turns whose fragments are prefetched from LDS
  /// Number of register loads between a wave's copies of A's codes and the barrier that waits for them. They load the
  /// next step's scales, and B's codes for its first half. No others follow a part's first copies. After later copies,
  /// B's codes for a second half come first, and are used by then.
  static constexpr int younger_loads = row_pairs + column_pairs + parts_b * column_tiles;
  /// Estimate of vector registers: sums, fragments of B and of A, scales of two steps, and other uses by clang 22.
  static constexpr int registers = 4 * row_tiles * column_tiles + 8 * parts_b * column_tiles + 8 * (turns_ahead + 1) +
                                   2 * (row_pairs + column_pairs) + 20 + 8 * parts_a;
  static constexpr int block_waves = waves / 4, lds_waves = 160 * 1024 / lds_bytes * block_waves;  // waves per SIMD
  static constexpr int waves_a_simd = std::max(block_waves, std::min({8, 512 / registers, lds_waves}));
  static_assert(lds_waves > 0 && younger_loads <= 63);
};

}  // namespace rotoscale::gpu::gfx950
