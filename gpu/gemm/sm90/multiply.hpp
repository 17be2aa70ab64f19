// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches of the sm_90 GEMM kernels: tensor maps and kernel selection.
// Each width and promotion is compiled in a separate source (int8.cpp etc.), since one source would take minutes.
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/dialect/tensor_map.hpp"
#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/sm90/kernel.hpp"
#include "gpu/gemm/sm90/launch.hpp"

namespace rotoscale::gpu::detail {

/// Tensor map with boxes of `box_rows` rows × 128 bytes, over a matrix of bytes whose rows are `stride` bytes apart.
inline bool make_map(CUtensorMap& map, const void* data, std::int64_t rows, std::int64_t row_bytes, std::int64_t stride,
                     int box_rows) {
  return sm90::encode_map(map, {CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_L2_PROMOTION_L2_256B}, data,
                          {row_bytes, rows}, {stride}, {sm90::box_bytes, static_cast<cuuint32_t>(box_rows)});
}

/// Tensor maps of converted operands for Tile.
template <class Tile>
bool make_maps(CUtensorMap& map_a, CUtensorMap& map_b, const std::uint8_t* a, const std::uint8_t* b,
               const gemm_arguments& g) {
  const std::int64_t row_bytes = std::int64_t{g.k} * (Tile::width == operand_width::bf16 ? 2 : 1);
  return make_map(map_a, a, g.m, row_bytes, row_bytes, Tile::box_a) &&
         make_map(map_b, b, g.n, row_bytes, row_bytes, Tile::box_b);
}
inline status no_map() { return {error_code::device_error, "", "the driver made no tensor map"}; }

/// Selects the kernel of the output mode. `of` returns the kernel of a mode.
template <class Of>
auto choose_kernel(const gemm_arguments& g, const Of& of) {
  using enum output_mode;
  if (g.parts > 1) return of.template operator()<partial>();
  return stores_vectors(g) ? of.template operator()<vector>()
         : stores_pairs(g) ? of.template operator()<pairs>()
                           : of.template operator()<general>();
}

/// Grid and shared memory of Tile's kernel: at most one block per SM, and no block without a tile.
template <class Tile>
dim3 grid_of(const gemm_arguments& g, const device_info& device) {
  const auto tiles_along = [](int extent, int tile) { return (extent + tile - 1) / tile; };
  const int work = tiles_along(g.m, Tile::rows) * tiles_along(g.n, Tile::all_columns) * g.parts,
            most = device.processors / Tile::blocks;
  return blocks(Tile::blocks * (work < most ? work : most));
}
template <class Tile>
std::size_t shared_bytes_of(const gemm_arguments& g) {
  return static_cast<std::size_t>(Tile::shared_size(g.stages));
}

/// `behind`: programmatic dependent launch after a conversion kernel.
template <class Tile>
status launch_tiles(const CUtensorMap& a, const CUtensorMap& b, const gemm_arguments& g, const device_info& device,
                    stream s, bool behind = false) {
  const auto kernel = choose_kernel(g, [&]<output_mode Mode>() { return sm90::gemm_kernel<Tile, Mode>; });
  const dim3 grid = grid_of<Tile>(g, device), block = blocks(sm90::threads);
  return behind ? launch_behind(kernel, grid, block, shared_bytes_of<Tile>(g), s, a, b, g)
                : launch(kernel, grid, block, shared_bytes_of<Tile>(g), s, a, b, g);
}

/// Calls `run` with rows and columns of the tile in `g`.
template <class Run>
status in_tile(const gemm_arguments& g, const Run& run) {
  return g.tile_m == 128  ? run.template operator()<128, 128>()
         : g.tile_m == 64 ? run.template operator()<64, 256>()
         : g.tile_n == 64 ? run.template operator()<256, 64>()
                          : run.template operator()<256, 256>();
}

template <operand_width Width>
status multiply_converted(const std::uint8_t* a, const std::uint8_t* b, const gemm_arguments& g,
                          const device_info& device, stream s) {
  constexpr int promotion = Width == operand_width::e5m2 ? first_promotion : 0;
  return in_tile(g, [&]<int Rows, int Columns>() {
    using tile = sm90::tile<Width, Rows, Columns, promotion>;
    CUtensorMap map_a, map_b;
    if (!make_maps<tile>(map_a, map_b, a, b, g)) return no_map();
    return launch_tiles<tile>(map_a, map_b, g, device, s, true);
  });
}

}  // namespace rotoscale::gpu::detail
