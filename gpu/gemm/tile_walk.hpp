// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Raster order of a GEMM's tiles, and the schedules that kernels support. Neither changes a bit.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/gemm/arguments.hpp"
#include "gpu/gemm/table.hpp"

namespace rotoscale::gpu {

/// Row and column of a tile, and its part of K.
struct tile_position {
  int row, column, part;
};

/// Walks all tiles in bands of rows (or columns), across a band before along it, so that the tiles in flight share
/// operands in L2. Parts of K follow one another.
struct tile_walk {
  int rows, columns, parts, band_log;
  bool bands_of_columns;
  __device__ tile_walk(const gemm_arguments& p, int tile_m, int tile_n)
      : rows((p.m + tile_m - 1) / tile_m),
        columns((p.n + tile_n - 1) / tile_n),
        parts(p.parts),
        band_log(p.band_log),
        bands_of_columns(p.bands_of_columns) {}
  __device__ int count() const { return rows * columns * parts; }
  /// Usually one division, since divisions are slow.
  __device__ tile_position at(int index) const {
    const auto down = static_cast<unsigned>(bands_of_columns ? columns : rows),
               along = static_cast<unsigned>(bands_of_columns ? rows : columns), band = 1u << band_log;
    const unsigned part = parts == 1 ? 0 : static_cast<unsigned>(index) / (down * along);
    const unsigned in_part = static_cast<unsigned>(index) - part * (down * along);
    const unsigned bands = in_part / (along << band_log), within = in_part - bands * (along << band_log);
    const unsigned height = down - (bands << band_log);
    const unsigned second = height >= band ? within >> band_log : within / height;
    const unsigned first = (bands << band_log) + within - second * (height >= band ? band : height);
    return {static_cast<int>(bands_of_columns ? second : first), static_cast<int>(bands_of_columns ? first : second),
            static_cast<int>(part)};
  }
};

inline constexpr int max_band = 64, default_band = 8;

namespace detail {

/// sm_90's kernels walk tiles in bands.
inline bool walks_bands(const gemm_kernel& kernel) {
  return !kernel.tiles.empty() && (kernel.archs & bit_of(arch::sm_90)) != 0;
}

/// The tile of a schedule, or null if the kernel has no such tile.
inline const tile_shape* tile_of(const gemm_kernel& kernel, const gemm_schedule& s) {
  for (const tile_shape& t : kernel.tiles) {
    if ((s.tile_m == 0 && s.tile_n == 0) || (s.tile_m == t.m && s.tile_n == t.n)) return &t;
  }
  return nullptr;
}

/// The schedule with its zeros replaced by defaults. Empty if the kernel has no such tile.
inline gemm_schedule whole_schedule(const gemm_kernel& kernel, gemm_schedule s) {
  const tile_shape* tile = tile_of(kernel, s);
  if (tile == nullptr) return {};
  s.tile_m = tile->m;
  s.tile_n = tile->n;
  if (s.stages == 0) s.stages = tile->max_stages;
  if (s.band == 0 && walks_bands(kernel)) s.band = default_band;
  return s;
}

/// Checks a schedule of a kernel.
inline status check_schedule(const gemm_kernel& kernel, const gemm_schedule& s) {
  if (s == gemm_schedule{}) return {};
  if (kernel.tiles.empty()) return {error_code::bad_option, "schedule", "this kernel has none"};
  const tile_shape* tile = tile_of(kernel, s);
  if (tile == nullptr) return {error_code::bad_option, "schedule.tile_m", "this kernel has no such tile"};
  if (s.stages != 0 && (s.stages < tile->min_stages || s.stages > tile->max_stages)) {
    return {error_code::bad_option, "schedule.stages", "the tile's kernel has not so few or so many"};
  }
  if (s.band < 0 || s.band > max_band || (s.band & (s.band - 1)) != 0 || (s.bands_of_columns && s.band == 0)) {
    return {error_code::bad_option, "schedule.band", "must be 0 or a power of two up to 64"};
  }
  if (s.band != 0 && !walks_bands(kernel)) {
    return {error_code::bad_option, "schedule.band", "must be 0 for this kernel"};
  }
  return {};
}

/// Sets a launch's schedule, which is whole.
inline void set_schedule(gemm_arguments& g, const gemm_schedule& s) {
  g.tile_m = s.tile_m;
  g.tile_n = s.tile_n;
  g.stages = s.stages;
  g.bands_of_columns = s.bands_of_columns;
  for (g.band_log = 0; 1 << g.band_log < s.band;) ++g.band_log;
}

}  // namespace detail

}  // namespace rotoscale::gpu
