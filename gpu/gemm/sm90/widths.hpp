// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operand widths of the tiles of `accurate` and `fast`, cached by a block of the sm_90 kernels.
#pragma once

#include "gpu/gemm/output.hpp"
#include "gpu/gemm/sm90/tiles.hpp"

namespace rotoscale::gpu::sm90 {

/// Combined widths of window_tile rows each, of A, then of B, in shared memory, sixteen per word.
struct tile_widths {
  static constexpr int words = 2 * max_gemm_extent / window_tile / 16;
  std::uint32_t* combined;  ///< `words` words, then one for all rows; null: no widths, the kernel takes every tile
  int tiles_a;
  __device__ std::uint32_t at(int tile) const { return combined[tile / 16] >> (2 * (tile % 16)) & 3u; }
  template <class Tile>
  __device__ bool is_of(tile_position t) const {
    constexpr int down = window_tile / Tile::rows, across = window_tile / Tile::all_columns;
    return combined == nullptr || combined_width(at(t.row / down) | at(tiles_a + t.column / across)) == Tile::width;
  }
  /// Call before fill, with a barrier in between.
  __device__ void clear() {
    if (combined == nullptr) return;
    for (int i = static_cast<int>(threadIdx.x); i <= words; i += threads) combined[i] = 0;
  }
  /// Reads the widths and returns the widest of all rows. All threads of the block call it.
  __device__ operand_width fill(const gemm_arguments& p) {
    const int count_a = (p.m + 15) / 16, count_b = (p.n + 15) / 16;
    std::uint32_t seen = 0;
    constexpr int depth = 4;  // loads in flight, since the first tile waits for them
    for (int first = static_cast<int>(threadIdx.x); first < count_a + count_b; first += depth * threads) {
      std::uint32_t x[depth];
      ROTOSCALE_UNROLL
      for (int j = 0; j < depth; ++j) {
        const int i = first + j * threads;
        const bool second = i >= count_a;
        const int at = second ? i - count_a : i;
        x[j] = i >= count_a + count_b
                   ? 0
                   : combined_widths_of_sixteen(p.widths + (second ? p.base_b : 0), at, second ? p.n : p.m);
      }
      ROTOSCALE_UNROLL
      for (int j = 0; j < depth; ++j) {
        const int i = first + j * threads;
        const int tile = i >= count_a ? tiles_a + (i - count_a) / (window_tile / 16) : i / (window_tile / 16);
        if (x[j] != 0) atomicOr(combined + tile / 16, x[j] << (2 * (tile % 16)));
        seen |= x[j];
      }
    }
    if (seen != 0) atomicOr(combined + words, seen);
    __syncthreads();
    return combined_width(combined[words]);
  }
};

}  // namespace rotoscale::gpu::sm90
