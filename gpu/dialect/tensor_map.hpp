// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Tensor maps of sm_90's copy engine, which the driver encodes; found at run time, so that nothing links with it.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace rotoscale::gpu::sm90 {

using encode_function = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                     const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                     CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/// The driver's cuTensorMapEncodeTiled, or null.
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

/// Boxes of 64 tokens of one head × 64 features of a [batch, token, head, feature] tensor of BF16, extents and strides
/// in bytes from the last on; zeros beyond its edges. False where the driver refuses.
inline bool make_heads_map(CUtensorMap& map, const void* data, const std::int64_t (&extents)[4],
                           const std::int64_t (&strides)[3]) {
  static const encode_function encode = find_encoder();
  cuuint64_t sizes[4], steps[3];
  for (int i = 0; i < 4; ++i) sizes[i] = static_cast<cuuint64_t>(extents[i]);
  for (int i = 0; i < 3; ++i) steps[i] = static_cast<cuuint64_t>(strides[i]);
  const cuuint32_t box[4] = {64, 1, 64, 1}, every[4] = {1, 1, 1, 1};
  return encode != nullptr &&
         encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(data), sizes, steps, box, every,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace rotoscale::gpu::sm90
