// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches of the sm_90 GEMM kernels: tensor maps of the operands and the choice of a kernel. Each width and promotion
// is compiled by itself (int8.cpp and its neighbours): together they would take minutes.
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/dialect/tensor_map.hpp"
#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/sm90/kernel.hpp"
#include "gpu/gemm/sm90/launch.hpp"

namespace rotoscale::gpu::detail {

/// Boxes of `box_rows` rows × 128 bytes of a matrix of bytes whose rows are `stride` bytes apart; beyond its edges the
/// copy engine writes zeros.
inline bool make_map(CUtensorMap& map, const void* data, std::int64_t rows, std::int64_t row_bytes, std::int64_t stride,
                     int box_rows) {
  static const sm90::encode_function encode = sm90::find_encoder();
  const cuuint64_t extents[2] = {static_cast<cuuint64_t>(row_bytes), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride)};
  const cuuint32_t box[2] = {sm90::box_bytes, static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  return encode != nullptr &&
         encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), extents, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <class Tile>
auto choose_kernel(const gemm_arguments& g) {
  if (g.parts > 1) return sm90::gemm_kernel<Tile, output_mode::partial>;
  return stores_vectors(g) ? sm90::gemm_kernel<Tile, output_mode::vector>
         : stores_pairs(g) ? sm90::gemm_kernel<Tile, output_mode::pairs>
                           : sm90::gemm_kernel<Tile, output_mode::general>;
}

/// As many blocks as have work, at most one a processor. `behind`: behind a kernel of an expansion.
template <class Tile>
status launch_tiles(const CUtensorMap& a, const CUtensorMap& b, const gemm_arguments& g, const device_info& device,
                    stream s, bool behind = false) {
  const auto tiles_along = [](int extent, int tile) { return (extent + tile - 1) / tile; };
  const int work = tiles_along(g.m, Tile::rows) * tiles_along(g.n, Tile::all_columns) * g.parts,
            most = device.processors / Tile::blocks;
  const auto kernel = choose_kernel<Tile>(g);
  const dim3 grid = blocks(Tile::blocks * (work < most ? work : most)), block = blocks(sm90::threads);
  const auto shared = static_cast<std::size_t>(Tile::shared_size(g.stages));
  return behind ? launch_behind(kernel, grid, block, shared, s, a, b, g)
                : launch(kernel, grid, block, shared, s, a, b, g);
}

template <class Tile>
status multiply_in_tiles(const std::uint8_t* a, const std::uint8_t* b, int k, const gemm_arguments& g,
                         const device_info& device, stream s) {
  CUtensorMap map_a, map_b;
  const std::int64_t row_bytes = std::int64_t{k} * (Tile::width == operand_width::bf16 ? 2 : 1);
  if (!make_map(map_a, a, g.m, row_bytes, row_bytes, Tile::box_a) ||
      !make_map(map_b, b, g.n, row_bytes, row_bytes, Tile::box_b)) {
    return {error_code::device_error, "", "the driver made no tensor map"};
  }
  return launch_tiles<Tile>(map_a, map_b, g, device, s, true);
}

template <operand_width Width, int Promotion>
status multiply_expanded(const std::uint8_t* a, const std::uint8_t* b, int k, const gemm_arguments& g,
                         const device_info& device, stream s) {
  using sm90::tile;
  const auto run = g.tile_m == 128  ? multiply_in_tiles<tile<Width, 128, 128, Promotion>>
                   : g.tile_m == 64 ? multiply_in_tiles<tile<Width, 64, 256, Promotion>>
                   : g.tile_n == 64 ? multiply_in_tiles<tile<Width, 256, 64, Promotion>>
                                    : multiply_in_tiles<tile<Width, 256, 256, Promotion>>;
  return run(a, b, k, g, device, s);
}

}  // namespace rotoscale::gpu::detail
