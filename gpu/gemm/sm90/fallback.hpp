// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The sm_90 fallback kernel for tiles wider than the first kernel's.
// It converts the operands (upconvert_fallback.hpp), then multiplies E5M2 tiles and BF16 tiles with the same stages.
// Usually there is no such tile: a block reads one word and exits.
#pragma once

#include "gpu/gemm/sm90/kernel.hpp"
#include "gpu/gemm/upconvert_fallback.hpp"

namespace rotoscale::gpu::sm90 {

struct operand_maps {
  CUtensorMap a, b;
};

/// ptxas serializes wgmma on undefined initial accumulators if a kernel has another wgmma loop, so they are cleared.
template <class Tile>
struct cleared : Tile {
  static constexpr bool clears = true;
};

/// A block's work: convert, then E5M2 tiles, then BF16 tiles.
template <class Narrow, class Wide, output_mode Mode>
__device__ inline void run_fallback(const operand_maps& narrow, const operand_maps& wide, const upconvert_arguments& e,
                                    const gemm_arguments& p) {
  static_assert(Narrow::rows == Wide::rows && Narrow::all_columns == Wide::all_columns &&
                    Narrow::blocks == Wide::blocks && Narrow::stage_size == Wide::stage_size &&
                    Narrow::max_stages == Wide::max_stages,
                "both kinds of tile go through the same stages");
  wait_for_kernel_before();
  const operand_width widest = widest_fallback(*p.fallback);
  if (widest == p.min_width) return;
  upconvert_fallback(e, *p.fallback, widest);
  extern __shared__ std::uint8_t dynamic[];
  __shared__ block_memory<Narrow> memory;  // BF16 sums need no exponents of columns
  const pipeline<Narrow> q = memory.stages(shared_address(dynamic));
  const pipeline<Wide> wide_q{q.full, q.empty, q.data};
  const std::uint32_t rank = Narrow::blocks == 1 ? 0 : cluster_rank();
  tile_widths widths = memory.widths(p);
  widths.clear();
  init_stages(q);
  widths.fill(p);
  const auto produce_all = [&]<class Tile>(const auto& each, const operand_maps& maps, const pipeline<Tile>& of) {
    each([&](tile_position at, ring& r) {
      if (widths.is_of<Tile>(at)) produce(p, maps.a, maps.b, of, r, rank, at);
    });
  };
  const auto consume_all = [&]<class Tile>(const auto& each, const pipeline<Tile>& of) {
    each([&](tile_position at, ring& r) {
      if (widths.is_of<Tile>(at)) consume<Tile, Mode>(p, of, r, memory.columns, rank, at);
    });
  };
  share_tiles<Narrow>(
      p,
      [&](const auto& each) {
        if (is_fallback(p, Narrow::width)) produce_all(each, narrow, q);
        if (is_fallback(p, Wide::width)) produce_all(each, wide, wide_q);
      },
      [&](const auto& each) {
        if (is_fallback(p, Narrow::width)) consume_all(each, q);
        if (is_fallback(p, Wide::width)) consume_all(each, wide_q);
      });
}

template <class Narrow, class Wide, output_mode Mode>
[[maybe_unused]] static __global__ void __cluster_dims__(Narrow::blocks, 1, 1) __launch_bounds__(threads, 1)
    fallback_kernel(const __grid_constant__ operand_maps narrow, const __grid_constant__ operand_maps wide,
                    const __grid_constant__ upconvert_arguments e, const __grid_constant__ gemm_arguments p) {
  if constexpr (is_sm90a) run_fallback<Narrow, Wide, Mode>(narrow, wide, e, p);
}

}  // namespace rotoscale::gpu::sm90
