// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches of AMD's block-scaled GEMM kernels.
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/amd/dense_launch.hpp"
#include "gpu/gemm/amd/gfx942.hpp"
#include "gpu/gemm/amd/gfx950.hpp"
#include "gpu/gemm/expand.hpp"
#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/tile_walk.hpp"

namespace rotoscale::gpu::detail {

/// Launches gfx942's MXFP4 kernel with the tile of `g`. gfx950 supports its instruction too.
inline status launch_mxfp4(const gemm_operand& a, const gemm_operand& b, const gemm_arguments& g, stream s) {
  const gfx942::arguments all{make_kernel_operand(a), make_kernel_operand(b), g};
  return in_tiles<gfx942_fp4_tiles>(g, [&]<tile_shape T>() {
    return launch(stores_vectors(g) ? gfx942::gemm_kernel<T.m, T.n, true> : gfx942::gemm_kernel<T.m, T.n, false>,
                  tile_grid(g), blocks(gfx942::threads), 0, s, all);
  });
}

/// MXFP4 is multiplied directly, MXFP8 is expanded to BF16 first.
inline status run_gfx942(const gemm_problem& p, const gemm_choice& c, std::uint8_t* memory, const device_info& device,
                         stream s) {
  gemm_arguments g = make_arguments(p, contract_options(c.contract, device, 1, is_fp8(p)));
  set_schedule(g, traits_of(device.arch), c.schedule, is_fp8(p));
  if (!is_fp8(p)) return launch_mxfp4(p.a, p.b, g, s);
  const expand_arguments e = make_expansion(p, workspace_map(p, c, device), memory);
  const status expanded =
      launch(expand_bf16_kernel, blocks(expand_blocks(g.m + g.n, e.k)), blocks(expand_threads), 0, s, e);
  if (!expanded.ok()) return expanded;
  const std::int64_t stride = 2 * std::int64_t{e.k};
  g.part_k = g.k;
  return launch_dense({e.staging_a, stride}, false, {e.staging_b, stride}, false, g, s);
}

/// Launches the kernel for the elements of `p`, with the tile of `all`.
inline status launch_gfx950(const gemm_problem& p, const gfx950::arguments& all, stream s) {
  using enum gemm_element;
  const auto run = [&]<tile_shape T>(auto kernel) {
    using Tile = gfx950::tile<T.m, T.n>;
    static_assert(Tile::percent == T.percent);
    return launch(kernel, tile_grid(all.p), blocks(Tile::threads), 0, s, all);
  };
  if (!is_fp8(p)) {
    return in_tiles<gfx950_fp4_tiles>(
        all.p, [&]<tile_shape T>() { return run.template operator()<T>(gfx950::gemm_kernel<T.m, T.n, e2m1, e2m1>); });
  }
  const bool a = p.a.element == formats::e4m3, b = p.b.element == formats::e4m3;
  return in_tiles<gfx950_fp8_tiles>(all.p, [&]<tile_shape T>() {
    return run.template operator()<T>(
        a ? (b ? gfx950::gemm_kernel<T.m, T.n, e4m3, e4m3> : gfx950::gemm_kernel<T.m, T.n, e4m3, e5m2>)
          : (b ? gfx950::gemm_kernel<T.m, T.n, e5m2, e4m3> : gfx950::gemm_kernel<T.m, T.n, e5m2, e5m2>));
  });
}
inline status run_gfx950(const gemm_problem& p, const gemm_choice& c, std::uint8_t* memory, const device_info& device,
                         stream s) {
  gemm_arguments g = make_arguments(p, contract_options(c.contract, device, 1, is_fp8(p)));
  const split parts = split_of(p.a.k, c.split_k, traits_of(device.arch).grain);
  g.parts = parts.parts;
  g.partial = reinterpret_cast<float*>(memory + workspace_map(p, c, device).partial);
  set_schedule(g, traits_of(device.arch), c.schedule, is_fp8(p));
  const auto operand = [](const gemm_operand& x) {
    const bool shuffled = x.code_order != placement::row_major;
    return gfx950::operand{x.codes, reinterpret_cast<const std::uint32_t*>(x.scales),
                           shuffled ? x.row_bytes() : x.code_stride, shuffled ? 16 : 1, static_cast<int>(x.rows)};
  };
  const gfx950::arguments all{operand(p.a), operand(p.b), static_cast<int>(p.a.k), parts.part_k, stores_fours(g), g};
  const status multiplied = launch_gfx950(p, all, s);
  return multiplied.ok() && g.parts > 1 ? finish_parts(g, s) : multiplied;
}

}  // namespace rotoscale::gpu::detail
