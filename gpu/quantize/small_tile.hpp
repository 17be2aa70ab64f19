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

/// Calls use(tile, origin) for tiles b, b + blocks, ... of thread block b. All threads call it.
template <class T, class Use>
__device__ inline void walk_small_tiles(const quantize_kernel_args& a, unsigned char* shared, const Use& use) {
  ROTOSCALE_KEEP_LOOP
  for (std::uint32_t i = block_index().x; i < a.tiles; i += grid_size().x) {
    const auto [row, column] = divide(i, a.tiles_across);
    const tile_origin at = make_origin<T, small_rows>(a, row, column);
    const tile_view<T> tile{shared};
    block_barrier();  // all threads have finished with the previous tile
    load_tile<T, small_rows>(a, at, tile);
    wait_for_copies();
    block_barrier();
    use(tile, at);
  }
}

/// Counts a launcher's tiles.
inline void count_small_tiles(quantize_kernel_args& a) {
  const unsigned across = (a.columns + tile_columns - 1) / tile_columns;
  a.tiles_across = known_divisor(across);
  a.tiles = across * ((a.rows + small_rows - 1) / small_rows);
}

}  // namespace rotoscale::gpu
