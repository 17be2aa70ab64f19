// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Small tiles of a source, 32 × 128 elements: a run of 32 along each column and four along each row, so that a thread
// takes one run in each direction. Tensors of a few MB fill a device with them.
#pragma once

#include "gpu/quantize/general_tile.hpp"

namespace rotoscale::gpu {

inline constexpr unsigned small_rows = 32;
static_assert(small_rows * tile_columns == 32 * tile_threads, "a run per thread in each direction");
template <class T>
inline constexpr std::size_t small_tile_bytes = small_rows* tile_columns * sizeof(T);

/// Place of a thread's run along rows, in the tile. Lanes hold consecutive rows if a square shares its scale.
struct row_run {
  unsigned row, first;
  __device__ explicit row_run(bool square)
      : row(square ? thread_index().x % 32 : thread_index().x / 4),
        first(32 * (square ? thread_index().x / 32 : thread_index().x % 4)) {}
};

/// A thread's share of two neighbouring columns: `column` and the next one, 16 rows from 16 * half on.
struct column_pair {
  unsigned column, half;
  __device__ column_pair()
      : column(thread_index().x % (tile_columns / 2) * 2), half(thread_index().x / (tile_columns / 2)) {}
};
static_assert(small_rows == 32 && tile_threads == tile_columns, "a pair for each thread");

/// Loads the elements of a thread's pair of columns, negated where the low half of `signs` has a bit.
__device__ inline void load_column_pair(const tile_view<bf16>& tile, std::uint32_t signs, float (&y)[2][16]) {
  const column_pair own;
  const std::uint32_t of_both = (signs & 0xFFFFu) * 0x00010001u;
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < 16; ++i) {
    const std::uint32_t word = *reinterpret_cast<const any_word*>(tile.element(16 * own.half + i, own.column)) ^
                               (of_both << (15 - i) & 0x80008000u);
    y[0][i] = tile_value<bf16>(word, 0, false);
    y[1][i] = tile_value<bf16>(word, 1, false);
  }
}

/// Calls prepare(), while the first tile is loaded, then use(tile, origin) for tiles b, b + blocks, ... of thread block
/// b. All threads call it.
template <class T, class Prepare, class Use>
__device__ inline void walk_small_tiles(const quantize_kernel_args& a, unsigned char* shared, const Prepare& prepare,
                                        const Use& use) {
  const tile_view<T> tile{shared};
  const auto load = [&](std::uint32_t i) {
    const auto [row, column] = divide(i, a.tiles_across);
    const tile_origin at = make_origin<T, small_rows>(a, row, column);
    load_tile<T, small_rows>(a, at, tile);
    return at;
  };
  std::uint32_t i = block_index().x;
  if (i >= a.tiles) return;
  tile_origin at = load(i);
  prepare();
  ROTOSCALE_KEEP_LOOP
  while (true) {
    wait_for_copies();
    block_barrier();
    use(tile, at);
    i += grid_size().x;
    if (i >= a.tiles) return;
    block_barrier();  // all threads have finished with the tile
    at = load(i);
  }
}

/// Counts a launcher's tiles.
inline void count_small_tiles(quantize_kernel_args& a) {
  const unsigned across = (a.columns + tile_columns - 1) / tile_columns;
  a.tiles_across = known_divisor(across);
  a.tiles = across * ((a.rows + small_rows - 1) / small_rows);
}

}  // namespace rotoscale::gpu
