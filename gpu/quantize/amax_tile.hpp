// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// amax of a tensor as the blocks of each orientation see it, from one read of the source.
#pragma once

#include "gpu/quantize/small_tile.hpp"

namespace rotoscale::gpu {

/// Takes the largest magnitude of a run that is a number.
__device__ inline void take_amax(const float (&y)[2][16], std::uint32_t& to) {
  ROTOSCALE_UNROLL
  for (int i = 0; i < 32; ++i) {
    const std::uint32_t m = fp32_bits(y[i / 16][i % 16]) & fp32_magnitude_mask;
    if (m <= fp32_infinity_bits && m > to) to = m;
  }
}

/// Largest magnitudes that a thread has seen: as they are, rotated along rows, rotated along columns.
struct amax_of_thread {
  std::uint32_t plain = 0, rows = 0, columns = 0;
};

template <class T>
__device__ inline void measure_tile(const quantize_kernel_args& a, const tile_view<T>& tile, const tile_origin& at,
                                    bool plain, bool rows, bool columns, amax_of_thread& amax) {
  const general_options& g = block_shared<general_options>();
  const bool halves = a.format.length == 16;
  const unsigned t = thread_index().x;
  const row_run own(false);
  float y[2][16];
  if ((plain || rows) && at.row + own.row < a.rows && at.column + own.first < a.columns) {
    for (unsigned half = 0; half < 2; ++half) {
      load_sixteen<T, true>(tile, own.row, own.first + 16 * half, a.row.bf16_source, y[half]);
    }
    if (plain) take_amax(y, amax.plain);
    if (rows) {
      rotate_both(g.of[0].get(), halves, y);
      take_amax(y, amax.rows);
    }
  }
  if (!columns || at.column + t >= a.columns) return;
  for (unsigned half = 0; half < 2; ++half) {
    load_sixteen<T, false>(tile, t, 16 * half, a.column.bf16_source, y[half]);
  }
  rotate_both(g.of[1].get(), halves, y);
  take_amax(y, amax.columns);
}

/// Thread blocks per SM of amax_kernel.
inline constexpr unsigned amax_blocks_per_processor = 4;

/// The grid has at most amax_words blocks.
template <class T>
__global__ void __launch_bounds__(tile_threads, amax_blocks_per_processor)
    amax_kernel(const ROTOSCALE_GRID_CONSTANT quantize_kernel_args a) {
  general_options& g = block_shared<general_options>();
  const bool rows = a.row.amax != nullptr, columns = a.column.amax != nullptr;
  make_both_options(a, g, false);
  const bool turns_rows = rows && a.row.options.rotation.points != 0,
             turns_columns = columns && a.column.options.rotation.points != 0;
  const bool plain = (rows && !turns_rows) || (columns && !turns_columns);
  amax_of_thread amax;
  walk_small_tiles<T>(a, dynamic_shared<unsigned char>(), [&](const tile_view<T>& tile, const tile_origin& at) {
    measure_tile(a, tile, at, plain, turns_rows, turns_columns, amax);
  });
  if (rows) store_amax(a.row.amax, turns_rows ? amax.rows : amax.plain);
  if (columns) store_amax(a.column.amax, turns_columns ? amax.columns : amax.plain);
}

}  // namespace rotoscale::gpu
