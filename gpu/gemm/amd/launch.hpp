// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches of AMD's GEMM kernels.
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/amd/dense_launch.hpp"
#include "gpu/gemm/amd/gfx942.hpp"
#include "gpu/gemm/amd/gfx950.hpp"
#include "gpu/gemm/expand.hpp"
#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/tile_walk.hpp"

namespace rotoscale::gpu::detail {

/// gfx942's sums of MXFP4 operands, in the tile of `g`; gfx950 has its instruction as well.
inline status launch_mxfp4(const gemm_operand& a, const gemm_operand& b, const gemm_arguments& g, stream s) {
  const gfx942::arguments all{make_kernel_operand(a), make_kernel_operand(b), g};
  return in_tiles<gfx942_tiles>(g, [&]<tile_shape T>() {
    return launch(stores_vectors(g) ? gfx942::gemm_kernel<T.m, T.n, true> : gfx942::gemm_kernel<T.m, T.n, false>,
                  tile_grid(g), blocks(gfx942::threads), 0, s, all);
  });
}

/// MXFP4 from the operands themselves; MXFP8 expanded to BF16 first.
inline status run_gfx942(const gemm_problem& p, const gemm_choice& c, std::uint8_t* memory, const device_info& device,
                         stream s) {
  gemm_arguments g = make_arguments(p, contract_options(c.contract, device, 1, is_fp8(p)));
  set_schedule(g, traits_of(device.arch), c.schedule);
  if (!is_fp8(p)) return launch_mxfp4(p.a, p.b, g, s);
  const expand_arguments e = make_expansion(p, workspace_map(p, c, device), memory);
  const status expanded =
      launch(expand_bf16_kernel, blocks(expand_blocks(g.m + g.n, e.k)), blocks(expand_threads), 0, s, e);
  if (!expanded.ok()) return expanded;
  const std::int64_t stride = 2 * std::int64_t{e.k};
  g.part_k = g.k;
  return launch_dense({e.staging_a, stride}, false, {e.staging_b, stride}, false, g, s);
}

using gfx950_kernel = void (*)(gfx950::arguments);
template <class Tile, gemm_element A, gemm_element B>
gfx950_kernel kernel_of_elements(bool shuffled, bool partial) {
  constexpr int m = Tile::rows, n = Tile::columns;
  if (shuffled && partial) return gfx950::gemm_kernel<m, n, A, B, true, output_mode::partial>;
  if (shuffled) return gfx950::gemm_kernel<m, n, A, B, true, output_mode::vector>;
  if (partial) return gfx950::gemm_kernel<m, n, A, B, false, output_mode::partial>;
  return gfx950::gemm_kernel<m, n, A, B, false, output_mode::vector>;
}
template <class Tile>
status launch_gfx950(const gemm_problem& p, bool partial, const gfx950::arguments& all, stream s) {
  using enum gemm_element;
  const bool shuffled = p.a.code_order != placement::row_major;
  const gemm_element a = make_kernel_operand(p.a).element, b = make_kernel_operand(p.b).element;
  const auto choose = a == e2m1                ? kernel_of_elements<Tile, e2m1, e2m1>
                      : a == e4m3 && b == e4m3 ? kernel_of_elements<Tile, e4m3, e4m3>
                      : a == e4m3              ? kernel_of_elements<Tile, e4m3, e5m2>
                      : b == e4m3              ? kernel_of_elements<Tile, e5m2, e4m3>
                                               : kernel_of_elements<Tile, e5m2, e5m2>;
  return launch(choose(shuffled, partial), tile_grid(all.p), blocks(Tile::threads), 0, s, all);
}
inline status run_gfx950(const gemm_problem& p, const gemm_choice& c, std::uint8_t* memory, const device_info& device,
                         stream s) {
  gemm_arguments g = make_arguments(p, contract_options(c.contract, device, 1, is_fp8(p)));
  const split parts = split_of(p.a.k, c.split_k, traits_of(device.arch).grain);
  g.parts = parts.parts;
  g.partial = reinterpret_cast<float*>(memory + workspace_map(p, c, device).partial);
  set_schedule(g, traits_of(device.arch), c.schedule);
  const auto operand = [](const gemm_operand& x) {
    return gfx950::operand{x.codes, reinterpret_cast<const std::uint32_t*>(x.scales), x.code_stride,
                           static_cast<int>(x.rows)};
  };
  const gfx950::arguments all{operand(p.a), operand(p.b), static_cast<int>(p.a.k), parts.part_k, g};
  const bool partial = writes_partial(p, c, device);
  const status multiplied = in_tiles<gfx950_tiles>(g, [&]<tile_shape T>() {
    static_assert(gfx950::tile<T.m, T.n>::percent == T.percent);
    return launch_gfx950<gfx950::tile<T.m, T.n>>(p, partial, all, s);
  });
  return multiplied.ok() && partial ? finish_parts(g, s) : multiplied;
}

}  // namespace rotoscale::gpu::detail
