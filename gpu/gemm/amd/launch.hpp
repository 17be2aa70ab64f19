// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches of AMD's block-scaled GEMM kernels.
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/amd/dense_launch.hpp"
#include "gpu/gemm/amd/gfx942.hpp"
#include "gpu/gemm/amd/gfx950.hpp"
#include "gpu/gemm/plan.hpp"

namespace rotoscale::gpu::detail {

/// Launches gfx942's MXFP4 kernel. gfx950 supports its instruction too.
inline status run_gfx942(const gemm_launch& l) {
  const gfx942::arguments all{make_kernel_operand(l.call.a), make_kernel_operand(l.call.b), make_arguments(l, nullptr)};
  return in_tiles<gfx942_fp4_tiles>(all.p, [&]<tile_shape T>() {
    return launch(stores_vectors(all.p) ? gfx942::gemm_kernel<T.m, T.n, true> : gfx942::gemm_kernel<T.m, T.n, false>,
                  tile_grid(all.p), blocks(gfx942::threads), 0, l.stream, all);
  });
}

/// Launches the kernel for the element formats of `p`, with the tile size that `all` selects.
inline status launch_gfx950(const gemm_call& p, const gfx950::arguments& all, stream s) {
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
inline status run_gfx950(const gemm_launch& l) {
  const gemm_arguments g = make_arguments(l, l.workspace);
  const auto operand = [](const gemm_operand& x) {
    const bool shuffled = x.code_order != placement::row_major;
    return gfx950::operand{x.codes, reinterpret_cast<const std::uint32_t*>(x.scales),
                           shuffled ? x.row_bytes() : x.code_stride, shuffled ? 16 : 1, static_cast<int>(x.rows)};
  };
  const gemm_call& c = l.call;
  const gfx950::arguments all{operand(c.a), operand(c.b), g.k, g.part_k, stores_fours(g), g};
  const status multiplied = launch_gfx950(c, all, l.stream);
  return multiplied.ok() && g.parts > 1 ? finish_parts(g, l.stream) : multiplied;
}

}  // namespace rotoscale::gpu::detail
