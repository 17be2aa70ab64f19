// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches of the sm_90 kernels of dense operands: FP8 with k contiguous, BF16 with k or rows contiguous.
#pragma once

#include "gpu/gemm/sm90/multiply.hpp"

namespace rotoscale::gpu::detail {

inline bool make_dense_map(CUtensorMap& map, const gemm_operand& x) {
  return x.transposed ? make_map(map, x.codes, x.k, 2 * x.rows, x.code_stride, sm90::transposed_box_k)
                      : make_map(map, x.codes, x.rows, 2 * x.k, x.code_stride, 128);
}

template <bool TransposedA, bool TransposedB>
status launch_bf16(const CUtensorMap& a, const CUtensorMap& b, const gemm_arguments& g, const device_info& device,
                   stream s) {
  using dense_tile = sm90::tile<operand_width::bf16, 256, 256, 0, TransposedA, TransposedB>;
  static_assert(dense_tile::box_a == 128 && dense_tile::box_b == 128);
  return launch_tiles<dense_tile>(a, b, g, device, s);
}

inline status multiply_dense(const gemm_operand& a, const gemm_operand& b, const gemm_options& o,
                             const gemm_arguments& g, const device_info& device, stream s) {
  if (a.element != formats::bf16) {
    ROTOSCALE_ASSERT(o.promotion == 0 || o.promotion == first_promotion);
    return o.promotion == 0 ? multiply_fp8<0>(a, b, g, device, s) : multiply_fp8<first_promotion>(a, b, g, device, s);
  }
  CUtensorMap map_a, map_b;
  if (!make_dense_map(map_a, a) || !make_dense_map(map_b, b)) return no_map();
  if (a.transposed) {
    return b.transposed ? launch_bf16<true, true>(map_a, map_b, g, device, s)
                        : launch_bf16<true, false>(map_a, map_b, g, device, s);
  }
  return b.transposed ? launch_bf16<false, true>(map_a, map_b, g, device, s)
                      : launch_bf16<false, false>(map_a, map_b, g, device, s);
}

}  // namespace rotoscale::gpu::detail
