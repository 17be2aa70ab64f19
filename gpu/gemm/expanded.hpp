// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMMs of operands that are expanded in the workspace first: the order of expansions and kernels. The kernels are
// those of `multiply`, which the including file brings (sm90/launch.hpp or, in host mode, host_stand_in.hpp).
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/expand.hpp"
#include "gpu/gemm/expand_int8.hpp"
#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/tile_walk.hpp"

namespace rotoscale::gpu::detail {

/// So many blocks look at the widths and, as a rule, leave; else they share the work.
inline constexpr int checking_blocks = 528;

/// Expands both operands, multiplies them, and adds the parts of K. Every tile is computed by the kernel of its width;
/// int8 lies where BF16 will, so the rest is expanded when the int8 kernel is done.
inline status run_expanded(const gemm_problem& p, const gemm_choice& c, std::uint8_t* memory, const device_info& device,
                           stream stream) {
  const workspace_map map(p, c, device);
  const gemm_options narrow = contract_options(c.contract, device),
                     bf16 = contract_options(c.contract, device, 1, true);
  const bool folds = detail::folds(p, c, device), int8 = folds_int8(p, c, device);
  gemm_arguments g = make_arguments(p, bf16);
  const split parts = split_of(p.a.k, c.split_k, traits_of(device.arch).grain);
  g.parts = parts.parts;
  set_schedule(g, traits_of(device.arch), c.schedule);
  g.partial = reinterpret_cast<float*>(memory + map.partial);
  expand_arguments e = make_expansion(p, map, memory);
  e.base_b = g.base_b;
  const int rows = g.m + g.n, k = static_cast<int>(p.a.k), all_blocks = expand_blocks(rows, k);
  const auto expand = [&](void (*kernel)(expand_arguments), int count) {
    return launch(kernel, blocks(count), blocks(expand_threads), 0, stream, e);
  };
  status s;
  if (folds) {
    g.base = e.base = reinterpret_cast<int*>(memory + map.base);
    g.widths = e.widths = reinterpret_cast<operand_width*>(memory + map.widths);
    g.min_width = e.min_width = int8 ? operand_width::int8 : operand_width::e5m2;
    g.k_boxes = (k + 127) / 128;
    g.part_boxes = parts.part_k / 128;
    s = int8 ? expand(expand_int8_kernel, (rows + int8_rows(k) - 1) / int8_rows(k))
             : expand(expand_e5m2_kernel, all_blocks);
  }
  if (s.ok() && int8) s = multiply<operand_width::int8>(e.staging_a, e.staging_b, k, narrow, g, device, stream);
  if (s.ok()) {
    const dim3 grid = blocks(folds && all_blocks > checking_blocks ? checking_blocks : all_blocks);
    s = folds ? launch_behind(expand_rest_kernel, grid, blocks(expand_threads), 0, stream, e)
              : launch(expand_rest_kernel, grid, blocks(expand_threads), 0, stream, e);
  }
  if (s.ok() && folds) s = multiply<operand_width::e5m2>(e.e5m2_a, e.e5m2_b, k, narrow, g, device, stream);
  g.k_boxes = (2 * k + 127) / 128;
  g.part_boxes = parts.part_k / 64;
  if (s.ok()) s = multiply<operand_width::bf16>(e.staging_a, e.staging_b, k, bf16, g, device, stream);
  return s.ok() && g.parts > 1 ? finish_parts(g, stream) : s;
}

}  // namespace rotoscale::gpu::detail
