// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches of AMD's GEMM kernels.
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/amd/gfx942.hpp"
#include "gpu/gemm/amd/gfx950.hpp"
#include "gpu/gemm/expand.hpp"
#include "gpu/gemm/plan.hpp"

namespace rotoscale::gpu::detail {

/// A grid of tiles of `tile` × `tile` outputs and parts of K.
inline dim3 tile_grid(const gemm_arguments& g, int tile) {
  const auto along = [tile](int extent) { return static_cast<unsigned>((extent + tile - 1) / tile); };
  return {along(g.n), along(g.m), static_cast<unsigned>(g.parts)};
}

/// MXFP4 from the operands themselves; MXFP8 expanded to BF16 first.
inline status run_gfx942(const gemm_problem& p, const gemm_choice& c, std::uint8_t* memory, const device_info& device,
                         stream s) {
  const gemm_arguments g = make_arguments(p, contract_options(c.contract, device, 1, is_fp8(p)));
  const dim3 grid = tile_grid(g, gfx942::tile), block = blocks(gfx942::threads);
  if (!is_fp8(p)) {
    const auto kernel = stores_vectors(g) ? gfx942::gemm_kernel<true> : gfx942::gemm_kernel<false>;
    return launch(kernel, grid, block, 0, s, gfx942::arguments{make_kernel_operand(p.a), make_kernel_operand(p.b), g});
  }
  const expand_arguments e = make_expansion(p, workspace_map(p, c, device), memory);
  const status expanded =
      launch(expand_rest_kernel, blocks(expand_blocks(g.m + g.n, e.k)), blocks(expand_threads), 0, s, e);
  if (!expanded.ok()) return expanded;
  const auto kernel = stores_vectors(g) ? gfx942::bf16_kernel<true> : gfx942::bf16_kernel<false>;
  return launch(kernel, grid, block, 0, s, gfx942::bf16_arguments{e.staging_a, e.staging_b, e.k, g});
}

using gfx950_kernel = void (*)(gfx950::arguments);
template <gemm_element A, gemm_element B>
gfx950_kernel kernel_of_elements(bool shuffled, bool partial) {
  if (shuffled && partial) return gfx950::gemm_kernel<A, B, true, output_mode::partial>;
  if (shuffled) return gfx950::gemm_kernel<A, B, true, output_mode::vector>;
  if (partial) return gfx950::gemm_kernel<A, B, false, output_mode::partial>;
  return gfx950::gemm_kernel<A, B, false, output_mode::vector>;
}
inline gfx950_kernel choose_gfx950_kernel(const gemm_problem& p, bool partial) {
  using enum gemm_element;
  const bool shuffled = p.a.code_order != placement::row_major;
  const gemm_element a = make_kernel_operand(p.a).element, b = make_kernel_operand(p.b).element;
  if (a == e2m1) return kernel_of_elements<e2m1, e2m1>(shuffled, partial);
  if (a == e4m3) {
    return b == e4m3 ? kernel_of_elements<e4m3, e4m3>(shuffled, partial)
                     : kernel_of_elements<e4m3, e5m2>(shuffled, partial);
  }
  return b == e4m3 ? kernel_of_elements<e5m2, e4m3>(shuffled, partial)
                   : kernel_of_elements<e5m2, e5m2>(shuffled, partial);
}

inline status run_gfx950(const gemm_problem& p, const gemm_choice& c, std::uint8_t* memory, const device_info& device,
                         stream s) {
  gemm_arguments g = make_arguments(p, contract_options(c.contract, device, 1, is_fp8(p)));
  const split parts = split_of(p.a.k, c.split_k, traits_of(device.arch).grain);
  g.parts = parts.parts;
  g.partial = reinterpret_cast<float*>(memory + workspace_map(p, c, device).partial);
  const auto operand = [](const gemm_operand& x) {
    return gfx950::operand{x.codes, reinterpret_cast<const std::uint32_t*>(x.scales), x.code_stride,
                           static_cast<int>(x.rows)};
  };
  const gfx950::arguments all{operand(p.a), operand(p.b), static_cast<int>(p.a.k), parts.part_k, g};
  const bool partial = writes_partial(p, c, device);
  const status multiplied =
      launch(choose_gfx950_kernel(p, partial), tile_grid(g, gfx950::tile), blocks(gfx950::threads), 0, s, all);
  return multiplied.ok() && partial ? finish_parts(g, s) : multiplied;
}

}  // namespace rotoscale::gpu::detail
