// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// amax of a tensor as the blocks of each orientation see it, from one read of the source.
#pragma once

#include "gpu/dialect/math.hpp"
#include "gpu/quantize/small_tile.hpp"

namespace rotoscale::gpu {

/// Takes the largest magnitude of a run that is a number.
__device__ inline void take_amax(const float (&y)[2][16], float& to) {
  float most[4] = {to};
  ROTOSCALE_UNROLL
  for (int i = 0; i < 32; ++i) most[i % 4] = larger_number(most[i % 4], __builtin_fabsf(y[i / 16][i % 16]));
  to = larger_number(larger_number(most[0], most[1]), larger_number(most[2], most[3]));
}

/// Largest magnitudes that a thread has seen: as they are, rotated along rows, rotated along columns. Rotated ones lack
/// the rotation's factor, which does not change their order.
struct amax_of_thread {
  float plain = 0.0f, rows = 0.0f, columns = 0.0f;
};

/// The rotation of an orientation in this step.
__device__ inline rotation rotation_of(const made_options& from) {
  rotation r = from.options.rotation;
  if (from.state != nullptr) r.signs[0] = from.draws.mask(*from.state);
  return r;
}
__device__ inline float factor_of(const rotation& r) {
  return r.points == 32 ? hadamard_factor(32) : r.points == 16 ? 0.25f : 1.0f;
}

/// Largest magnitude of a thread's run along a row, from pairs of BF16. False: the run has a NaN.
__device__ inline bool take_packed_amax(const tile_view<bf16>& tile, const row_run& own, float& to) {
  std::uint32_t most = 0;
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < 4; ++i) {
    const vec16 some = *tile.vec(own.row, own.first / 8 + i);
    ROTOSCALE_UNROLL
    for (unsigned w = 0; w < 4; w += 2) {
      most = max3_u16x2(most, some.word[w] & 0x7FFF7FFFu, some.word[w + 1] & 0x7FFF7FFFu);
    }
  }
  most = max3_u16x2(most, most >> 16, most >> 16) << 16;
  if (most > fp32_infinity_bits) return false;
  to = larger_number(to, fp32_from_bits(most));
  return true;
}

/// Magnitudes of a thread's columns, rotated.
template <class T>
__device__ inline void measure_columns(const quantize_kernel_args& a, const tile_view<T>& tile, const rotation& r,
                                       float& to) {
  const bool halves = a.format.length == 16;
  float y[2][16];
  if constexpr (std::is_same_v<T, bf16>) {
    if (r.points == 16) {
      load_column_pair(tile, column_pair().half == 0 || halves ? r.signs[0] : r.signs[0] >> 16, y);
      butterflies16(y[0]);
      butterflies16(y[1]);
      return take_amax(y, to);
    }
  }
  for (unsigned half = 0; half < 2; ++half) {
    load_sixteen<T, false>(tile, thread_index().x, 16 * half, a.column.bf16_source, y[half]);
  }
  butterflies_of_both(r, halves, y);
  take_amax(y, to);
}

/// Which maxima are wanted.
struct amax_request {
  bool plain, rows, columns;
};

template <class T>
__device__ inline void measure_tile(const quantize_kernel_args& a, const tile_view<T>& tile, const tile_origin& at,
                                    const amax_request& want, const rotation& row, const rotation& column,
                                    amax_of_thread& amax) {
  const row_run own(false);
  if ((want.plain || want.rows) && at.row + own.row < a.rows && at.column + own.first < a.columns) {
    bool plain = want.plain;
    if constexpr (std::is_same_v<T, bf16>) plain = plain && !take_packed_amax(tile, own, amax.plain);
    if (plain || want.rows) {
      float y[2][16];
      for (unsigned half = 0; half < 2; ++half) {
        load_sixteen<T, true>(tile, own.row, own.first + 16 * half, a.row.bf16_source, y[half]);
      }
      if (plain) take_amax(y, amax.plain);
      if (want.rows) {
        butterflies_of_both(row, a.format.length == 16, y);
        take_amax(y, amax.rows);
      }
    }
  }
  // Extents are multiples of 32, so that a warp's columns are all inside or all outside.
  const bool paired = std::is_same_v<T, bf16> && column.points == 16;
  const unsigned c = paired ? column_pair().column : thread_index().x;
  if (want.columns && at.column + c < a.columns) {
    measure_columns(a, tile, column, amax.columns);
  }
}

/// Thread blocks per SM of amax_kernel.
inline constexpr unsigned amax_blocks_per_processor = 4;

/// The grid has at most amax_words blocks.
template <class T>
__global__ void __launch_bounds__(tile_threads, amax_blocks_per_processor)
    amax_kernel(const ROTOSCALE_GRID_CONSTANT quantize_kernel_args a) {
  wait_for_kernel_before();  // and lets the quantizer start
  const bool rows = a.row.amax != nullptr, columns = a.column.amax != nullptr;
  const rotation row = rotation_of(a.row), column = rotation_of(a.column);
  const bool turns_rows = rows && row.points != 0, turns_columns = columns && column.points != 0;
  const amax_request want{(rows && !turns_rows) || (columns && !turns_columns), turns_rows, turns_columns};
  amax_of_thread amax;
  walk_small_tiles<T>(
      a, dynamic_shared<unsigned char>(), [] {},
      [&](const tile_view<T>& tile, const tile_origin& at) { measure_tile(a, tile, at, want, row, column, amax); });
  if (rows) store_amax(a.row.amax, fp32_bits(turns_rows ? amax.rows * factor_of(row) : amax.plain));
  if (columns) store_amax(a.column.amax, fp32_bits(turns_columns ? amax.columns * factor_of(column) : amax.plain));
}

}  // namespace rotoscale::gpu
