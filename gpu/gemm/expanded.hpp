// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launch order of GEMMs whose operands are expanded in the workspace: expansions, kernels, split-K sum.
// The including file provides the kernels `multiply` and `multiply_rest` (sm90/launch.hpp or, in host mode,
// host_stand_in.hpp).
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/expand.hpp"
#include "gpu/gemm/expand_int8.hpp"
#include "gpu/gemm/expand_rest.hpp"
#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/tile_walk.hpp"

namespace rotoscale::gpu::detail {

/// Expands both operands, multiplies them, and adds the parts of K. The first kernel computes the tiles of the
/// narrowest width, the fallback kernel all others. int8 and BF16 codes share memory, so the fallback expands after the
/// int8 kernel.
inline status run_expanded(const gemm_problem& p, const gemm_choice& c, std::uint8_t* memory, const device_info& device,
                           stream stream) {
  const workspace_map map(p, c, device);
  const gemm_options narrow = contract_options(c.contract, device),
                     bf16 = contract_options(c.contract, device, 1, true);
  const bool folds = detail::folds(p, c, device), int8 = folds_int8(p, c, device);
  gemm_arguments g = make_arguments(p, bf16);
  const split parts = split_of(p.a.k, c.split_k, traits_of(device.arch).grain);
  g.parts = parts.parts;
  g.part_k = parts.part_k;
  set_schedule(g, traits_of(device.arch), c.schedule, is_fp8(p));
  g.partial = reinterpret_cast<float*>(memory + map.partial);
  expand_arguments e = make_expansion(p, map, memory);
  e.base_b = g.base_b;
  const int rows = g.m + g.n, all_blocks = expand_blocks(rows, e.k);
  const auto expand = [&](void (*kernel)(expand_arguments), int count) {
    return launch_behind_any(kernel, blocks(count), blocks(expand_threads), 0, stream, e);
  };
  status s;
  if (folds) {
    g.base = e.base = reinterpret_cast<int*>(memory + map.base);
    g.widths = e.widths = reinterpret_cast<operand_width*>(memory + map.widths);
    g.rest = reinterpret_cast<rest_work*>(memory + map.rest);
    g.min_width = int8 ? operand_width::int8 : operand_width::e5m2;
    s = int8 ? expand(expand_int8_kernel, (rows + int8_rows(e.k) - 1) / int8_rows(e.k))
             : expand(expand_e5m2_kernel, all_blocks);
    if (s.ok()) {
      s = int8 ? multiply<operand_width::int8>(e.staging_a, e.staging_b, narrow, g, device, stream)
               : multiply<operand_width::e5m2>(e.e5m2_a, e.e5m2_b, narrow, g, device, stream);
    }
    if (s.ok()) s = multiply_rest(e, narrow, bf16, g, device, stream);
  } else {
    s = expand(expand_bf16_kernel, all_blocks);
    if (s.ok()) s = multiply<operand_width::bf16>(e.staging_a, e.staging_b, bf16, g, device, stream);
  }
  return s.ok() && g.parts > 1 ? finish_parts(g, stream) : s;
}

}  // namespace rotoscale::gpu::detail
