// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches the sm_90 fallback kernel: tiles wider than the first kernel's.
#include "gpu/gemm/sm90/fallback.hpp"

#include "gpu/gemm/sm90/multiply.hpp"

namespace rotoscale::gpu::detail {

status multiply_fallback(const upconvert_arguments& e, const gemm_arguments& g, const device_info& device, stream s) {
  return in_tile(g, [&]<int Rows, int Columns>() {
    using narrow = sm90::tile<operand_width::e5m2, Rows, Columns, fallback_promotion>;
    using wide = sm90::cleared<sm90::tile<operand_width::bf16, Rows, Columns>>;
    // A map of an unused width stays empty: the workspace has no room for such operands.
    sm90::operand_maps e5m2{}, bf16{};
    if (is_fallback(g, narrow::width) && !make_maps<narrow>(e5m2.a, e5m2.b, e.e5m2_a, e.e5m2_b, g)) return no_map();
    if (is_fallback(g, wide::width) && !make_maps<wide>(bf16.a, bf16.b, e.staging_a, e.staging_b, g)) return no_map();
    const auto kernel = choose_kernel(g, [&]<output_mode Mode>() { return sm90::fallback_kernel<narrow, wide, Mode>; });
    return launch_behind(kernel, grid_of<narrow>(g, device), blocks(sm90::threads), shared_bytes_of<narrow>(g), s, e5m2,
                         bf16, e, g);
  });
}

}  // namespace rotoscale::gpu::detail
