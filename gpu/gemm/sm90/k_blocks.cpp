// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches the sm_90 kernels of fp32_blockwise.
#include "gpu/gemm/sm90/k_blocks.hpp"

#include "gpu/gemm/sm90/multiply.hpp"

namespace rotoscale::gpu::detail {

status multiply_k_blocks(const upconvert_arguments& e, const tile_table& table, const gemm_arguments& g,
                         const device_info& device, stream s) {
  return in_tile(g, [&]<int Rows, int Columns>() {
    using tile = sm90::tile<operand_width::e5m2, Rows, Columns, fallback_promotion>;
    sm90::k_block_maps maps;
    if (!make_maps<tile>(maps.int8_a, maps.int8_b, e.staging_a, e.staging_b, g)) return no_map();
    if (!make_maps<tile>(maps.e5m2_a, maps.e5m2_b, e.e5m2_a, e.e5m2_b, g)) return no_map();
    const auto kernel = choose_kernel(g, [&]<output_mode Mode>() { return sm90::k_blocks_kernel<tile, Mode>; });
    return launch_behind(kernel, grid_of<tile>(g, device), blocks(sm90::threads), shared_bytes_of<tile>(g), s, maps,
                         table, g);
  });
}

}  // namespace rotoscale::gpu::detail
