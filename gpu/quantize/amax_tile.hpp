// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// amax of a tensor as the blocks of each orientation see it, from one read of the source: the tiles of the quantizer,
// without scales and codes.
#pragma once

#include "gpu/quantize/tile.hpp"

namespace rotoscale::gpu {

/// Largest magnitudes that a thread has seen.
struct amax_of_thread {
  std::uint32_t plain = 0, rows = 0, columns = 0;  ///< unrotated; rotated along rows, along columns (without factor)

  static __device__ void take(const float (&y)[16], std::uint32_t& to) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < 16; ++i) {
      const std::uint32_t m = fp32_bits(y[i]) & fp32_magnitude_mask;
      if (m <= fp32_infinity_bits && m > to) to = m;
    }
  }
};

/// Sixteen rotated elements, without the factor 1/4. Signs are those of position `first` of a run.
__device__ inline void rotate_unscaled(const block_options& o, unsigned length, unsigned first, float (&y)[16]) {
  negate(y, o.rotation.signs[0] >> (first % length));
  butterflies16(y);
}

template <class T>
__device__ inline void measure_tile(const quantize_kernel_args& a, const tile_view<T>& tile, const tile_origin& at,
                                    bool plain, bool rows, bool columns, amax_of_thread& amax) {
  const general_options& g = block_shared<general_options>();
  const auto length = static_cast<unsigned>(a.format.length);
  const unsigned t = thread_index().x, end = rows_of<T>(a, at);
  float y[16];
  if (plain || rows) {
    const unsigned first = t % 8 * 16;
    ROTOSCALE_KEEP_LOOP
    for (unsigned r = t / 8; r < end && at.column + first < a.columns; r += tile_threads / 8) {
      load_sixteen<T, true>(tile, r, first, a.row.bf16_source, y);
      if (plain) amax_of_thread::take(y, amax.plain);
      if (!rows) continue;
      rotate_unscaled(g.of[0].get(), length, first, y);
      amax_of_thread::take(y, amax.rows);
    }
  }
  if (!columns || at.column + t >= a.columns) return;
  ROTOSCALE_KEEP_LOOP
  for (unsigned first = 0; first < end; first += 16) {
    load_sixteen<T, false>(tile, t, first, a.column.bf16_source, y);
    rotate_unscaled(g.of[1].get(), length, first, y);
    amax_of_thread::take(y, amax.columns);
  }
}

/// Blocks walk tiles as those of quantize_kernel do.
template <class T>
__global__ void __launch_bounds__(tile_threads, 3) amax_kernel(const ROTOSCALE_GRID_CONSTANT quantize_kernel_args a) {
  general_options& g = block_shared<general_options>();
  const bool rows = a.row.amax != nullptr, columns = a.column.amax != nullptr;
  make_both_options(a, g, false);
  const bool turns_rows = rows && a.row.options.rotation.points != 0,
             turns_columns = columns && a.column.options.rotation.points != 0;
  const bool plain = (rows && !turns_rows) || (columns && !turns_columns);
  amax_of_thread amax;
  walk_tiles<T, 2>(a, dynamic_shared<unsigned char>(), [&](const tile_view<T>& tile, const tile_item& item) {
    measure_tile(a, tile, item.at, plain, turns_rows, turns_columns, amax);
  });
  const auto scaled = [](std::uint32_t m) { return fp32_bits(fp32_from_bits(m) * 0.25f); };
  if (rows) store_amax(a.row.amax, turns_rows ? scaled(amax.rows) : amax.plain);
  if (columns) store_amax(a.column.amax, turns_columns ? scaled(amax.columns) : amax.plain);
}

}  // namespace rotoscale::gpu
