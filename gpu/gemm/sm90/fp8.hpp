// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches of the sm_90 kernels of per-tensor FP8 operands, for the two sources that compile them.
#pragma once

#include "gpu/gemm/sm90/multiply.hpp"

namespace rotoscale::gpu::detail {

/// Launches the tile of these FP8 formats, promoted every Promotion k.
template <sm90::fp8_products Products, int Promotion>
status launch_fp8(const gemm_operand& a, const gemm_operand& b, const gemm_arguments& g, const device_info& device,
                  stream s) {
  using tile = sm90::fp8_tile<Products, Promotion>;
  CUtensorMap map_a, map_b;
  if (!make_map(map_a, a.codes, a.rows, a.k, a.code_stride, tile::box_a) ||
      !make_map(map_b, b.codes, b.rows, b.k, b.code_stride, tile::box_b)) {
    return no_map();
  }
  return launch_tiles<tile>(map_a, map_b, g, device, s);
}
template <int Promotion>
status multiply_fp8(const gemm_operand& a, const gemm_operand& b, const gemm_arguments& g, const device_info& device,
                    stream s) {
  using enum sm90::fp8_products;
  if (a.element == formats::e4m3) {
    return b.element == formats::e4m3 ? launch_fp8<e4m3, Promotion>(a, b, g, device, s)
                                      : launch_fp8<e4m3_e5m2, Promotion>(a, b, g, device, s);
  }
  return b.element == formats::e4m3 ? launch_fp8<e5m2_e4m3, Promotion>(a, b, g, device, s)
                                    : launch_fp8<e5m2, Promotion>(a, b, g, device, s);
}

}  // namespace rotoscale::gpu::detail
