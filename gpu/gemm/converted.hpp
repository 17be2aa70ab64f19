// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launch order of GEMMs whose operands are converted in the workspace: conversions, kernels, split-K sum.
// The including file provides the kernels `multiply` and `multiply_fallback` (sm90/launch.hpp or, in host mode,
// host_stand_in.hpp).
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/upconvert.hpp"
#include "gpu/gemm/upconvert_fallback.hpp"
#include "gpu/gemm/upconvert_int8.hpp"

namespace rotoscale::gpu::detail {

/// Converts both operands to `First`, multiplies them, and adds the parts of K. MXFP4 begins with int8 or E5M2: the
/// first kernel computes the tiles of that width, the fallback kernel all others. The fallback converts after the int8
/// kernel, since int8 and BF16 codes share memory.
template <operand_width First>
status launch_converted(const gemm_launch& l) {
  constexpr bool folds = First != operand_width::bf16;
  const workspace_map map(l.call, folds);
  const gemm_options own = options_of(l.kernel), bf16 = options_of(traits_of(arch::sm_90).bf16);
  gemm_arguments g = make_arguments(l, l.workspace + map.partial);
  g.nan_bits = bf16.model.nan_bits;
  upconvert_arguments e = make_expansion(l.call, map, l.workspace);
  e.base_b = g.base_b;
  const int rows = g.m + g.n, all_blocks = upconvert_blocks(rows, e.k);
  const auto upconvert = [&](void (*kernel)(upconvert_arguments), int count) {
    return launch_behind_any(kernel, blocks(count), blocks(upconvert_threads), 0, l.stream, e);
  };
  status s;
  if constexpr (folds) {
    g.base = e.base = reinterpret_cast<int*>(l.workspace + map.base);
    g.widths = e.widths = reinterpret_cast<operand_width*>(l.workspace + map.widths);
    g.fallback = reinterpret_cast<fallback_work*>(l.workspace + map.fallback);
    g.min_width = First;
    constexpr bool int8 = First == operand_width::int8;
    s = int8 ? upconvert(upconvert_int8_kernel, (rows + int8_rows(e.k) - 1) / int8_rows(e.k))
             : upconvert(upconvert_e5m2_kernel, all_blocks);
    if (s.ok()) {
      s = multiply<First>(int8 ? e.staging_a : e.e5m2_a, int8 ? e.staging_b : e.e5m2_b, own, g, l.device, l.stream);
    }
    if (s.ok()) s = multiply_fallback(e, own, bf16, g, l.device, l.stream);
  } else {
    s = upconvert(upconvert_bf16_kernel, all_blocks);
    if (s.ok()) s = multiply<First>(e.staging_a, e.staging_b, own, g, l.device, l.stream);
  }
  return s.ok() && g.parts > 1 ? finish_parts(g, l.stream) : s;
}

}  // namespace rotoscale::gpu::detail
