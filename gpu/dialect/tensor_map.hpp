// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Tensor maps for the sm_90 TMA. The driver's encoder is found at run time, so that nothing links with libcuda.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace rotoscale::gpu::sm90 {

using encode_function = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                     const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                     CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/// Returns the driver's cuTensorMapEncodeTiled, or null.
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

/// Element type of a map, and the L2 promotion of its reads.
struct map_kind {
  CUtensorMapDataType type;
  CUtensorMapL2promotion promotion;
};
/// Encodes a map of boxes with 128-byte swizzle. Extents are in elements, strides in bytes, both starting with the last
/// dimension, which is contiguous. Elements outside the tensor read as zero. Returns false if the driver refuses.
template <unsigned Rank>
bool encode_map(CUtensorMap& map, map_kind kind, const void* data, const std::int64_t (&extents)[Rank],
                const std::int64_t (&strides)[Rank - 1], const cuuint32_t (&box)[Rank]) {
  static const encode_function encode = find_encoder();
  cuuint64_t sizes[Rank], steps[Rank - 1];
  cuuint32_t every[Rank];
  for (unsigned i = 0; i < Rank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(extents[i]);
    every[i] = 1;
    if (i + 1 < Rank) steps[i] = static_cast<cuuint64_t>(strides[i]);
  }
  return encode != nullptr &&
         encode(&map, kind.type, Rank, const_cast<void*>(data), sizes, steps, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, kind.promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/// Encodes boxes of 64 tokens × 64 features of one head. The tensor is BF16 (batch, token, head, feature).
inline bool make_heads_map(CUtensorMap& map, const void* data, const std::int64_t (&extents)[4],
                           const std::int64_t (&strides)[3]) {
  return encode_map(map, {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_L2_PROMOTION_L2_128B}, data, extents, strides,
                    {64, 1, 64, 1});
}

}  // namespace rotoscale::gpu::sm90
