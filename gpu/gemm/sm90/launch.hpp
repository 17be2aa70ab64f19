// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches of the sm_90 GEMM kernels: tensor maps of the expanded operands and the choice of a kernel.
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/sm90/kernel.hpp"

namespace rotoscale::gpu::detail {

using encode_function = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                     const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                     CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

inline encode_function find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found) !=
          cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<encode_function>(function);
}

/// Boxes of `box_rows` rows × 128 bytes of a matrix of bytes whose rows are `stride` bytes apart; beyond its edges the
/// copy engine writes zeros.
inline bool make_map(CUtensorMap& map, const void* data, std::int64_t rows, std::int64_t row_bytes, std::int64_t stride,
                     unsigned box_rows = sm90::box_rows) {
  static const encode_function encode = find_encoder();
  const cuuint64_t extents[2] = {static_cast<cuuint64_t>(row_bytes), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride)};
  const cuuint32_t box[2] = {sm90::box_bytes, box_rows}, steps[2] = {1, 1};
  return encode != nullptr &&
         encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), extents, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <class Tile>
auto choose_kernel(const gemm_arguments& g) {
  if (g.parts > 1) return sm90::gemm_kernel<Tile, output_mode::partial>;
  return stores_vectors(g)  ? sm90::gemm_kernel<Tile, output_mode::vector>
         : stores_pairs(g) ? sm90::gemm_kernel<Tile, output_mode::pairs>
                           : sm90::gemm_kernel<Tile, output_mode::general>;
}

/// Multiplies expanded operands.
template <operand_width Width>
status multiply(const std::uint8_t* a, const std::uint8_t* b, int k, const gemm_options& o, const gemm_arguments& g,
                const device_info& device, stream s) {
  CUtensorMap map_a, map_b;
  const std::int64_t row_bytes = std::int64_t{k} * (Width == operand_width::bf16 ? 2 : 1);
  if (!make_map(map_a, a, g.m, row_bytes, row_bytes) || !make_map(map_b, b, g.n, row_bytes, row_bytes)) {
    return {error_code::device_error, "", "the driver made no tensor map"};
  }
  const auto tiles_along = [](int extent) { return (extent + window_tile - 1) / window_tile; };
  const int work = tiles_along(g.m) * tiles_along(g.n) * g.parts;
  const int clusters = work < device.processors / 2 ? work : device.processors / 2;
  const auto kernel = Width == operand_width::int8   ? choose_kernel<sm90::int8_tile>(g)
                      : Width == operand_width::bf16 ? choose_kernel<sm90::bf16_tile<>>(g)
                      : o.promotion == 128           ? choose_kernel<sm90::fp8_tile<128>>(g)
                                                     : choose_kernel<sm90::fp8_tile<32>>(g);
  return launch(kernel, blocks(2 * clusters), blocks(sm90::threads), sm90::shared_size, s, map_a, map_b, g);
}

}  // namespace rotoscale::gpu::detail
